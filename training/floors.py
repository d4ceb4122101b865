"""RUN/floors.json: the scores that learned features must exceed, on the images that score the run.

They are those of hand-crafted vectors (`nnclr_hub.encoder.hand_crafted`) and of the network before its first step.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console

from nnclr_hub.cache import cache_folder
from nnclr_hub.encoder.hand_crafted import FLOORS
from nnclr_hub.file_replacement import replace_file
from nnclr_hub.progress import bar

from .distributed import Ranks
from .evals.labeled import LabeledSet, Protocol, scores_of
from .recipes import Recipe

PERFECT = 0.999  # a score from which there is nothing to improve
NAME = "floors.json"
UNTRAINED = "untrained"


@dataclass
class Floors:
    """The floors of a run.

    images: NAME of a set -> digest of its images; other images need other floors.
    tested: NAME of a set -> number of images that are scored.
    scores: name of a floor -> {"knn20/NAME": accuracy in [0, 1], "linear/NAME": ...}.
    """

    images: dict[str, str] = field(default_factory=dict)
    tested: dict[str, int] = field(default_factory=dict)
    scores: dict[str, dict[str, float]] = field(default_factory=dict)

    @classmethod
    def read(cls, out: Path) -> Floors:
        """Read a run's floors; a run without labeled sets has none."""
        try:
            return cls(**json.loads((out / NAME).read_text("utf-8")))
        except (OSError, ValueError, TypeError):
            return cls()

    @classmethod
    def of(
        cls,
        out: Path,
        sets: Sequence[LabeledSet],
        images: dict[str, str],
        protocols: Sequence[Protocol],
        console: Console,
        transform: str,
        ranks: Ranks,
    ) -> Floors:
        """Return the stored floors of these images, or compute and store them.

        They are also kept in the cache folder, because runs on the same images have the same floors.

        Args:
            out: the run folder.
            sets: the labeled sets that score the run.
            images: NAME of a set -> digest of its images.
            protocols: functions that yield (name, score).
            console: for progress.
            transform: what made the sets' crops.
            ranks: the first reads and writes; all of them compute features of their shares of the images.
        """
        stored = cls.read(out)
        if not sets:
            return stored
        named = sorted(one.fingerprint for one in FLOORS.values())
        key = hashlib.sha256(f"{sorted(images.items())} {transform} {named}".encode()).hexdigest()[:32]
        cache = cache_folder() / "floors" / key
        found = next((one for one in (stored, cls.read(cache)) if one.images == images), None)
        if not ranks.any(ranks.first and found is None):
            if ranks.first and found is not None and found is not stored:
                found.write(out)
            return found or cls()
        floors = cls(images, {one.name: one.tested for one in sets})
        for floor in FLOORS.values():
            with bar(console, f"floor {floor.name}") as advance:
                floors.scores[floor.name] = scores_of(sets, floor, protocols, advance)
        if not ranks.first:
            return floors
        floors.write(out)
        cache.mkdir(parents=True, exist_ok=True)
        floors.write(cache)
        return floors

    def write(self, out: Path) -> None:
        """Write RUN/floors.json."""
        replace_file(out / NAME, json.dumps(self.__dict__, indent=1) + "\n")

    def best(self, name: str) -> tuple[str, float] | None:
        """Return the floor with the highest score of that name, and the score."""
        found = [(floor, scores[name]) for floor, scores in self.scores.items() if name in scores]
        return max(found, key=lambda one: one[1], default=None)

    def warn_if_below(self, scores: Mapping[str, float], recipe: Recipe, console: Console) -> None:
        """Warn for each k-NN score that is not above the best floor, unless both are perfect.

        Args:
            recipe: of the run; if it changes colors, a setting is named where colors alone are better.
        """
        for name, value in scores.items():
            best = self.best(name)
            if name.startswith("knn") and best is not None and value <= best[1] and value < PERFECT:
                folder = name.partition("/")[2]
                kept = recipe.augmentation in ("keep_color", "crop_only") or folder in recipe.keep_color_of
                setting = f"keep_color_of={folder}" if len(self.tested) > 1 else "augmentation=keep_color"
                colors = best[0] == "color" and not kept
                advice = f"Keep the colors in the views (--set {setting}), train" if colors else "Train"
                console.print(
                    f"[yellow]warning[/] {name} is {value:.3f}, no better than {best[0]} ({best[1]:.3f}). {advice} "
                    "longer (--set epochs=...), use more images, or start from a trained encoder (--init).",
                    highlight=False,
                )
