"""nnclr models, info, download, verify."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from textwrap import indent
from typing import Annotated, Any

import typer

from nnclr_hub.cli.verbs import Backend, Json, err, new_table, show
from nnclr_hub.errors import InvalidRequest
from nnclr_hub.hub.layout import WEIGHTS

_BY = {
    "registry": "as recorded by the registry",
    "address": "as pinned in its address",
    "Hub": "as announced by the Hub",
    "config.json": "as recorded by config.json",
    "nobody": "not recorded",
}
Source = Annotated[str, typer.Argument(help="A name from `nnclr models`, hf-hub:org/repo@revision, a folder, ...")]


def register(app: typer.Typer) -> None:
    """Add the verbs."""
    for verb in (models, info, download, verify):
        app.command()(verb)


def models(as_json: Json = False) -> None:
    """List the encoders with weights, the default first.

    Example: nnclr models
    """
    from nnclr_hub.hub.registry import ARCHITECTURES, MODELS

    table = new_table("name and accuracy on test splits", "network", "dim", "input", "weights")
    for model in MODELS.values():
        measured = (f"  {name} {value:.3f}" for name, value in model.metrics.items())
        table.add_row(
            "\n".join([model.name, *measured]),
            f"{model.architecture}\n{model.parameters / 1e6:.1f} M",
            str(model.embed_dim),
            f"{model.input.size} px",
            model.repository or ("here" if model.available else "not in this installation"),
        )
    value = [{**asdict(model), "available": model.available} for model in MODELS.values()]
    show(as_json, value, table, f"\nThese have no weights yet: {', '.join(ARCHITECTURES)}.")


def info(source: Source, backend: Backend = "auto", as_json: Json = False) -> None:
    """Load and verify an encoder, and show its properties.

    Example: nnclr info nnclr_resnet18_starter
    """
    from nnclr_hub.hub.layout import parameter_count
    from nnclr_hub.hub.registry import MODELS
    from nnclr_hub.hub.sources import resolve, split_appended
    from nnclr_hub.workbench.models import check_model

    found = resolve(split_appended(check_model(source, backend))[0])
    from nnclr_hub.encoder.loader import load_encoder  # imports torch, so a wrong source is reported first

    encoder = load_encoder(source, device="cpu", backend=backend)
    if found.folder is None:
        parameters = sum(one.numel() for one in encoder.backbone.parameters())
    else:  # random weights have as many as the trained ones
        parameters = parameter_count(found.folder, found.weights)
    facts: dict[str, Any] = {
        "source": source,
        "folder": str(found.folder) if found.folder else None,
        "verified_against": found.pins.by,
        "architecture": encoder.config.architecture if encoder.config else source.partition(":")[2],
        "embed_dim": encoder.embed_dim,
        "parameters": parameters,
        "fingerprint": encoder.fingerprint,
        "backend": encoder.backend.name,
        "preprocessing": encoder.transform.preprocessing.steps,
        "provenance": dict(encoder.config.nnclr) if encoder.config else {},
    }
    if source in MODELS:
        published = asdict(MODELS[source])
        facts |= {
            name: published[name]
            for name in ("license", "data", "recipe", "metrics", "limits", "sha256", "repository", "revision")
        }
    table = new_table("", "", show_header=False)
    for name, value in _for_people(facts).items():
        if value not in ({}, ""):
            table.add_row(name, _in_words(value))
    show(as_json, facts, table)


def _for_people(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts with the training as sentences, and scores that say which images they are from."""
    from nnclr_hub.publish.provenance import FORCED, describe_training

    shown = {name: value for name, value in facts.items() if name not in ("provenance", "metrics")}
    about = facts["provenance"]
    terms = {name: about[name] for name in ("license", "data", "data_terms") if name in about}
    return {
        **shown,
        **{name: value for name, value in terms.items() if name not in shown},
        **({"license or terms": "forced, for these weights or an earlier version"} if about.get(FORCED) else {}),
        **({"last training": describe_training(about, str(facts["source"]))} if about else {}),
        "scores on test splits": facts.get("metrics") or {},
        **({"scores of its run": _run_scores(about)} if about.get("metrics") else {}),
    }


def _run_scores(about: Mapping[str, Any]) -> str:
    # earlier versions did not record the splits
    splits = about.get("splits") or {}
    if not splits:
        return "on validation splits, where a set has one\n" + _in_words(about["metrics"])
    named = {name: splits.get(name.partition("/")[2]) for name in about["metrics"]}
    return _in_words(
        {f"{name} ({named[name]})" if named[name] else name: value for name, value in about["metrics"].items()}
    )


def _in_words(value: Any) -> str:
    if isinstance(value, Mapping):
        inner = {
            name: "\n" + indent(_in_words(one), "  ") if isinstance(one, Mapping) else f" {one}"
            for name, one in value.items()
            if one != {}
        }
        return "\n".join(f"{name}:{text}" for name, text in inner.items())
    return "none" if value is None else str(value)


def download(
    source: Source,
    to: Annotated[Path | None, typer.Option("--to", help="Also copy the model folder there.")] = None,
    as_json: Json = False,
) -> None:
    """Download and verify an encoder, and show where it is stored.

    Example: nnclr download hf-hub:org/repo@v1.0 --to models/repo
    """
    from nnclr_hub.hub.sources import keep, resolve

    found = resolve(source)
    folder = keep(found, to) if to is not None else found.folder
    if folder is None:
        from nnclr_hub.encoder.loader import load_encoder

        load_encoder(source, device="cpu")  # timm downloads when the model is created
    line = f"timm stores the weights of {source} in HF_HUB_CACHE"
    if folder is not None:
        line = f"{source} is in {folder}"
    elif found.seed is not None:
        line = f"{source} is generated from its seed; there is nothing to download"
    show(as_json, {"source": source, "folder": None if folder is None else str(folder)}, line)


def verify(source: Source, as_json: Json = False) -> None:
    """Verify an encoder's files: their hashes, that every weight exists, and that none is NaN.

    Example: nnclr verify ./my-model
    """
    from nnclr_hub.hub.sources import PYTHON, resolve
    from nnclr_hub.hub.sources import verify as hash_files

    if source.startswith(PYTHON):
        raise InvalidRequest(
            f"{source} is code, whose files are not recorded; verify a model folder or a name of `nnclr models`."
        )
    files = hash_files(source)
    from nnclr_hub.encoder.loader import load_encoder  # imports torch, so a wrong name is reported first

    missing = sorted(resolve(source).config.sha256.keys() - {one.name for one in files} - {WEIGHTS})
    load_encoder(source, device="cpu", backend="torch")  # refuses weights that are missing, unexpected or NaN
    lines = [f"{one.sha256}  {one.name}  ({_BY[one.pinned_by]})" for one in files]
    lines.append("All weights of the architecture exist and are finite, and there are no others.")
    show(as_json, {"source": source, "files": [asdict(one) for one in files], "missing": missing}, *lines)
    if missing and not as_json:
        err.print(f"Recorded files are missing ({', '.join(missing)}); the encoder loads without them.", soft_wrap=True)
    if not as_json and not any(one.pinned_by in ("registry", "address") for one in files):
        err.print(
            "These hashes are recorded only in the folder itself: they detect damage, but not tampering.",
            soft_wrap=True,
        )
