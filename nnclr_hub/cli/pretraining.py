"""nnclr pretrain."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from nnclr_hub.cli.programs import load_program
from nnclr_hub.cli.verbs import err, out
from nnclr_hub.errors import InvalidRequest

INTERRUPTED = 130  # what a shell gives a program that Ctrl-C ended


def register(app: typer.Typer) -> None:
    """Adds the verb."""
    app.command()(pretrain)


def pretrain(
    recipe: Annotated[str, typer.Argument(help="Name of a recipe; add --settings to see what it sets.")],
    data: Annotated[list[Path], typer.Option("--data", help="Folder of pictures; may be repeated.")] = [],  # noqa: B006
    to: Annotated[Path | None, typer.Option("--out", help="Run folder.")] = None,
    settings: Annotated[list[str], typer.Option("--set", help="KEY=VALUE; may be repeated.")] = [],  # noqa: B006
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --out.")] = False,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1; the GPU if there is one.")] = None,
    show: Annotated[bool, typer.Option("--settings", help="Show the recipe with its settings, and stop.")] = False,
) -> None:
    """Learn an encoder from unlabelled pictures.

    Recipes: small_cpu, resnet50_imagenet. A folder with train/ is read by its splits.

    Example: nnclr pretrain small_cpu --data photos --out runs/photos --set epochs=50
    """
    chosen = load_program("training", "recipes").find_recipe(recipe).with_settings(settings)
    if show:
        out.print(inspect.getdoc(type(chosen)) or "", markup=False)
        table = Table("setting", "value", "meaning", box=None, header_style="bold")
        for name, _, meaning in type(chosen).settings():
            table.add_row(name, str(getattr(chosen, name)), meaning)
        out.print(table)
        return
    if not data or to is None:
        raise InvalidRequest(f"Give pictures and a run folder: nnclr pretrain {recipe} --data PHOTOS --out RUN.")
    program = load_program("training", "pretrain")
    outcome = program.pretrain(recipe, chosen, data, to, resume=resume, device=device, console=err)
    if not outcome.finished:
        raise typer.Exit(INTERRUPTED)
