"""Runs whose figures stand beside published ones: ResNet-18 on imagenette and CIFAR-10, NNCLR and SimCLR.

    python benchmarks/gpu_runs.py --list                                      # names, minutes, what is published
    python benchmarks/gpu_runs.py --work WORK --imagenette imagenette128 --cifar10 cifar10_jpeg --minutes 9
    python benchmarks/gpu_runs.py --work WORK --imagenette imagenette128 --only nnclr_200 simclr_200 --seeds 3

Each call goes on where the last one stopped, run by run in the order of the list; WORK must be kept. A run that is
finished is scored as the last epoch stands, never the best: 20-NN at T = 0.07 and 200-NN at T = 0.1 on the test
images, a row in WORK/gpu_runs.md. Minutes are estimates until a run is done. lightly's own loop on the same images
is `benchmarks/pretrain_vs_lightly.py`.
"""

from __future__ import annotations

import argparse
import shlex
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from gpu_report import Report
from rich.console import Console

from nnclr_hub.encoder.device import find_device
from nnclr_hub.encoder.encoder import load_encoder
from training.data.datasets import evaluation_sets
from training.evals.knn import knn
from training.evals.labeled import LabeledSet
from training.measuring import measuring
from training.monitor import read_log
from training.parcels import unpacked
from training.pretrain import pretrain
from training.recipes import find_recipe

SAVING = 1.0  # minutes of a call kept for saving and scoring
COLUMNS = ("run", "data", "epochs", "seed", "20-NN", "200-NN", "images/s", "published, k = 200, best epoch", "command")


@dataclass(frozen=True)
class Run:
    """A run: its recipe, which data, settings, minutes of an H200 (an estimate), and what others report."""

    recipe: str
    data: str
    settings: tuple[str, ...]
    minutes: float
    published: str = ""


# scored at the end alone, and few log lines: the minutes go into steps
ONCE = ("checkpoint_every=10000", "log_every=100", "compile_views=true")
IMAGENETTE, CIFAR = "imagenette", "cifar10"
CROPS = "augmentation=crop_only"
RUNS = {
    "nnclr_200": Run("imagenette_resnet18", IMAGENETTE, ("epochs=200", *ONCE), 4, "80.9, lightly at 160 px files"),
    "simclr_200": Run(
        "imagenette_resnet18", IMAGENETTE, ("epochs=200", "method=simclr", *ONCE), 4, "83.5, lightly at 160 px files"
    ),
    "nnclr_crops_200": Run("imagenette_resnet18", IMAGENETTE, ("epochs=200", CROPS, *ONCE), 4),
    "simclr_crops_200": Run("imagenette_resnet18", IMAGENETTE, ("epochs=200", CROPS, "method=simclr", *ONCE), 4),
    "cifar10_nnclr_200": Run("cifar10_resnet18", CIFAR, ("epochs=200", *ONCE), 10, "83.4, lightly, lossless images"),
    "cifar10_simclr_200": Run(
        "cifar10_resnet18", CIFAR, ("epochs=200", "method=simclr", *ONCE), 10, "84.7, lightly, lossless images"
    ),
    "nnclr_800": Run("imagenette_resnet18", IMAGENETTE, ("epochs=800", *ONCE), 15, "88.4, lightly at 160 px files"),
    "simclr_800": Run(
        "imagenette_resnet18", IMAGENETTE, ("epochs=800", "method=simclr", *ONCE), 15, "88.9, lightly at 160 px files"
    ),
}


def main(given: Sequence[str] | None = None) -> int:
    arguments = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    arguments.add_argument("--list", action="store_true", help="print the runs and stop")
    arguments.add_argument("--work", type=Path, help="folder of the runs")
    arguments.add_argument(f"--{IMAGENETTE}", type=Path, help="its folder, or tar")
    arguments.add_argument(f"--{CIFAR}", type=Path, help="its folder, or tar")
    arguments.add_argument("--only", nargs="+", choices=RUNS, default=list(RUNS))
    arguments.add_argument("--seeds", type=int, default=1, help="the first so many of 0, 1, 2, ...")
    arguments.add_argument("--set", dest="settings", action="append", default=[], help="KEY=VALUE for every run")
    arguments.add_argument("--minutes", type=float, default=9.0, help="of this call")
    arguments.add_argument("--device", default=None)
    chosen = arguments.parse_args(given)
    if chosen.list or chosen.work is None:
        for name, run in RUNS.items():
            print(f"{name:20} about {run.minutes:g} min  {run.recipe} {' '.join(run.settings)}  {run.published}")
        return 0
    return 0 if go_on(chosen, Console(stderr=True)) else 130


def go_on(chosen: argparse.Namespace, say: Console) -> bool:
    """Trains run after run until the time is up, and tabulates those that are done; whether all are."""
    until = time.monotonic() + 60 * (chosen.minutes - SAVING)
    where = find_device(chosen.device)
    done, complete = [], True
    for seed, name in product(range(chosen.seeds), chosen.only):
        run, place = RUNS[name], getattr(chosen, RUNS[name].data)
        if place is None:
            continue
        left = (until - time.monotonic()) / 60
        out = chosen.work / f"{name}_seed{seed}"
        data = unpacked(place, chosen.work / "data")
        recipe = find_recipe(run.recipe).with_settings([*run.settings, f"seed={seed}", *chosen.settings])
        if not (out / "finished").exists():
            complete = left > 0
            if not complete:
                break
            say.print(f"{name}, seed {seed}: about {run.minutes:g} minutes in all, {left:.1f} here", highlight=False)
            outcome = pretrain(
                run.recipe, recipe, [data], out, resume=True, device=chosen.device, minutes=left, console=say
            )
            complete = outcome.finished
            if not complete:
                break
            (out / "finished").touch()
        done.append((name, seed, data, recipe.epochs, out))
    if done:
        tabulate(done, chosen.work, where, chosen.settings)
    return complete


def tabulate(
    done: Sequence[tuple[str, int, Path, int, Path]], work: Path, where: torch.device, given: Sequence[str]
) -> None:
    """WORK/gpu_runs.md of the finished runs; `given` are the settings of all of them."""
    report = Report(work, "gpu_runs", where, COLUMNS)
    for name, seed, data, epochs, out in done:
        encoder = load_encoder(out / "encoder", device=str(where))
        run = RUNS[name]
        rates = [line["images_per_s"] for line in read_log(out) if "images_per_s" in line]
        settings = " ".join(f"--set {one}" for one in (*run.settings, f"seed={seed}", *given))
        for one in evaluation_sets([data]):
            crops = LabeledSet(one, encoder.transform.preprocessing)
            with measuring():
                features = crops.embed(encoder)
            report.add(
                {
                    "run": name,
                    "data": one.name,
                    "epochs": epochs,
                    "seed": seed,
                    "20-NN": next(knn(features))[1],
                    "200-NN": next(knn(features, k=200, temperature=0.1))[1],
                    "images/s": sorted(rates)[len(rates) // 2],
                    "published, k = 200, best epoch": run.published,
                    "command": f"nnclr pretrain {run.recipe} --data {shlex.quote(data.name)} {settings}",
                }
            )


if __name__ == "__main__":
    sys.exit(main())
