"""Run the rows of one of the paper's tables: one base recipe, several seeds, one page of results.

    nnclr ablate crop_only --data PHOTOS --recipe small_cpu --seeds 3 --out ablations

writes the run folders OUT/TABLE/ROW/seed-N. After each run it updates OUT/TABLE/{results.json, results.md,
report.html}. The same command continues after an interruption.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev

from rich.console import Console

from nnclr_hub.encoder.device import find_device
from nnclr_hub.errors import InvalidRequest
from nnclr_hub.file_replacement import replace_file
from nnclr_hub.table_rows import LabelTable
from nnclr_hub.terminal import PlainConsole

from .data.image_index import training_files
from .data.named_sets import find_data
from .evals.task import Part, evaluation_sets, table_set
from .pretrain import pretrain
from .recipes import Recipe
from .report import read_about, write_report
from .setup import require_labels
from .situation import chosen_by_auto
from .tables import Row, Table, find_table, parse_row

# settings that differ from the paper's in recipes for small sets; they hold for every row that does not change them
SHARED = ("epochs", "batch_size", "queue_size", "projection_dim", "prediction", "warm_start", "ramp", "gate")


@dataclass(frozen=True)
class Result:
    """One row after its runs: scores[metric] has one value per seed."""

    row: Row
    seeds: tuple[int, ...]
    scores: Mapping[str, tuple[float, ...]]


def ablate(
    name: str,
    base: Recipe,
    data: Sequence[str | Path],
    out: Path,
    *,
    rows: Sequence[str] = (),
    labels: LabelTable | Path | None = None,
    seeds: int = 1,
    device: str | None = None,
    console: Console | None = None,
) -> list[Result] | None:
    """Run a table; return None if a signal stopped it.

    Args:
        base: the recipe that all rows share.
        data: as for `pretrain`.
        out: folder of tables.
        rows: further ones, "LABEL: KEY=VALUE KEY=VALUE"; the table "own" has no others.
        labels: a table of labels that scores the rows; as for `pretrain`.
        seeds: runs per row, with seeds base.seed, base.seed + 1, ...
        device: as for `pretrain`.
        console: for progress and messages; default standard error.

    Raises:
        InvalidRequest: an unknown table, or a row that the recipe does not support.
        and the errors of `pretrain`.
    """
    console = console or PlainConsole(stderr=True)
    table = find_table(name)
    folder = Path(out) / name
    base = for_data(base, data, device, console, table_set(labels, data).train if labels else None)
    every = [*table.rows(base), *map(parse_row, rows)]
    if not every:
        raise InvalidRequest('The table "own" needs --row, such as --row "tau .2: temperature=0.2".')
    recipes = [base.with_settings(row.settings) for row in every]  # before any run: an invalid row stops here
    _check_data(recipes, data, labels, console)
    names = [slug(row.label) for row in every]
    if clash := next(
        (row.label for row, name in zip(every, names, strict=True) if not name or names.count(name) > 1), None
    ):
        raise InvalidRequest(
            f"The row {clash!r} needs another label: its folder would be that of another row, or empty."
        )
    results: dict[int, dict[int, dict[str, float]]] = {number: {} for number in range(len(every))}
    for seed in range(base.seed, base.seed + seeds):
        for number, (row, recipe) in enumerate(zip(every, recipes, strict=True)):
            console.print(f"{row.label}, seed {seed}", highlight=False)
            run = folder / slug(row.label) / f"seed-{seed}"
            settings = recipe.with_settings([f"seed={seed}"])
            options = {"resume": True, "labels": labels, "device": device, "console": console}
            require_same_epochs(run, settings)
            outcome = pretrain(settings, data, run, **options)
            if not outcome.finished:
                return None
            results[number][seed] = outcome.scores
            _write(folder, table, base, _collect(every, results))
    done = _collect(every, results)
    console.print(f"done: {folder / 'results.md'}, {folder / 'report.html'}", highlight=False)
    return done


def for_data(
    base: Recipe,
    data: Sequence[str | Path],
    device: str | None,
    console: Console,
    labeled: Part | None = None,
) -> Recipe:
    """Apply `auto`, and limit queue and batch to the number of images, so that rows differ only as they state.

    `auto` keeps the method: a row about neighbors would otherwise be a run of SimCLR.

    Args:
        labeled: images with labels that the user gave, without those that score the runs.
    """
    paths = training_files(find_data(data, console))
    images = len(paths)
    base = dataclasses.replace(base, fixed=(*base.fixed, "method"))
    recipe, _ = chosen_by_auto(base, paths, find_device(device), None, console, labeled)
    return dataclasses.replace(
        recipe,
        queue_size=min(recipe.queue_size, images),
        batch_size=min(recipe.batch_size, max(2, images // 4)),
    )


def _check_data(
    recipes: Sequence[Recipe], data: Sequence[str | Path], labels: LabelTable | Path | None, console: Console
) -> None:
    folders = find_data(data, console)
    if any(recipe.pick == "oracle" for recipe in recipes):
        require_labels(training_files(folders).labels)
    if labels is None and not evaluation_sets(folders):
        console.print(
            "note: No folder has labeled images in train/ and in val/ or test/, and there is no table of "
            "--labels. The rows will be trained without scores to compare them.",
            highlight=False,
        )


def require_same_epochs(run: Path, recipe: Recipe) -> None:
    """Raise InvalidRequest if a run of another length is in the folder; `pretrain` would prolong it."""
    before = read_about(run).get("epochs", recipe.epochs)
    if before != recipe.epochs:
        raise InvalidRequest(
            f"{run} has a run with epochs={before} instead of {recipe.epochs:g}; choose another --out."
        )


def slug(label: str) -> str:
    """Return a label as a folder's name."""
    return re.sub(r"[^a-z0-9]+", "-", label.lower()).strip("-")


