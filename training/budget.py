"""Compare methods at equal CPU time: `nnclr ablate budget --minutes 10,30 --seeds 2 --data PHOTOS`.

Each run gets the epochs that fit into its core-minutes, with a complete schedule, so the end of every run is as good as
its method can be in that time. The costs of steps are measured first, in a short run per method. OUT/budget has
results.json, results.md and results.png: 20-NN against core-minutes. The same command continues after an interruption,
and calls with other rows, budgets or seeds add to the tables.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import product
from math import ceil
from pathlib import Path
from statistics import mean, median, stdev

from rich.console import Console

from nnclr_hub.errors import InvalidRequest
from nnclr_hub.file_replacement import replace_file
from nnclr_hub.terminal import PlainConsole

from .ablate import for_data, require_same_epochs, slug
from .data.datasets import evaluation_sets, training_files
from .data.named_sets import find_data
from .monitor import read_log
from .pretrain import pretrain
from .recipes import Recipe

WARM_UP = 0.1  # largest share of a run
SKIPPED = 2  # log lines of a calibration in which caches and compilers warm up

_HEAD = "prediction=paper"  # without a head, these methods collapse
_MANY = "crop_scale=0.25,1.0 local_crops=4 local_size=32 local_scale=0.05,0.25"
ROWS: dict[str, str] = {
    "SimCLR": "method=simclr",
    "NNCLR": "method=nnclr",
    "NNCLR, queue negatives": "method=queue_nnclr",
    "momentum NNCLR": "method=momentum_nnclr encoder=momentum",
    "BYOL": f"method=byol encoder=momentum {_HEAD}",
    "SimSiam": f"method=simsiam {_HEAD}",
    "MoCo v2": "method=moco_v2 encoder=momentum",
    "MoCo v3": f"method=moco_v3 encoder=momentum {_HEAD}",
    "mean shift": f"method=msf encoder=momentum {_HEAD}",
    "ReSSL": "method=ressl encoder=momentum",
    "SCE": "method=sce encoder=momentum",
    "SwAV": "method=swav prediction=method",
    "LeJEPA": "method=lejepa",
    "SimCLR, 4 small crops": f"method=simclr {_MANY}",
    "NNCLR, 4 small crops": f"method=nnclr {_MANY}",
    "SwAV, 4 small crops": f"method=swav prediction=method {_MANY}",
    "LeJEPA, 4 small crops": f"method=lejepa {_MANY}",
}


@dataclass(frozen=True)
class BudgetRun:
    """One trained run.

    label: a key of ROWS.
    minutes: its budget, in core-minutes.
    epochs: that fitted into it.
    spent: core-minutes of its training steps, with views and optimizer, without evaluations.
    scores: {"knn20/NAME": accuracy in [0, 1], "linear/NAME": ...} of the last epoch.
    """

    label: str
    minutes: float
    seed: int
    epochs: float
    spent: float
    scores: dict[str, float] = field(default_factory=dict)


def compare_at_budgets(
    base: Recipe,
    data: Sequence[str | Path],
    out: Path,
    *,
    minutes: Sequence[float],
    seeds: int = 1,
    rows: Sequence[str] = (),
    calibration: float = 0.5,
    device: str | None = None,
    console: Console | None = None,
) -> list[BudgetRun] | None:
    """Train every row at every budget; return None if a signal stopped it.

    Args:
        base: the recipe that all rows share.
        data: as for `pretrain`; at least one folder needs labels in train/ and in val/ or test/.
        out: folder of tables.
        minutes: budgets in core-minutes.
        seeds: runs per row and budget.
        rows: labels of ROWS; default all.
        calibration: minutes of wall time for measuring the cost of a row's step.
        device: as for `pretrain`.
        console: for progress and messages; default standard error.

    Raises:
        InvalidRequest: a budget is not above 0, a row does not exist or sets what `base` fixes, or no folder can be
            scored.
        and the errors of `pretrain`.
    """
    console = console or PlainConsole(stderr=True)
    if not minutes or min(minutes) <= 0:
        raise InvalidRequest("Budgets must be above 0 core-minutes: --minutes 10,30.")
    if unknown := [row for row in rows if row not in ROWS]:
        raise InvalidRequest(f"No row is named {unknown[0]!r}; choose from: {'; '.join(ROWS)}.")
    labels = list(rows or ROWS)
    for label in labels:
        if taken := {setting.partition("=")[0] for setting in ROWS[label].split()} & set(base.fixed):
            raise InvalidRequest(f"The row {label!r} sets {min(taken)}: leave out --set {min(taken)}=...")
    folders = find_data(data, console)
    if not evaluation_sets(folders):
        raise InvalidRequest("Methods are compared by 20-NN: name a folder with labels in train/ and in val/ or test/.")
    base = for_data(base, data, device, console)
    steps_per_epoch = max(1, len(training_files(folders)) // base.batch_size)
    folder, runs = Path(out) / "budget", []
    costs = _costs(base, labels, data, folder, calibration, device, console)
    if costs is None:
        return None
    for budget, seed, label in product(sorted(minutes), range(base.seed, base.seed + seeds), labels):
        epochs = max(1, round(60 * budget / costs[label])) / steps_per_epoch
        console.print(f"{label}, {budget:g} core-minutes, seed {seed}: epochs {epochs:.3g}", highlight=False)
        settings = [*ROWS[label].split(), f"seed={seed}", f"epochs={epochs}", f"checkpoint_every={ceil(epochs)}"]
        settings.append(f"warmup_epochs={min(base.warmup_epochs, WARM_UP * epochs)}")
        recipe = base.with_settings(settings)
        run = folder / slug(label) / f"{budget:g}-minutes" / f"seed-{seed}"
        require_same_epochs(run, recipe)
        outcome = pretrain(recipe, data, run, resume=True, device=device, console=console)
        if not outcome.finished:
            return None
        runs.append(BudgetRun(label, budget, seed, epochs, _core_minutes(run), outcome.scores))
        _write(folder, base.name, _with_earlier(folder, runs))
    return runs


def _costs(
    base: Recipe,
    labels: Sequence[str],
    data: Sequence[str | Path],
    folder: Path,
    minutes: float,
    device: str | None,
    console: Console,
) -> dict[str, float] | None:
    """Return the CPU seconds of a step of each row, all measured before the first run; None if a signal stopped it."""
    costs: dict[str, float] = {}
    for number, label in enumerate(labels, 1):
        parts = _parts(base.with_settings(ROWS[label].split()))
        how = f"{number} of {len(labels)}, {60 * minutes * len(parts):.0f} s"
        console.print(f"{label}: measuring the cost of a step ({how})", highlight=False)
        costs[label] = 0.0
        for name, part, share in parts:
            cost = _step_cost(part, data, folder / slug(label) / name, minutes, device)
            if cost is None:
                return None
            costs[label] += share * cost
    return costs


def _parts(recipe: Recipe) -> list[tuple[str, Recipe, float]]:
    """Return the parts of a resolution schedule: a name, a recipe of one size, and the share of the steps."""
    late = recipe.with_settings(["early_share=0"])
    if not recipe.early_share:
        return [("calibration", late, 1.0)]
    size = recipe.early_size
    early = late.with_settings([f"image_size={size}", f"eval_size={size}"])  # a ViT has one size
    return [("calibration-early", early, recipe.early_share), ("calibration", late, 1 - recipe.early_share)]


def _step_cost(
    recipe: Recipe, data: Sequence[str | Path], run: Path, minutes: float, device: str | None
) -> float | None:
    """Return the CPU seconds of a step, measured once per row and size; None if a signal stopped the measurement."""
    stored = run / "cost.json"
    if stored.exists():
        return json.loads(stored.read_text())["cpu_s"]
    recipe = recipe.with_settings(["epochs=1000", "checkpoint_every=1000", "log_every=5", "eval_images=256"])
    lines: list[float] = []
    while len(lines) <= SKIPPED:
        began = time.monotonic()
        quiet = Console(quiet=True)
        outcome = pretrain(recipe, data, run, resume=True, device=device, minutes=minutes, console=quiet)
        lines = [line["cpu_s"] for line in read_log(run) if "cpu_s" in line]
        if outcome.finished:
            break
        if time.monotonic() - began < 60 * minutes:  # a signal stopped it, not the time
            return None
    cost = median(lines[SKIPPED:] or lines)
    replace_file(stored, json.dumps({"cpu_s": cost}) + "\n")
    return cost


def _core_minutes(run: Path) -> float:
    """Sum the CPU time of the steps of a run."""
    total, before = 0.0, 0
    for line in read_log(run):
        if "cpu_s" in line:
            total += line["cpu_s"] * (line["step"] - before)
            before = line["step"]
    return total / 60


# ------------------------------------------------------------------------------ output files


def _with_earlier(folder: Path, runs: Sequence[BudgetRun]) -> list[BudgetRun]:
    """Return the runs with those of earlier calls, for other rows, budgets or seeds, in the order of the tables."""
    found = {(run.label, run.minutes, run.seed): run for run in [*_stored(folder), *runs]}
    rows = list(ROWS)
    return sorted(found.values(), key=lambda run: (run.minutes, run.seed, rows.index(run.label)))


def _stored(folder: Path) -> list[BudgetRun]:
    try:
        stored = json.loads((folder / "results.json").read_text())["runs"]
    except FileNotFoundError:
        return []
    return [BudgetRun(**run) for run in stored if run["label"] in ROWS]


def _write(folder: Path, recipe: str, runs: Sequence[BudgetRun]) -> None:
    document = {"recipe": recipe, "runs": [asdict(run) for run in runs]}
    replace_file(folder / "results.json", json.dumps(document, indent=1) + "\n")
    replace_file(folder / "results.md", as_markdown(recipe, runs))
    draw(folder / "results.png", runs)


def _by_row(runs: Sequence[BudgetRun]) -> Mapping[str, Mapping[float, list[BudgetRun]]]:
    """Return label -> budget -> runs, one per seed."""
    found: dict[str, dict[float, list[BudgetRun]]] = {}
    for run in runs:
        found.setdefault(run.label, {}).setdefault(run.minutes, []).append(run)
    return found


def as_markdown(recipe: str, runs: Sequence[BudgetRun]) -> str:
    """Return a table per metric: a row per method, a column per budget, means over seeds and their deviation."""
    metrics = list(dict.fromkeys(metric for run in runs for metric in run.scores if metric.startswith("knn")))
    budgets = sorted({run.minutes for run in runs})
    lines = [
        "# Methods at equal CPU time",
        "",
        f"Recipe `{recipe}`, last epoch, mean over seeds ± standard deviation. In parentheses: epochs, and the",
        "core-minutes that the training steps took.",
    ]
    for metric in metrics:
        lines += ["", f"## {metric}", "", f"| method | {' | '.join(f'{one:g} core-minutes' for one in budgets)} |"]
        lines += [f"|---|{'---|' * len(budgets)}"]
        for label, by_budget in _by_row(runs).items():
            cells = [_cell(by_budget.get(budget, []), metric) for budget in budgets]
            lines.append(f"| {label} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _cell(runs: Sequence[BudgetRun], metric: str) -> str:
    values = [run.scores[metric] for run in runs if metric in run.scores]
    if not values:
        return ""
    spread = f" ± {stdev(values):.3f}" if len(values) > 1 else ""
    return f"{mean(values):.3f}{spread} ({runs[0].epochs:.3g}, {mean(run.spent for run in runs):.1f})"


def draw(path: Path, runs: Sequence[BudgetRun]) -> None:
    """Draw 20-NN against core-minutes: a panel per data set, a line of means per method, a point per run."""
    from matplotlib.figure import Figure

    metrics = list(dict.fromkeys(metric for run in runs for metric in run.scores if metric.startswith("knn")))
    if not metrics:
        return
    budgets = sorted({run.minutes for run in runs})
    figure = Figure(figsize=(4.2 * len(metrics) + 2.4, 4.2), layout="constrained")
    panels = figure.subplots(1, len(metrics), squeeze=False)[0]
    for axes, metric in zip(panels, metrics, strict=True):
        for number, (label, by_budget) in enumerate(_by_row(runs).items()):
            scored = [[run for run in group if metric in run.scores] for group in by_budget.values()]
            means = [(mean(r.spent for r in group), mean(r.scores[metric] for r in group)) for group in scored if group]
            look = {"color": f"C{number % 10}", "marker": "osD^vP"[number // 10 % 6], "markersize": 4}
            axes.plot(*zip(*means, strict=True), label=label, **look)
            axes.plot(
                [run.spent for group in scored for run in group],
                [run.scores[metric] for group in scored for run in group],
                linestyle="none",
                alpha=0.35,
                **look,
            )
        axes.set(title=metric, xlabel="core-minutes of the steps", ylabel="top-1", xscale="log")
        axes.set_xticks(budgets, [f"{one:g}" for one in budgets])
        axes.minorticks_off()
        axes.grid(alpha=0.3)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right center", fontsize=8)
    figure.savefig(path, dpi=120)
