"""nnclr export, onnx, card, publish, convert."""

from __future__ import annotations

from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

from nnclr_hub.cli.pretraining import Device
from nnclr_hub.cli.programs import load_program
from nnclr_hub.cli.verbs import Json, err, print_json, show
from nnclr_hub.errors import InvalidRequest
from nnclr_hub.json_text import parse_json
from nnclr_hub.plural import counted
from nnclr_hub.terminal import print_data

Folder = Annotated[Path, typer.Argument(help="A model folder.")]
License = Annotated[str | None, typer.Option(help="License of the weights, for the card.")]
TrainedOn = Annotated[
    str | None, typer.Option("--trained-on", help="The training images and their terms, for the card.")
]


def register(app: typer.Typer) -> None:
    """Add the verbs."""
    app.command()(export)
    app.command()(onnx)
    app.command()(card)
    app.command()(publish)
    app.command()(convert)


def export(
    run: Annotated[Path, typer.Argument(help="A run folder with a checkpoint, or a model folder.")],
    folder: Annotated[Path, typer.Argument(help="The model folder to write.")],
    check: Annotated[
        list[str], typer.Option("--data", help="The run's data, to measure its 20-NN accuracy again. Repeatable.")
    ] = [],  # noqa: B006
    dtype: Annotated[str, typer.Option(help="fp32 or fp16.")] = "fp32",
    license: License = None,
    trained_on: TrainedOn = None,
    terms: Annotated[
        str | None, typer.Option("--data-terms", help="Terms of the training images, such as cc-by-4.0.")
    ] = None,
    force_license: Annotated[
        bool,
        typer.Option(
            "--force-license",
            help="Accept a license that the parents' or the images' terms do not allow, and record that.",
        ),
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Export an encoder that is worse than the one it started from.")
    ] = False,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Write the encoder of a run as a model folder for timm, transformers and nnclr.

    Example: nnclr export runs/photos models/photos --data photos --license apache-2.0
    """
    given = {"license": license, "data": trained_on, "data_terms": terms}
    about = {name: value for name, value in given.items() if value is not None}
    done = load_program("training", "run_export").export(
        run,
        folder,
        data=check,
        dtype=dtype,
        provenance=about,
        force_license=force_license,
        force=force,
        device=device,
        console=err,
    )
    found = {"metrics": done.metrics, "rechecked": done.rechecked}
    lines = [f"Verdict: {done.verdict}" if done.verdict else ""]
    if done.metrics:
        lines.append("The card shows the accuracies of the run, from 0 to 1, as PROTOCOL/IMAGES.")
    for name, value in done.metrics.items():
        again = done.rechecked[name]
        checked = "not checked; --data measures it again" if again is None else f"measured again, {again}"
        lines.append(f"{name} {value}: {checked}")
    value = {"verdict": done.verdict or None, "folder": str(done.folder), **found}
    show(as_json, value, *lines, f"Wrote {done.folder}")


def onnx(
    source: Annotated[str, typer.Argument(help="A name from `nnclr models`, a model folder, or any other source.")],
    file: Annotated[Path, typer.Argument(help="The file to write, such as model.onnx.")],
    as_json: Json = False,
) -> None:
    """Write an encoder as ONNX: pixels (N, S, S, 3) uint8 in, unit vectors out.

    Example: nnclr onnx nnclr_resnet18_starter model.onnx
    """
    for package in ("onnx", "onnxscript"):  # before torch is imported
        if find_spec(package) is None:
            raise ModuleNotFoundError(name=package)
    from nnclr_hub.publish.export import export_onnx

    written = export_onnx(source, file)
    checked = "not compared with torch, since ONNX Runtime is not installed"
    if written.cosine is not None:
        checked = f"lowest cosine with torch's vectors {written.cosine:.6f}"
    value = {"written": str(written.path), "cosine": written.cosine}
    show(as_json, value, f"Wrote {written.path} ({checked})")


def card(
    folder: Folder,
    repository: Annotated[
        str | None, typer.Option("--repo", help="ORGANIZATION/NAME on the Hub for the code examples.")
    ] = None,
    revision: Annotated[str | None, typer.Option("--tag", help="Tag or commit for the code examples.")] = None,
    write: Annotated[bool, typer.Option("--write", help="Write README.md instead of printing it.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Overwrite a card that was edited by hand.")] = False,
    as_json: Json = False,
) -> None:
    """Show or write the model card: usage, results, terms and citation.

    Example: nnclr card models/photos --write

    Example: nnclr card nnclr_resnet18_starter
    """
    from nnclr_hub.hub.layout import read_config
    from nnclr_hub.hub.registry import MODELS

    if not folder.exists() and str(folder) in MODELS:
        folder = MODELS[str(folder)].folder or folder
    if revision is not None and repository is None:
        raise InvalidRequest(f"--tag {revision} needs a repository; add --repo ORGANIZATION/NAME.")
    if overwrite and not write:
        raise InvalidRequest("--overwrite needs --write.")
    config = read_config(folder)  # before torch is imported
    from nnclr_hub.publish.card import model_card, require_repository, write_card

    if repository is not None:
        require_repository(repository)
    if write:
        written = write_card(folder, repository=repository, revision=revision, overwrite=overwrite)
        show(as_json, {"written": str(written)}, f"Wrote {written}")
        return
    name = repository.partition("/")[2] if repository else folder.resolve().name
    text = model_card(name, config, repository=repository, revision=revision)
    print_json({"card": text}) if as_json else print_data(text)


def publish(
    folder: Folder,
    repository: Annotated[str, typer.Argument(help="ORGANIZATION/NAME on the Hugging Face Hub.")],
    private: Annotated[bool, typer.Option("--private", help="Make a new repository private.")] = False,
    tag: Annotated[str | None, typer.Option(help="Name of the release, such as v1.0; never moved.")] = None,
    pr: Annotated[bool, typer.Option("--pr", help="Publish as a pull request.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be done, and change nothing.")] = False,
    overwrite_card: Annotated[
        bool, typer.Option("--overwrite-card", help="Replace a README on the Hub that was edited.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Publish a model folder on the Hugging Face Hub. Run it again to send only what changed.

    Needs HF_TOKEN, or `hf auth login`. A mirror without Xet needs HF_HUB_DISABLE_XET=1.

    Example: nnclr publish models/photos my-name/photos --tag v1.0 --dry-run
    """
    from nnclr_hub.hub.layout import read_config

    read_config(folder)  # before torch is imported
    from nnclr_hub.publish.upload import publish_model

    done = publish_model(
        folder, repository, private=private, tag=tag, pr=pr, dry_run=dry_run, overwrite_card=overwrite_card
    )
    verbs = {"create": "created", "send": "sent", "remove": "removed", "set": "set"}
    if dry_run:
        verbs = {verb: f"would {verb}" for verb in verbs}
    lines = [f"{verbs['create']} {repository} ({'private' if private else 'public: everyone can load it'})"]
    lines = lines if done.created else []
    lines += [f"{verbs['send']} {name} ({size:,} bytes)" for name, size in done.sent.items()]
    lines += [f"{verbs['remove']} {name}" for name in done.removed]
    if not done.sent and not done.removed:
        lines.append("Nothing has changed; no commit was made.")
    if done.tag:
        lines.append(f"{verbs['set']} the tag {done.tag}" if done.tagged else f"the tag {done.tag} exists already")
    lines += [f"pull request {done.pull_request}"] if done.pull_request else []
    lines += [] if dry_run else [f'load_encoder("{done.source}")']
    show(as_json, {**asdict(done), "source": done.source, "dry_run": dry_run}, *lines)


def convert(
    checkpoint: Annotated[Path, typer.Argument(exists=True, help="A .pth, .ckpt or .safetensors of another project.")],
    folder: Annotated[Path, typer.Argument(help="The model folder to write.")],
    branch: Annotated[
        str | None, typer.Option(help="online, momentum, teacher, student, or a part of the file by its name.")
    ] = None,
    architecture: Annotated[str | None, typer.Option(help="timm's name, if the weights do not show it.")] = None,
    arguments: Annotated[
        list[str], typer.Option("--arg", help="NAME=VALUE of the architecture, such as num_heads=12; repeatable.")
    ] = [],  # noqa: B006
    input_size: Annotated[int | None, typer.Option(help="Side of the input in pixels.", min=1)] = None,
    license: License = None,
    trained_on: TrainedOn = None,
    as_json: Json = False,
) -> None:
    """Convert a checkpoint of another project to a model folder.

    MoCo v1, v2 and v3, SimSiam, SwAV, Barlow Twins, VICReg, MAE, DINO, DINOv2, lightly, solo-learn, torchvision, timm.
    Code in the file is never run. A file with unknown or missing weights is refused.

    Example: nnclr convert dino_deitsmall16_pretrain.pth models/dino --license apache-2.0
    """
    from nnclr_hub.publish.convert import convert_checkpoint

    done = convert_checkpoint(
        checkpoint,
        folder,
        branch=branch,
        architecture=architecture,
        model_args=dict(_assignment(text) for text in arguments),
        input_size=input_size,
        license=license,
        data=trained_on,
    )
    lines = [f"{done.layout}, {done.branch}: {done.architecture} {done.model_args or ''}".rstrip()]
    lines.append(f"kept {done.kept} tensors")
    for name, count in done.dropped.items():
        lines.append(f"dropped {name}" + (f" ({counted(count, 'tensor')})" if count else ""))
    show(as_json, {**asdict(done), "folder": str(done.folder)}, *lines, f"Wrote {done.folder}")


def _assignment(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals:
        raise InvalidRequest(f"--arg takes NAME=VALUE, for example num_heads=12; got {text!r}.")
    try:
        return name, parse_json(value)
    except ValueError:
        return name, value
