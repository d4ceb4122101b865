"""The starter encoders, trained on a GPU that one has for minutes at a time: one command a stretch.

    python -m training.starters starter_resnet50 --data mix128.tar.gz --data imagenette128.tar.gz --out work
    python -m training.starters starter_vit_small --data work/data/mix128 --data work/data/imagenette128 --out work

The first call for a recipe takes a few steps to see how fast it goes, chooses the epochs that fit the time, and keeps
them in WORK/RECIPE.json: the schedule is known before the first step. When the time is up the run is saved; the same
call goes on with it (WORK must still be there). However far it came, its encoder is left as a model folder in fp16,
and beside it in WORK/carry as parts of less than 16 MiB, the heads apart, to be put together by
`cat NAME.tar.* | tar x`.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import shlex
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from nnclr_hub.errors import InvalidRequest, NNCLRHubError, WeightsMismatch
from nnclr_hub.hub.layout import HEADS

from .exporting import Exported, export
from .parcels import send, unpacked
from .pilot import measure_pace
from .pretrain import Outcome, pretrain
from .recipes import Recipe, find_recipe

NAMES = {"starter_resnet50": "nnclr_resnet50_starter", "starter_vit_small": "nnclr_vit_small_starter"}
STEPS = 0.94  # share of the training time that steps are planned to take; log lines and hiccups have the rest


@dataclass(frozen=True)
class Stretch:
    """One call.

    recipe: its name.
    data: folders or tar files.
    out: WORK.
    settings: KEY=VALUE of the recipe, the same at each call.
    minutes: of this call in all.
    finish: of them, kept for saving, scoring and exporting.
    training: minutes of training that the epochs are chosen for; None: what this call has.
    epochs: given instead of found out.
    device: default the GPU if there is one.
    license, trained_on: for the card.
    """

    recipe: str
    data: Sequence[Path]
    out: Path
    settings: Sequence[str] = ()
    minutes: float = 9.0
    finish: float = 1.5
    training: float | None = None
    epochs: int | None = None
    device: str | None = None
    license: str | None = None
    trained_on: str | None = None


def run_stretch(stretch: Stretch, say: Console) -> Outcome:
    """Trains as far as the minutes go, and leaves the encoder; see the top of this file.

    Raises:
        NNCLRHubError: as `pretrain` and `export` do.
    """
    began = time.monotonic()
    until = began + 60 * (stretch.minutes - stretch.finish)  # the end of training
    data = [unpacked(Path(one), stretch.out / "data") for one in stretch.data]
    recipe = find_recipe(stretch.recipe).with_settings(stretch.settings)
    plan = _plan(stretch, recipe, data, until, say)
    # three times, and on few images: scores on whole packs take as long as many steps; and at each log line the
    # device stands still until its figures are read
    seldom = [f"checkpoint_every={-(-plan['epochs'] // 3)}", "eval_images=2000", "log_every=50"]
    seldom += [f"epochs={plan['epochs']}"]
    recipe = recipe.with_settings([*seldom, *stretch.settings])
    run = stretch.out / stretch.recipe
    left = max(0.0, until - time.monotonic()) / 60
    outcome = pretrain(stretch.recipe, recipe, data, run, resume=True, device=stretch.device, minutes=left, console=say)
    _hand_over(stretch, recipe, data, run, outcome, say)
    say.print(f"{(time.monotonic() - began) / 60:.1f} of {stretch.minutes:g} minutes", highlight=False)
    return outcome


def _plan(stretch: Stretch, recipe: Recipe, data: list[Path], until: float, say: Console) -> dict[str, Any]:
    """{"epochs": ..., "pace": ...} of WORK/RECIPE.json, found out now if it is not there."""
    place = stretch.out / f"{stretch.recipe}.json"
    if place.exists():
        return json.loads(place.read_text("utf-8"))
    plan: dict[str, Any] = {"epochs": stretch.epochs, "settings": list(stretch.settings)}
    if stretch.epochs is None:
        pace = measure_pace(recipe, data, device=stretch.device, console=say)
        seconds = until - time.monotonic() if stretch.training is None else 60 * stretch.training
        plan["epochs"] = pace.epochs_within(STEPS * seconds, recipe)
        plan["pace"] = dataclasses.asdict(pace)
        say.print(
            f"{1e3 * pace.early:.0f} and {1e3 * pace.late:.0f} ms a step, {pace.steps_per_epoch} steps an epoch: "
            f"{plan['epochs']} epochs in {seconds / 60:.1f} minutes (found out in {pace.start:.0f} s)",
            highlight=False,
        )
    stretch.out.mkdir(parents=True, exist_ok=True)
    place.write_text(json.dumps(plan, indent=2) + "\n", "utf-8")
    return plan


def _hand_over(stretch: Stretch, recipe: Recipe, data: list[Path], run: Path, outcome: Outcome, say: Console) -> None:
    """The model folder, and its parts in WORK/carry."""
    name = NAMES.get(stretch.recipe, f"nnclr_{stretch.recipe}")
    about = {"license": stretch.license, "data": stretch.trained_on}
    told = {key: value for key, value in about.items() if value is not None}
    folder = stretch.out / name

    def exported(data: list[Path]) -> Exported:
        return export(run, folder, dtype="fp16", data=data, provenance=told, device=stretch.device, say=say)

    try:
        done = exported(data)  # measures what is given away, also where the run was stopped before it could
    except (WeightsMismatch, InvalidRequest) as error:  # what a GPU has made is to come back all the same
        say.print(f"[yellow]warning[/] {error} It is left as the run has it, its figures not measured again.")
        done = exported([])
    carry = stretch.out / "carry"
    heads = folder / HEADS
    parts = send(
        [folder / "config.json", folder / "model.safetensors", *folder.glob("README.md"), run / "log.jsonl",
         run / "run.json", run / "report.html", stretch.out / f"{stretch.recipe}.json"],
        carry,
        name,
    )  # fmt: skip
    parts += send([heads], carry, f"{name}-heads") if heads.exists() else []
    end = "its last step" if outcome.finished else f"step {outcome.step}; the same call goes on"
    say.print(f"{folder}, of {end}: {dict(done.metrics)}", highlight=False)
    say.print(f"to carry: {', '.join(part.name for part in parts)} in {carry}", highlight=False)


def main(given: Sequence[str] | None = None) -> int:
    """The command line; 0 when the run is finished, 130 when the same call has to go on with it, 1 on an error."""
    arguments = argparse.ArgumentParser(prog="python -m training.starters", description=(__doc__ or "").split("\n")[0])
    arguments.add_argument("recipe", help=" or ".join(NAMES))
    arguments.add_argument("--data", type=Path, action="append", required=True, help="folder or tar; repeatable")
    arguments.add_argument("--out", type=Path, required=True, help="WORK, kept from call to call")
    arguments.add_argument("--set", dest="settings", action="append", default=[], help="KEY=VALUE of the recipe")
    arguments.add_argument("--minutes", type=float, default=9.0, help="of this call, in all")
    arguments.add_argument("--finish", type=float, default=1.5, help="of them, for scores and export at the end")
    arguments.add_argument("--training", type=float, help="minutes of training over all calls; default: this one's")
    arguments.add_argument("--epochs", type=int, help="instead of as many as fit")
    arguments.add_argument("--device")
    arguments.add_argument("--license", help="of the weights, for the card")
    arguments.add_argument("--trained-on", help="the pictures and their terms, for the card")
    chosen = arguments.parse_args(given)
    say = Console(stderr=True)
    say.print(f"{shlex.join(sys.argv)}, torch {torch.__version__}", highlight=False)
    try:
        return 0 if run_stretch(Stretch(**vars(chosen)), say).finished else 130
    except NNCLRHubError as error:
        say.print(f"[red]error[/] {error}", highlight=False)
        return 1


if __name__ == "__main__":
    sys.exit(main())
