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

from nnclr_hub.encoder.backbones import create_backbone, pooling, timm_name
from nnclr_hub.encoder.preprocess import Preprocessing
from nnclr_hub.errors import InvalidRequest, ModelFilesMissing, WeightsMismatch
from nnclr_hub.hub.layout import CARD, CONFIG, FORMAT_VERSION, HEADS, WEIGHTS, ModelConfig, read_weights, sha256_of
from nnclr_hub.hub.sources import resolve
from nnclr_hub.publish.card import model_card

if TYPE_CHECKING:
    from torch import Tensor, nn

DTYPES = ("fp32", "fp16")
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
    """Writes a model folder; an older one in its place is replaced only when the new one is whole.

    Args:
        backbone: as `create_backbone(architecture, model_args=...)` makes it.
        folder: where to.
        architecture: a timm name.
        model_args: what `create_backbone` was given.
        preprocessing: what the encoder wants done to pictures.
        heads: by name, kept beside the encoder for going on with its training.
        provenance: how it came to be, for config.json's block "nnclr"; "metrics" in it go on the card.
        dtype: "fp32" or "fp16".

    Raises:
        InvalidRequest: another dtype.
        WeightsMismatch: weights that are not finite.
    """
    state = _tensors({"": backbone}, dtype)
    head_state = _tensors(heads or {}, "fp32")
    name = timm_name(architecture)
    about = {"format_version": FORMAT_VERSION, **(provenance or {})}
    config = ModelConfig(
        architecture=name,
        model_args=dict(model_args or {}),
        num_features=int(backbone.num_features),  # type: ignore[arg-type]
        global_pool=pooling(backbone),
        pretrained_cfg=_pretrained_cfg(backbone, preprocessing),
        nnclr=about,
    )
    return _write(Path(folder), config, state, head_state)


def export_run(run: Path, folder: Path, *, dtype: str = "fp32", provenance: Mapping[str, Any] | None = None) -> Path:
    """Copies a run's encoder, or any model folder, to a folder of its own; fp16 halves it.

    Args:
        run: a run folder, or a model folder.
        folder: where to.
        dtype: "fp32" or "fp16".
        provenance: added to what the source records, such as "license", "data" and "metrics".

    Raises:
        ModelFilesMissing: the run has no encoder yet.
        InvalidRequest: the target holds something else.
        TamperedModel, WeightsMismatch: the source is not whole.
    """
    run, folder = Path(run), Path(folder)
    source = run / "encoder" if (run / "encoder").is_dir() else run
    if not (source / CONFIG).is_file():
        raise ModelFilesMissing(f"{run} holds no encoder: give a run folder with a checkpoint, or a model folder.")
    if folder.exists() and any(folder.iterdir()) and not (folder / CONFIG).is_file():
        raise InvalidRequest(f"{folder} holds something else: name a new folder.")
    found = resolve(f"local-dir:{source}")
    config = found.config
    create_backbone(config.architecture, model_args=config.model_args)  # the config must at least build
    state = {key: _as(dtype, value) for key, value in read_weights(source).items()}
    heads = read_weights(source, HEADS) if (source / HEADS).is_file() else {}
    config = replace(config, nnclr={**config.nnclr, **(provenance or {})})
    return _write(folder, config, state, heads)


def _tensors(modules: Mapping[str, nn.Module], dtype: str) -> dict[str, Tensor]:
    """State of modules under "name." prefixes, contiguous on the CPU, in one order."""
    state = {}
    for prefix, module in modules.items():
        for key, value in module.state_dict().items():
            name = f"{prefix}.{key}" if prefix else key
            if value.is_floating_point() and not value.isfinite().all():
                raise WeightsMismatch(
                    f"{name} holds NaN or infinity: this encoder is broken; export an older checkpoint."
                )
            state[name] = _as(dtype, value.detach().cpu())
    return dict(sorted(state.items()))


def _as(dtype: str, value: Tensor) -> Tensor:
    import torch

    if dtype not in DTYPES:
        raise InvalidRequest(f"dtype {dtype!r} is none of {', '.join(DTYPES)}.")
    if not value.is_floating_point():
        return value.contiguous()
    return value.to(torch.float16 if dtype == "fp16" else torch.float32).contiguous()


def _pretrained_cfg(backbone: nn.Module, preprocessing: Preprocessing) -> dict[str, Any]:
    """timm's names, every one of them set: timm's defaults hold the settings of its supervised weights."""
    timm_cfg: Mapping[str, Any] = backbone.pretrained_cfg  # type: ignore[assignment]
    size = preprocessing.input_size
    return {
        "tag": "nnclr",
        "custom_load": False,
        "input_size": [3, size, size],
        "fixed_input_size": bool(timm_cfg.get("fixed_input_size", False)),
        "interpolation": preprocessing.interpolation,
        "crop_pct": preprocessing.crop_pct,
        "crop_mode": "center",
        "mean": list(preprocessing.mean),
        "std": list(preprocessing.std),
        "num_classes": 0,
        "pool_size": timm_cfg.get("pool_size"),
        "first_conv": timm_cfg.get("first_conv"),
        "classifier": timm_cfg.get("classifier"),
        "license": "apache-2.0",
        "paper_ids": "arXiv:2104.14548",
        "paper_name": PAPER,
    }


def _write(folder: Path, config: ModelConfig, state: dict[str, Tensor], heads: dict[str, Tensor]) -> Path:
    """Writes all files beside the folder, then moves them into it, the config last."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    half = Path(tempfile.mkdtemp(prefix=".export-", dir=folder.parent))
    try:
        # exactly this metadata: with more keys safetensors orders them by chance, and the bytes differ
        save_file(state, half / WEIGHTS, metadata={"format": "pt"})
        hashes = {WEIGHTS: sha256_of(half / WEIGHTS)}
        if heads:
            save_file(heads, half / HEADS, metadata={"format": "pt"})
            hashes[HEADS] = sha256_of(half / HEADS)
        about = {key: value for key, value in config.nnclr.items() if key != "sha256"} | {"sha256": hashes}
        config = replace(config, nnclr=about)
        (half / CONFIG).write_text(config.to_json())
        (half / CARD).write_text(model_card(folder.resolve().name, config))
        if not heads:
            (folder / HEADS).unlink(missing_ok=True)
        for name in (HEADS, WEIGHTS, CARD, CONFIG):
            if (half / name).exists():
                os.replace(half / name, folder / name)
    finally:
        shutil.rmtree(half, ignore_errors=True)
    return folder
