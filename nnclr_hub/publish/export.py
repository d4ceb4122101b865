"""Encoders to model folders.

The same encoder gives the same bytes each time: safetensors with the one metadata key that keeps it
so, and a config without times or paths.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nnclr_hub.encoder.backbones import create_backbone, default_side, load_state, sized, timm_name
from nnclr_hub.encoder.network_output import pooling, vector_length
from nnclr_hub.encoder.preprocessing import Preprocessing
from nnclr_hub.errors import InvalidRequest, ModelError, ModelFilesMissing, WeightsMismatch
from nnclr_hub.hub.layout import (
    CARD,
    CONFIG,
    FORMAT_VERSION,
    HEADS,
    SUPPORT_SET,
    WEIGHTS,
    ModelConfig,
    read_config,
    read_weights,
    sha256_of,
)
from nnclr_hub.hub.sources import resolve
from nnclr_hub.publish.card import NO_LICENSE, is_edited, model_card

if TYPE_CHECKING:
    from torch import Tensor, nn

DTYPES = ("fp32", "fp16")
STAGING = ".export-"  # where files are written before they are moved into place
PAPER = "With a Little Help from My Friends: Nearest-Neighbor Contrastive Learning of Visual Representations"


def export_model(
    backbone: nn.Module,
    folder: Path,
    *,
    architecture: str,
    model_args: Mapping[str, Any] | None = None,
    preprocessing: Preprocessing,
    heads: Mapping[str, nn.Module] | None = None,
    provenance: Mapping[str, Any] | None = None,
    dtype: str = "fp32",
) -> Path:
    """Write a model folder; an older one in its place is replaced only when the new one is whole, but for a
    README.md that somebody edited, which stays.

    Args:
        backbone: as `create_backbone(architecture, model_args=...)` makes it.
        folder: where to.
        architecture: a timm name.
        model_args: what `create_backbone` was given.
        preprocessing: what the encoder wants done to images.
        heads: by name, kept beside the encoder for going on with its training.
        provenance: how it came to be, for config.json's block "nnclr"; "metrics" in it go on the card.
        dtype: "fp32" or "fp16".

    Raises:
        InvalidRequest: another dtype, provenance that JSON cannot hold, or the target holds something else.
        ModelError: the target cannot be written.
        WeightsMismatch: weights that are not finite, or not those of `architecture` with `model_args`.
    """
    require_free(Path(folder))
    state = _tensors({"": backbone}, dtype)
    head_state = _tensors(heads or {}, "fp32")
    name = timm_name(architecture)
    arguments = _arguments(name, model_args, preprocessing)
    _check_that_it_loads(name, arguments, state)
    about = {"format_version": FORMAT_VERSION, **(provenance or {})}
    config = ModelConfig(
        architecture=name,
        model_args=arguments,
        num_features=vector_length(backbone),
        global_pool=pooling(backbone),
        pretrained_cfg=_pretrained_cfg(backbone, preprocessing, about),
        nnclr=about,
    )
    return _write(Path(folder), config, state, {HEADS: head_state})


def export_run(
    run: Path,
    folder: Path,
    *,
    dtype: str = "fp32",
    provenance: Mapping[str, Any] | None = None,
    weights: Mapping[str, Tensor] | None = None,
    heads: Mapping[str, Tensor] | None = None,
    support_set: Tensor | None = None,
) -> Path:
    """Copy a run's encoder, or any model folder, to a folder of its own; fp16 halves it. See `export_model`.

    Args:
        run: a run folder, or a model folder.
        folder: where to.
        dtype: "fp32" or "fp16".
        provenance: added to what the source records, such as "license", "data" and "metrics".
        weights: instead of the source's, for the same architecture, such as the momentum encoder's.
        heads: instead of the source's.
        support_set: (M, D) float, rows to keep beside the encoder.

    Raises:
        ModelFilesMissing: the run has no encoder yet.
        InvalidRequest: the target holds something else.
        ModelError: the target cannot be written.
        TamperedModel, WeightsMismatch: the source is not whole.
    """
    run, folder = Path(run), Path(folder)
    source = encoder_of(run)
    require_free(folder)
    config = resolve(f"local-dir:{source}").config
    found = weights if weights is not None else read_weights(source)
    state = {key: _as(dtype, key, value.cpu()) for key, value in sorted(found.items())}
    _check_that_it_loads(config.architecture, config.model_args, state)
    if heads is None:
        heads = read_weights(source, HEADS) if (source / HEADS).is_file() else {}
    beside = {HEADS: {key: _as("fp32", key, value.cpu()) for key, value in sorted(heads.items())}}
    if support_set is not None:
        beside[SUPPORT_SET] = {"bank": _as(dtype, "The support set", support_set.cpu())}
    about = {**config.nnclr, **(provenance or {})}
    cfg = {**config.pretrained_cfg, "license": str(about.get("license", NO_LICENSE))}
    config = replace(config, nnclr=about, pretrained_cfg=cfg)
    return _write(folder, config, state, beside)


def encoder_of(run: Path) -> Path:
    """Return the model folder of a run, or the model folder itself.

    Raises:
        ModelFilesMissing: it is neither.
    """
    source = run / "encoder" if (run / "encoder").is_dir() else run
    if not (source / CONFIG).is_file():
        raise ModelFilesMissing(
            f"{run} does not contain an encoder; expected a run folder with a checkpoint, or a model folder."
        )
    return source


def _tensors(modules: Mapping[str, nn.Module], dtype: str) -> dict[str, Tensor]:
    """State of modules under "name." prefixes, contiguous on the CPU, in one order."""
    state = {}
    for prefix, module in modules.items():
        for key, value in module.state_dict().items():
            name = f"{prefix}.{key}" if prefix else key
            state[name] = _as(dtype, name, value.detach().cpu())
    return dict(sorted(state.items()))


def _as(dtype: str, name: str, value: Tensor) -> Tensor:
    import torch

    if dtype not in DTYPES:
        raise InvalidRequest(f"dtype must be one of {', '.join(DTYPES)}, got {dtype!r}.")
    if not value.is_floating_point():
        return value.contiguous()
    if not value.isfinite().all():
        raise WeightsMismatch(f"{name} holds NaN or infinity: this encoder is broken; export an older checkpoint.")
    converted = value.to(torch.float16 if dtype == "fp16" else torch.float32).contiguous()
    if not converted.isfinite().all():
        raise WeightsMismatch(f"{name} holds {value.abs().max():g}, too large for fp16: export it as fp32.")
    return converted


def _arguments(name: str, model_args: Mapping[str, Any] | None, preprocessing: Preprocessing) -> dict[str, Any]:
    """model_args, with the input's size where parameters depend on it: transformers needs it written."""
    arguments = dict(model_args or {})
    if sized(name) and preprocessing.input_size != default_side(name):
        arguments.setdefault("img_size", preprocessing.input_size)
    return arguments