def _collect(rows: Sequence[Row], results: Mapping[int, Mapping[int, Mapping[str, float]]]) -> list[Result]:
    collected = []
    for number, row in enumerate(rows):
        by_seed = results[number]
        if by_seed:
            metrics = next(iter(by_seed.values()))
            scores = {metric: tuple(one[metric] for one in by_seed.values()) for metric in metrics}
            collected.append(Result(row, tuple(by_seed), scores))
    return collected


# ------------------------------------------------------------------------------ output files


def _write(folder: Path, table: Table, base: Recipe, results: Sequence[Result]) -> None:
    document = {
        "table": table.title,
        "recipe": base.name,
        "rows": [
            {
                "label": one.row.label,
                "settings": one.row.settings,
                "seeds": one.seeds,
                "scores": one.scores,
                "paper": one.row.paper,
            }
            for one in results
        ],
    }
    shared = ", ".join(f"{name} {getattr(base, name)}" for name in SHARED)
    replace_file(folder / "results.json", json.dumps(document, indent=2) + "\n")
    replace_file(folder / "results.md", as_markdown(table, base.name, shared, results))
    write_report([folder / slug(one.row.label) / f"seed-{one.seeds[0]}" for one in results], folder / "report.html")


def as_markdown(table: Table, recipe: str, shared: str, results: Sequence[Result]) -> str:
    """Return the table: means over seeds, their standard deviation, and the paper's result."""
    metrics = list(dict.fromkeys(metric for one in results for metric in one.scores))
    lines = [
        f"# {table.title}",
        "",
        f"Recipe `{recipe}`, last epoch, mean over seeds ± standard deviation. The paper: ImageNet, ResNet-50, linear.",
        f"Settings, unless a row states otherwise: {shared}.",
        table.note,
        "",
        f"| {' | '.join(['row', 'seeds', *metrics, 'paper'])} |",
        f"|---|---|{'---|' * len(metrics)}---|",
    ]
    for one in results:
        cells = [_cell(one.scores.get(metric, ())) for metric in metrics]
        paper = "" if one.row.paper is None else f"{one.row.paper:.1f}"
        lines.append(f"| {' | '.join([one.row.label, ', '.join(map(str, one.seeds)), *cells, paper])} |")
    return "\n".join(lines) + "\n"


def _cell(values: Sequence[float]) -> str:
    if not values:
        return ""
    return f"{mean(values):.3f}" + (f" ± {stdev(values):.3f}" if len(values) > 1 else "")
