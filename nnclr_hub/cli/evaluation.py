"""nnclr eval."""

from __future__ import annotations

import inspect
import shlex
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from nnclr_hub.cli.options import ReadingOptions, reads_images, reads_labels
from nnclr_hub.cli.pretraining import INTERRUPTED, Device
from nnclr_hub.cli.programs import load_program
from nnclr_hub.cli.verbs import Backend, Json, check_folder, err, new_table, out, print_json

Data = Annotated[
    list[str], typer.Option("--data", help="Folder with train/ and test/, or cifar10, pets, ...; repeatable.")
]


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command(name="eval")(reads_images(reads_labels(evaluate)))


def evaluate(
    protocols: Annotated[str, typer.Argument(help="One or several, comma-separated. See --protocols.")] = "",
    sources: Annotated[
        list[str],
        typer.Argument(
            help="Encoders: names, folders, timm:..., random:..., NAME+shape; floors: pixels, hog, shape, color, "
            "hog+color."
        ),
    ] = [],  # noqa: B006
    data: Data = [],  # noqa: B006
    to: Annotated[Path, typer.Option("--out", help="Folder for results.json and results.md.")] = Path("results"),
    settings: Annotated[
        list[str], typer.Option("--set", help="KEY=VALUE; repeatable. `--protocols` lists the keys.")
    ] = [],  # noqa: B006
    queries: Annotated[str | None, typer.Option(help="retrieval: part, folder or table of queries.")] = None,
    gallery: Annotated[str | None, typer.Option(help="retrieval: part, folder or table to search.")] = None,
    crops: Annotated[
        int,
        typer.Option(min=1, max=128, help="Average N crops per image; for protocols on frozen features."),
    ] = 1,
    device: Device = None,
    backend: Backend = "torch",
    show: Annotated[
        bool, typer.Option("--protocols", help="List the protocols with their settings, and exit.")
    ] = False,
    as_json: Json = False,
    *,
    labels: Any,
    reading: ReadingOptions,
) -> None:
    """Evaluate encoders by the protocols of the paper. Run it again to continue.

    Example: nnclr eval knn,linear,few_shot runs/photos/encoder pixels --data photos --out results
    """
    load_program("training", "data.named_sets").check_names(data)  # before torch is imported
    program = load_program("training", "evals.evaluate")
    if show:
        table = new_table("protocol", "settings", "description")
        for name, function in program.PROTOCOLS.items():
            values = " ".join(f"{key}={value}" for key, value in program.settings_of(name).items())
            about = inspect.getdoc(sys.modules[function.__module__]) or ""
            table.add_row(name, values, about.splitlines()[0])
        out.print(table)
        return
    check_folder(to, "results.json", "each", inputs=map(Path, data))
    sources = [reading.within(one) or one for one in sources]
    try:
        records = load_program("training", "evals.evaluate").evaluate(
            [name for name in protocols.split(",") if name],
            sources,
            data,
            to,
            settings=settings,
            queries=queries,
            gallery=gallery,
            device=device,
            crops=crops,
            labels=labels,
            backend=backend,
            command="nnclr " + shlex.join(sys.argv[1:]),
            console=err,
        )
    except load_program("training", "interrupt").Interrupted as stopped:
        err.print(str(stopped))
        raise typer.Exit(INTERRUPTED) from None
    if as_json:
        print_json([asdict(one) for one in records])
        return
    results = load_program("training", "evals.results")
    for table in results.tables(records, results.Results(to).differences(records)):
        out.print(table)
    err.print(f"Wrote {to / 'results.json'}, {to / 'results.md'}")