def _check_that_it_loads(name: str, arguments: Mapping[str, Any], state: Mapping[str, Tensor]) -> None:
    """What config.json will say must build a network that takes the weights."""
    import torch

    with torch.random.fork_rng(devices=[]):  # an export in the middle of a training run must not change it
        load_state(create_backbone(name, model_args=arguments), state, "this encoder")


def require_free(folder: Path) -> None:
    """Refuse a target that holds files, unless they are a model folder that we wrote.

    Raises:
        InvalidRequest: it does.
    """
    if not folder.exists() or (folder.is_dir() and all(path.name.startswith(STAGING) for path in folder.iterdir())):
        return
    try:
        ours = bool(read_config(folder).nnclr)
    except (ModelFilesMissing, WeightsMismatch):
        ours = False
    if not ours:
        raise InvalidRequest(f"{folder} contains other files; use a new folder.")


def _pretrained_cfg(backbone: nn.Module, preprocessing: Preprocessing, about: Mapping[str, Any]) -> dict[str, Any]:
    """timm's names, every one of them set: timm's defaults hold the settings of its supervised weights."""
    timm_cfg: Mapping[str, Any] = backbone.pretrained_cfg  # type: ignore[assignment]
    size = preprocessing.input_size
    foreign = "converted" in about  # another project's weights must not be called ours
    paper = {} if foreign else {"paper_ids": "arXiv:2104.14548", "paper_name": PAPER}
    return {
        "tag": "converted" if foreign else "nnclr",
        "custom_load": False,
        "input_size": [3, size, size],
        "fixed_input_size": bool(timm_cfg.get("fixed_input_size", False)),
        "interpolation": preprocessing.interpolation,
        "crop_pct": preprocessing.crop_pct,
        "crop_mode": preprocessing.crop_mode,
        "mean": list(preprocessing.mean),
        "std": list(preprocessing.std),
        "num_classes": 0,
        "pool_size": timm_cfg.get("pool_size"),
        "first_conv": timm_cfg.get("first_conv"),
        "classifier": timm_cfg.get("classifier"),
        "license": str(about.get("license", NO_LICENSE)),
        **paper,
    }


