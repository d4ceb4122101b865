"""nnclr models, info, export, onnx."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from nnclr_hub.cli.verbs import Backend, Json, out, print_json


def register(app: typer.Typer) -> None:
    """Adds the verbs."""
    app.command()(models)
    app.command()(info)
    app.command()(export)
    app.command()(onnx)


def models(as_json: Json = False) -> None:
    """List the published encoders, the default first.

    Example: nnclr models
    """
    from nnclr_hub.hub.registry import MODELS

    if as_json:
        print_json([asdict(model) for model in MODELS.values()])
        return
    table = Table(box=None, header_style="bold")
    for column in ("name", "architecture", "dim", "parameters", "input", "measured"):
        table.add_column(column, no_wrap=column == "name")
    for model in MODELS.values():
        measured = ", ".join(f"{name} {value:.3f}" for name, value in model.metrics.items())
        table.add_row(
            model.name,
            model.architecture,
            str(model.embed_dim),
            f"{model.parameters / 1e6:.1f} M",
            f"{model.input_size} px",
            measured,
        )
    out.print(table)


def info(
    source: Annotated[str, typer.Argument(help="A name of `nnclr models`, or any source.")],
    backend: Backend = "auto",
    as_json: Json = False,
) -> None:
    """Load an encoder, verify it, and say what it is.

    Example: nnclr info nnclr_resnet18_small_cpu_starter
    """
    from nnclr_hub.encoder.encoder import load_encoder
    from nnclr_hub.hub.registry import MODELS

    encoder = load_encoder(source, device="cpu", backend=backend)
    preprocessing = encoder.transform.preprocessing
    facts = {
        "source": source,
        "architecture": encoder.config.architecture if encoder.config else source.partition(":")[2],
        "embed_dim": encoder.embed_dim,
        "parameters": sum(parameter.numel() for parameter in encoder.backbone.parameters()),
        "fingerprint": encoder.fingerprint,
        "backend": encoder.backend.name,
        "preprocessing": asdict(preprocessing),
        "provenance": dict(encoder.config.nnclr) if encoder.config else {},
    }
    if source in MODELS:
        published = MODELS[source]
        facts |= {"license": published.license, "data": published.data, "metrics": dict(published.metrics)}
    if as_json:
        print_json(facts)
        return
    table = Table(box=None, show_header=False)
    for name, value in facts.items():
        table.add_row(f"[bold]{name}[/]", str(value))
    out.print(table)


def export(
    run: Annotated[Path, typer.Argument(help="A run folder with a checkpoint, or a model folder.")],
    folder: Annotated[Path, typer.Argument(help="The model folder to write.")],
    dtype: Annotated[str, typer.Option(help="fp32 or fp16.")] = "fp32",
    license: Annotated[str | None, typer.Option(help="Licence of the weights, for the card.")] = None,
    data: Annotated[str | None, typer.Option(help="The training pictures and their terms, for the card.")] = None,
) -> None:
    """Copy a run's encoder to a model folder that timm, transformers and nnclr load.

    Example: nnclr export runs/photos models/photos
    """
    from nnclr_hub.publish.export import export_run

    about = {name: value for name, value in (("license", license), ("data", data)) if value is not None}
    out.print(f"written: {export_run(run, folder, dtype=dtype, provenance=about)}")


def onnx(
    source: Annotated[str, typer.Argument(help="A name of `nnclr models`, a model folder, or any source.")],
    file: Annotated[Path, typer.Argument(help="The file to write, such as model.onnx.")],
) -> None:
    """Write an encoder as ONNX: pixels (N, S, S, 3) uint8 in, unit vectors out.

    Example: nnclr onnx nnclr_resnet18_small_cpu_starter model.onnx
    """
    from nnclr_hub.publish.onnx_file import export_onnx

    written = export_onnx(source, file)
    checked = "not compared with torch, for ONNX Runtime is not installed"
    if written.cosine is not None:
        checked = f"lowest cosine with torch's vectors {written.cosine:.6f}"
    out.print(f"written: {written.path} ({checked})")
