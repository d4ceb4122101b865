"""nnclr pretrain, ablate, report."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from nnclr_hub.cli.options import ReadingOptions, reads_images, reads_labels
from nnclr_hub.cli.programs import load_program
from nnclr_hub.cli.verbs import Json, check_file, check_folder, err, new_table, out, print_json, show
from nnclr_hub.errors import InvalidRequest
from nnclr_hub.report_page import START

INTERRUPTED = 130  # exit code of a program that Ctrl-C stopped

Data = Annotated[
    list[str], typer.Option("--data", help="Folder, tar, Parquet or address of images, or cifar10, ...; repeatable.")
]
Set = Annotated[list[str], typer.Option("--set", help="KEY=VALUE; repeatable. `--settings` lists the keys.")]
Plugin = Annotated[
    list[Path],
    typer.Option("--plugin", exists=True, help="Python file that registers parts of a run for --set; repeatable."),
]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1. Default: the GPU if there is one.")]


def register(app: typer.Typer) -> None:
    """Add the verbs."""
    app.command()(reads_images(reads_labels(pretrain)))
    app.command()(reads_labels(ablate))
    app.command()(report)


def pretrain(
    recipe: Annotated[str | None, typer.Argument(help="Name of a recipe; --recipes lists them.")] = None,
    data: Data = [],  # noqa: B006
    to: Annotated[Path | None, typer.Option("--out", help="Run folder.")] = None,
    settings: Set = [],  # noqa: B006
    plugins: Plugin = [],  # noqa: B006
    init: Annotated[
        str | None,
        typer.Option(
            "--init",
            help="Encoder to start from: a name, a folder, timm:..., or none for random weights. Default of `auto`: "
            "the free starter.",
        ),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in --out, which exists.")] = False,
    gpus: Annotated[int | None, typer.Option("--gpus", min=1, help="Processes, one per GPU; starts torchrun.")] = None,
    device: Device = None,
    minutes: Annotated[
        float | None,
        typer.Option(
            min=0,
            help="Save a checkpoint and stop after this many minutes; continue with --resume. The epochs of `auto` "
            "follow the time instead.",
        ),
    ] = None,
    same: Annotated[
        list[str],
        typer.Option("--same", help="Column of a table: only images with the same value are neighbors. Repeatable."),
    ] = [],  # noqa: B006
    not_same: Annotated[
        list[str],
        typer.Option(
            "--not-same",
            help="Column of a table, such as scanner, that vectors forget: only images with another value are "
            "neighbors. Repeatable.",
        ),
    ] = [],  # noqa: B006
    terms: Annotated[
        str | None, typer.Option("--terms", help="Terms of the images, such as cc-by-4.0, for the encoder's record.")
    ] = None,
    show_settings: Annotated[
        bool, typer.Option("--settings", help="Show the recipe with its settings, and exit.")
    ] = False,
    recipes: Annotated[bool, typer.Option("--recipes", help="List the recipes, and exit.")] = False,
    as_json: Json = False,
    *,
    labels: Any,
    reading: ReadingOptions,
) -> None:
    """Train an encoder on unlabeled images.

    `auto` selects a recipe for the images, the device and --minutes, and says why. Of a folder with train/,
    only that split is used.

    Example: nnclr pretrain auto --data photos --out runs/photos --set epochs=50

    Example: nnclr pretrain auto --data photos --out runs/photos --labels labels.csv

    Example: nnclr pretrain auto --data cells --out runs/cells --channels 0,1,2,3

    Example: nnclr pretrain small --data scans --out runs/scans --labels scans.csv --same patient --not-same scanner
    """
    program = load_program("training", "recipes")
    if recipes:
        known = {name: preset.summary for name, preset in program.RECIPES.items()}
        show(as_json, known, new_table("recipe", "description", rows=known.items()))
        return
    if recipe is None:
        raise InvalidRequest("Name a recipe, for example auto; `nnclr pretrain --recipes` lists them.")
    _load_plugins(plugins)
    if reading.given:
        from nnclr_hub.images.reading import PLAIN

        settings = [f"reading={reading.over(PLAIN)}", *settings]
    guides = {"same": same, "not_same": not_same}
    settings = [*settings, *(f"{name}={','.join(columns)}" for name, columns in guides.items() if columns)]
    chosen = program.find_recipe(recipe).with_settings(settings)
    if show_settings:
        rows = [(name, str(getattr(chosen, name)), meaning) for name, _, meaning in type(chosen).settings()]
        table = new_table("setting", "value", "meaning", rows=rows)
        show(as_json, chosen.values(), program.RECIPES[recipe].describe(recipe), table)
        return
    if not data or to is None:
        raise InvalidRequest(f"Give images and a run folder: nnclr pretrain {recipe} --data PHOTOS --out RUN.")
    if resume and not to.exists():  # a script that starts a run or continues it makes the folder first
        raise InvalidRequest(f"{to} does not exist, so it holds no run to continue; check --out, or omit --resume.")
    load_program("training", "data.named_sets").check_names(data)  # before torch is imported
    if init not in (None, "none"):
        from nnclr_hub.workbench.models import check_model

        check_model(init)
    if gpus is not None and gpus > 1:
        code = load_program("training", "distributed").launch(gpus, _without_gpus(sys.argv[1:]), device)
        if code:
            raise typer.Exit(code)
        return
    outcome = load_program("training", "pretrain").pretrain(
        chosen,
        data,
        to,
        plugins=plugins,
        resume=resume,
        init=init,
        labels=labels,
        device=device,
        minutes=minutes,
        terms=terms,
        console=err,
    )
    if as_json and os.environ.get("RANK", os.environ.get("SLURM_PROCID", "0")) == "0":
        verdict = None if outcome.verdict is None else outcome.verdict.record
        print_json({"run": str(to), **vars(outcome), "verdict": verdict})
    if not outcome.finished:
        raise typer.Exit(INTERRUPTED)


def _load_plugins(files: list[Path]) -> None:
    # this imports torch; without plug-ins an invalid name is reported sooner
    if files:
        load_program("training", "plugins").load_plugins(files)


def _without_gpus(arguments: list[str]) -> list[str]:
    kept, skip = [], False
    for argument in arguments:
        if not skip and argument != "--gpus" and not argument.startswith("--gpus="):
            kept.append(argument)
        skip = argument == "--gpus"
    return kept


def ablate(
    table: Annotated[
        str,
        typer.Argument(help="positives, crop_only, epochs, queue_size, k, soft, ...; or own, for rows of --row."),
    ],
    data: Data = [],  # noqa: B006
    to: Annotated[Path, typer.Option("--out", help="Folder for the tables.")] = Path("ablations"),
    recipe: Annotated[str, typer.Option("--recipe", help="Recipe that all rows share.")] = "small_cpu",
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="Runs per row.")] = 1,
    settings: Set = [],  # noqa: B006
    device: Device = None,
    rows: Annotated[list[str], typer.Option("--row", help="'LABEL: KEY=VALUE ...', a further row. Repeatable.")] = [],  # noqa: B006
    plugins: Plugin = [],  # noqa: B006
    *,
    labels: Any,
) -> None:
    """Train and evaluate the rows of a table of the paper. Run it again to continue.

    Example: nnclr ablate crop_only --data photos --recipe small_cpu --seeds 3 --out ablations

    Example: nnclr ablate own --data photos --row "tau .1: temperature=0.1" --row "tau .2: temperature=0.2"
    """
    _load_plugins(plugins)
    base = load_program("training", "recipes").find_recipe(recipe).with_settings(settings)
    load_program("training", "tables").find_table(table)
    check_folder(to / table, "results.json", "*/seed-*")
    if not data:
        raise InvalidRequest(f"Give images: nnclr ablate {table} --data PHOTOS.")
    load_program("training", "data.named_sets").check_names(data)
    program = load_program("training", "ablate")
    options = {"rows": rows, "labels": labels, "seeds": seeds, "device": device, "console": err}
    if program.ablate(table, base, data, to, **options) is None:
        raise typer.Exit(INTERRUPTED)


def report(
    runs: Annotated[list[Path], typer.Argument(exists=True, help="Run folders; several share one page.")],
    to: Annotated[Path | None, typer.Option("--out", help="Default: RUN/report.html, or ./comparison.html.")] = None,
) -> None:
    """Write an HTML report of one or several runs.

    Example: nnclr report runs/nnclr runs/simclr --out comparison.html
    """
    page = to or (runs[0] / "report.html" if len(runs) == 1 else Path("comparison.html"))
    page = page / "report.html" if page.is_dir() else page
    check_file(page, START.encode())
    out.print(load_program("training", "report").write_report(runs, page))