def _write(
    folder: Path, config: ModelConfig, state: dict[str, Tensor], beside: Mapping[str, dict[str, Tensor]]
) -> Path:
    """Write all files to a folder inside, then moves them into place, the config last.

    Until the moves begin an older model stays as it was; should the machine stop between two of them, the
    hashes in config.json tell, and the folder is refused rather than half old and half new.

    Raises:
        ModelError: the disk is full, or the folder cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for left_over in folder.glob(f"{STAGING}*"):
            shutil.rmtree(left_over, ignore_errors=True)
        half = Path(tempfile.mkdtemp(prefix=STAGING, dir=folder))  # inside: the folder may be a mount of its own
        try:
            _write_inside(half, folder, config, state, beside)
        finally:
            shutil.rmtree(half, ignore_errors=True)
    except OSError as error:
        raise ModelError(
            f"{folder} cannot be written ({error.strerror or error}); free some space, or use another folder."
        ) from error
    return folder


def _write_inside(
    half: Path, folder: Path, config: ModelConfig, state: dict[str, Tensor], beside: Mapping[str, dict[str, Tensor]]
) -> None:
    from safetensors.torch import save

    files = {WEIGHTS: state, **{name: tensors for name, tensors in beside.items() if tensors}}
    for name, tensors in files.items():
        # exactly this metadata: with more keys safetensors orders them by chance, and the bytes differ;
        # and not save_file, whose files their owner alone can read
        (half / name).write_bytes(save(tensors, metadata={"format": "pt"}))
    hashes = {name: sha256_of(half / name) for name in files}
    config = replace(config, nnclr={**config.nnclr, "sha256": hashes})
    _write_text(half / CONFIG, config)
    if not is_edited(folder / CARD):
        (half / CARD).write_text(model_card(folder.resolve().name, config), "utf-8")
    written = [path.name for path in half.iterdir()]
    for name in written:
        with (half / name).open("rb+") as file:
            os.fsync(file.fileno())
    for name in (HEADS, SUPPORT_SET):
        if name not in files:
            (folder / name).unlink(missing_ok=True)
    last = (WEIGHTS, CARD, CONFIG)
    for name in sorted(written, key=lambda name: last.index(name) if name in last else -1):
        os.replace(half / name, folder / name)


def _write_text(path: Path, config: ModelConfig) -> None:
    try:
        path.write_text(config.to_json(), "utf-8")
    except (TypeError, ValueError) as error:
        raise InvalidRequest(f"The model's provenance or arguments cannot be written as JSON: {error}.") from error
