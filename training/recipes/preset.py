"""Preset: a recipe with a name, and what it costs and reaches."""

from __future__ import annotations

from dataclasses import dataclass

from .recipe import Recipe


@dataclass(frozen=True, kw_only=True)
class Preset:
    """A recipe as `nnclr pretrain --recipes` lists it.

    recipe: its settings.
    summary: one line.
    hardware, time, expected: what it needs and reaches; estimates are marked.
    notes: what else a user should know.
    data: the arguments of the command.
    """

    recipe: Recipe
    summary: str
    hardware: str = "one GPU."
    time: str
    expected: str
    notes: str = ""
    data: str = "--data PHOTOS --out RUN"

    def describe(self, name: str) -> str:
        """Return the text of `nnclr pretrain NAME --settings`, above the settings."""
        lines = [
            self.summary,
            "",
            f"Command:   nnclr pretrain {name} {self.data}",
            f"Hardware:  {self.hardware}",
            f"Time:      {self.time}",
            f"Expected:  {self.expected}",
        ]
        return "\n".join(lines + (["", self.notes] if self.notes else []))
