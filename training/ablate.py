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
from .evals.results import markdown_table
from .evals.task import Part, evaluation_sets, table_set
from .pretrain import pretrain
from .recipes import Recipe
from .recipes.recipe import OF_PLUGIN, one_of
from .report import read_about, write_report
from .run import CALLBACKS
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

    @classmethod
    def of(cls, row: Row, by_seed: Mapping[int, Mapping[str, float]]) -> Result:
        """Join the scores of at least one run by their metrics."""
        metrics = next(iter(by_seed.values()))
        return cls(row, tuple(by_seed), {name: tuple(one[name] for one in by_seed.values()) for name in metrics})


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
    for callback in {one for recipe in recipes for one in recipe.callbacks}:
        one_of("callbacks", callback, CALLBACKS, OF_PLUGIN)
    _check_data(recipes, data, labels, console)
    names = [slug(row.label) for row in every]
    for row, name in zip(every, names, strict=True):
        if not name or names.count(name) > 1:
            raise InvalidRequest(
                f"The row {row.label!r} needs another label: its folder would be that of another row, or empty."
            )
    scores: list[dict[int, dict[str, float]]] = [{} for _ in every]  # of each row, by seed
    done: list[Result] = []
    for seed in range(base.seed, base.seed + seeds):
        for name, row, recipe, own in zip(names, every, recipes, scores, strict=True):
            console.print(f"{row.label}, seed {seed}")
            run = folder / name / f"seed-{seed}"
            settings = recipe.with_settings([f"seed={seed}"])
            options = {"resume": True, "labels": labels, "device": device, "console": console}
            require_same_epochs(run, settings)
            outcome = pretrain(settings, data, run, **options)
            if not outcome.finished:
                return None
            own[seed] = outcome.scores
            done = [Result.of(row, by_seed) for row, by_seed in zip(every, scores, strict=True) if by_seed]
            _write(folder, table, base, done)
    console.print(f"done: {folder / 'results.md'}, {folder / 'report.html'}")
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
            "--labels. The rows will be trained without scores to compare them."
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


# ------------------------------------------------------------------------------ output files


def _write(folder: Path, table: Table, base: Recipe, results: Sequence[Result]) -> None:
    rows = [{**dataclasses.asdict(one.row), "seeds": one.seeds, "scores": one.scores} for one in results]
    document = {"table": table.title, "recipe": base.name, "rows": rows}
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
    ]
    rows = []
    for one in results:
        cells = [_cell(one.scores.get(metric, ())) for metric in metrics]
        paper = "" if one.row.paper is None else f"{one.row.paper:.1f}"
        rows.append([one.row.label, ", ".join(map(str, one.seeds)), *cells, paper])
    return "\n".join([*lines, *markdown_table(["row", "seeds", *metrics, "paper"], rows)]) + "\n"


def _cell(values: Sequence[float]) -> str:
    if not values:
        return ""
    return f"{mean(values):.3f}" + (f" ± {stdev(values):.3f}" if len(values) > 1 else "")
