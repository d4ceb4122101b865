"""nnclr export, card."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from nnclr_hub.cli.pretraining import Device
from nnclr_hub.cli.programs import load_program
from nnclr_hub.cli.verbs import Json, err, out, print_json

Folder = Annotated[Path, typer.Argument(help="A model folder.")]
License = Annotated[str | None, typer.Option(help="Licence of the weights, for the card.")]


def register(app: typer.Typer) -> None:
    """Adds the verbs."""
    app.command()(export)
    app.command()(card)


def export(
    run: Annotated[Path, typer.Argument(help="A run folder with a checkpoint, or a model folder.")],
    folder: Annotated[Path, typer.Argument(help="The model folder to write.")],
    encoder: Annotated[
        str | None, typer.Option(help="online or momentum; default: the one that the run scored.")
    ] = None,
    check: Annotated[
        list[str], typer.Option("--data", help="The run's data, to measure its 20-NN again; repeatable.")
    ] = [],  # noqa: B006
    dtype: Annotated[str, typer.Option(help="fp32 or fp16.")] = "fp32",
    support_set: Annotated[bool, typer.Option("--support-set", help="Keep the run's support set beside it.")] = False,
    license: License = None,
    pictures: Annotated[
        str | None, typer.Option("--trained-on", help="The training pictures and their terms, for the card.")
    ] = None,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Make a model folder of a run's encoder, which timm, transformers and nnclr load.

    Example: nnclr export runs/photos models/photos --data photos --license apache-2.0
    """
    given = {"license": license, "data": pictures}
    about = {name: value for name, value in given.items() if value is not None}
    done = load_program("training", "exporting").export(
        run,
        folder,
        encoder=encoder,
        data=check,
        dtype=dtype,
        support_set=support_set,
        provenance=about,
        device=device,
        say=err,
    )
    if as_json:
        print_json({"folder": str(done.folder), "metrics": done.metrics, "rechecked": done.rechecked})
        return
    for name, value in done.metrics.items():
        again = done.rechecked[name]
        out.print(f"{name} {value}: " + ("not checked" if again is None else f"measured again, {again}"))
    out.print(f"written: {done.folder}")


def card(
    folder: Folder,
    repository: Annotated[
        str | None, typer.Option("--repo", help="ORGANISATION/NAME on the Hub that the snippets load.")
    ] = None,
    revision: Annotated[str | None, typer.Option("--tag", help="Tag or commit that they name.")] = None,
    write: Annotated[bool, typer.Option("--write", help="Write README.md instead of printing it.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Even if it was edited by hand.")] = False,
) -> None:
    """Show or write the model card: how to load it, what was measured, the terms, how to cite it.

    Example: nnclr card models/photos --write
    """
    from nnclr_hub.hub.layout import read_config
    from nnclr_hub.publish.card import model_card, write_card

    if write:
        written = write_card(folder, repository=repository, revision=revision, overwrite=overwrite)
        out.print(f"written: {written}")
        return
    name = repository.partition("/")[2] if repository else folder.resolve().name
    typer.echo(model_card(name, read_config(folder), repository=repository, revision=revision), nl=False)
