"""Compare methods at equal CPU time: each run gets the epochs that fit into its core-minutes, with a full schedule.

    python benchmarks/budget.py --data photos --minutes 10,30 --seeds 2 --out budget
    python benchmarks/budget.py --data photos --minutes 10 --row NNCLR --row SimCLR --set image_size=64 --out budget

The cost of a step, with views and optimizer, is measured first, in a short run of each method. The program prints
20-NN for each budget, with the epochs and the core-minutes that the steps took. Called again, it continues; results are
those of docs/results/budget.md.
"""

from __future__ import annotations

import argparse
import re
from itertools import product
from math import ceil
from pathlib import Path
from statistics import mean, median, stdev

from rich.console import Console

from nnclr_hub.errors import InvalidRequest
from training.data.image_index import training_files
from training.monitor import read_log
from training.pretrain import pretrain
from training.recipes import Recipe, find_recipe

HEAD = "prediction=paper"  # without a head, these methods collapse
MANY = "crop_scale=0.25,1.0 local_crops=4 local_size=32 local_scale=0.05,0.25"
ROWS: dict[str, str] = {
    "SimCLR": "method=simclr",
    "NNCLR": "method=nnclr",
    "NNCLR, queue negatives": "method=queue_nnclr",
    "momentum NNCLR": "method=momentum_nnclr encoder=momentum",
    "BYOL": f"method=byol encoder=momentum {HEAD}",
    "SimSiam": f"method=simsiam {HEAD}",
    "MoCo v2": "method=moco_v2 encoder=momentum",
    "MoCo v3": f"method=moco_v3 encoder=momentum {HEAD}",
    "mean shift": f"method=msf encoder=momentum {HEAD}",
    "ReSSL": "method=ressl encoder=momentum",
    "SCE": "method=sce encoder=momentum",
    "SwAV": "method=swav prediction=method",
    "LeJEPA": "method=lejepa",
    "SimCLR, 4 small crops": f"method=simclr {MANY}",
    "NNCLR, 4 small crops": f"method=nnclr {MANY}",
    "SwAV, 4 small crops": f"method=swav prediction=method {MANY}",
    "LeJEPA, 4 small crops": f"method=lejepa {MANY}",
}
SKIPPED = 2  # log lines of a calibration in which caches and compilers warm up
QUIET = Console(quiet=True)


def step_cost(recipe: Recipe, data: list[str], run: Path, minutes: float) -> float:
    """Return the CPU seconds of a step, measured in runs of `minutes`; each size of an early share counts by it."""
    if recipe.early_share:
        late = recipe.with_settings(["early_share=0"])
        early = late.with_settings([f"image_size={recipe.early_size}", f"eval_size={recipe.early_size}"])
        costs = [step_cost(one, data, run / str(one.image_size), minutes) for one in (early, late)]
        return recipe.early_share * costs[0] + (1 - recipe.early_share) * costs[1]
    recipe = recipe.with_settings(["epochs=1000", "checkpoint_every=1000", "log_every=5", "eval_images=256"])
    while True:
        lines = [line["cpu_s"] for line in read_log(run) if "cpu_s" in line]
        if len(lines) > SKIPPED:
            return median(lines[SKIPPED:])
        pretrain(recipe, data, run, resume=True, minutes=minutes, console=QUIET)


def core_minutes(run: Path) -> float:
    """Sum the CPU time of the steps of a run."""
    lines = [line for line in read_log(run) if "cpu_s" in line]
    starts = [0, *(line["step"] for line in lines)]
    return sum(line["cpu_s"] * (line["step"] - start) for line, start in zip(lines, starts, strict=False)) / 60


def compare(
    base: Recipe, data: list[str], out: Path, budgets: list[float], seeds: int, rows: list[str], calibration: float
) -> list[str]:
    """Train every row at every budget; return the lines of a table."""
    images = len(training_files([Path(one) for one in data]))
    base = base.with_settings([f"batch_size={base.batch_for(images)}", f"queue_size={min(base.queue_size, images)}"])
    found: dict[tuple[float, str], list[tuple[float, float, dict[str, float]]]] = {}
    folders = {label: out / re.sub(r"[^a-z0-9]+", "-", label.lower()) for label in rows}
    for budget, seed, label in product(sorted(budgets), range(seeds), rows):
        recipe = base.with_settings(ROWS[label].split())
        cost = step_cost(recipe, data, folders[label] / "calibration", calibration)
        epochs = max(1, round(60 * budget / cost)) / (images // base.batch_size)
        run = folders[label] / f"{budget:g}-minutes" / f"seed-{seed}"
        settings = [f"seed={seed}", f"epochs={epochs}", f"checkpoint_every={ceil(epochs)}"]
        settings.append(f"warmup_epochs={min(base.warmup_epochs, 0.1 * epochs)}")
        outcome = pretrain(recipe.with_settings(settings), data, run, resume=True)
        if not outcome.finished:
            raise SystemExit("stopped; the same command continues")
        found.setdefault((budget, label), []).append((epochs, core_minutes(run), outcome.scores))
    metrics = sorted({name for runs in found.values() for *_, scores in runs for name in scores if "knn" in name})
    lines = [
        f"| core-minutes | method | {' | '.join(metrics)} | epochs | spent |",
        f"|---|---|{'---|' * len(metrics)}---|---|",
    ]
    for (budget, label), runs in found.items():
        cells = []
        for name in metrics:
            values = [scores[name] for *_, scores in runs]
            cells.append(f"{mean(values):.3f}" + (f" ± {stdev(values):.3f}" if len(values) > 1 else ""))
        spent = mean(one[1] for one in runs)
        lines.append(f"| {budget:g} | {label} | {' | '.join(cells)} | {runs[0][0]:.3g} | {spent:.3g} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", action="append", required=True, help="folder with train/ and val/ or test/")
    parser.add_argument("--minutes", default="10", help="core-minutes of a run, several with commas")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--row", action="append", choices=ROWS, help="only this method")
    parser.add_argument("--recipe", default="small_cpu")
    parser.add_argument("--set", action="append", default=[], help="KEY=VALUE")
    parser.add_argument("--calibration", type=float, default=0.5, help="minutes that measure the cost of a step")
    parser.add_argument("--out", type=Path, default=Path("budget"))
    given = parser.parse_args()
    budgets = [float(one) for one in given.minutes.split(",")]
    if min(budgets) <= 0:
        raise InvalidRequest("Budgets must be above 0 core-minutes: --minutes 10,30.")
    base = find_recipe(given.recipe).with_settings(given.set)
    rows = given.row or list(ROWS)
    print("\n".join(compare(base, given.data, given.out, budgets, given.seeds, rows, given.calibration)))


if __name__ == "__main__":
    main()
