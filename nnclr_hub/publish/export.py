"""Write model folders.

The same encoder always gives the same bytes: the safetensors files have a single metadata key, and the config does not
contain times or paths.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nnclr_hub.encoder.backbones import backbone_with_weights, default_side, sized, timm_name
from nnclr_hub.encoder.encoder import Encoder
from nnclr_hub.encoder.network_output import pooling, vector_length
from nnclr_hub.encoder.preprocessing import Preprocessing
from nnclr_hub.errors import InvalidRequest, ModelError, ModelFilesMissing, WeightsMismatch
from nnclr_hub.hub.layout import (
    CARD,
    CONFIG,
    FORMAT_VERSION,
    GRAPH,
    HEADS,
    OPTIONAL,
    SUPPORT_SET,
    WEIGHTS,
    ModelConfig,
    read_config,
    read_weights,
    sha256_of,
)
from nnclr_hub.hub.sources import resolve
from nnclr_hub.images.reading import PLAIN
from nnclr_hub.publish.card import is_edited, model_card
from nnclr_hub.publish.onnx_file import describe, write_graph
from nnclr_hub.publish.provenance import NO_LICENSE, check_license, check_terms, license_of, record_forced

if TYPE_CHECKING:
    from torch import Tensor, nn

DTYPES = ("fp32", "fp16")
LIMITING = ("data_terms", "parents")  # keys of the record that limit the license
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
    graph: bool = False,
) -> Path:
    """Write a model folder.

    An existing model folder is replaced once the new files are complete. An edited README.md is kept.

    Args:
        model_args: the arguments of `create_backbone`.
        heads: by name, which continued training needs.
        provenance: the block "nnclr" of config.json; the card shows its "metrics".
        graph: write network.onnx too, with which the encoder embeds without torch.

    Raises:
        InvalidRequest: the dtype is invalid, provenance is not JSON, or the target contains other files.
        ModelError: the target cannot be written.
        WeightsMismatch: weights are not finite, or not those of `architecture` with `model_args`.
        MissingDependency: `graph` needs onnx, onnxscript and onnxruntime.
    """
    require_free(Path(folder))
    state = _converted(backbone.state_dict(), dtype)
    head_state = {
        f"{name}.{key}": value for name, head in (heads or {}).items() for key, value in head.state_dict().items()
    }
    name, arguments = timm_name(architecture), dict(model_args or {})
    if sized(name) and preprocessing.input_size != default_side(name):
        arguments.setdefault("img_size", preprocessing.input_size)  # parameters depend on it
    if preprocessing.in_chans != 3:
        arguments["in_chans"] = preprocessing.in_chans
    about = {"format_version": FORMAT_VERSION, **(provenance or {})}
    if preprocessing.reading != PLAIN:
        about["reading"] = str(preprocessing.reading)
    config = ModelConfig(
        architecture=name,
        model_args=arguments,
        num_features=vector_length(backbone),
        global_pool=pooling(backbone),
        pretrained_cfg=_pretrained_cfg(backbone, preprocessing, about),
        nnclr=about,
    )
    return _write(Path(folder), config, {WEIGHTS: state, HEADS: _converted(head_state, dtype)}, graph)


def export_run(
    run: Path,
    folder: Path,
    *,
    dtype: str = "fp32",
    provenance: Mapping[str, Any] | None = None,
    weights: Mapping[str, Tensor] | None = None,
    heads: Mapping[str, Tensor] | None = None,
    support_set: Tensor | None = None,
    force_license: bool = False,
    graph: bool = False,
) -> Path:
    """Copy the encoder of a run, or any model folder, to another folder. See `export_model`.

    Args:
        run: a run folder, or a model folder.
        dtype: "fp32", or "fp16" for half the size.
        provenance: additions to the source's record, such as "license", "data" and "metrics".
        weights: replacements of the same architecture, such as those of the momentum encoder.
        heads: replacements of the source's heads.
        support_set: (M, D) float rows to write as well.
        force_license: accept a license wider than the terms of the parents and of the training images, or one that
            cannot be compared with them; see `check_license`. New terms are compared with a license that is kept, too.
            The record and the card then say that the license was forced.
        graph: write network.onnx too, with which the encoder embeds without torch.

    Raises:
        ModelFilesMissing: the run does not have an encoder yet.
        InvalidRequest: the target contains other files, or the license is too wide or cannot be compared.
        ModelError: the target cannot be written.
        TamperedModel, WeightsMismatch: the source is incomplete or damaged.
        MissingDependency: `graph` needs onnx, onnxscript and onnxruntime.
    """
    source, folder = encoder_of(Path(run)), Path(folder)
    require_free(folder)
    config = resolve(f"local-dir:{source}").config
    before = license_of(config)
    recorded = {**config.nnclr, **({} if before == NO_LICENSE else {"license": before})}
    about = {**recorded, **(provenance or {})}
    license = str(about.get("license") or NO_LICENSE)
    with record_forced(force_license, about):
        if license != before:
            check_license(license, about, recorded)
        elif license != NO_LICENSE:  # the folder's own terms were compared when it got its license
            check_license(license, {key: about[key] for key in LIMITING if about.get(key) != config.nnclr.get(key)})
        check_terms(about, config.nnclr)
    if heads is None:
        heads = read_weights(source, HEADS) if (source / HEADS).is_file() else {}
    state = _converted(weights if weights is not None else read_weights(source), dtype)
    files = {WEIGHTS: state, HEADS: _converted(heads, dtype)}
    if support_set is not None:
        files[SUPPORT_SET] = _converted({"bank": support_set}, dtype)
    cfg = {**config.pretrained_cfg, "license": license}
    return _write(folder, replace(config, nnclr=about, pretrained_cfg=cfg), files, graph)


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


def require_free(folder: Path) -> None:
    """Check that a target is new or empty, or a model folder of this library.

    Raises:
        InvalidRequest: it contains other files.
    """
    if not folder.exists() or (folder.is_dir() and all(path.name.startswith(STAGING) for path in folder.iterdir())):
        return
    try:
        ours = bool(read_config(folder).nnclr)
    except (ModelFilesMissing, WeightsMismatch):
        ours = False
    if not ours:
        raise InvalidRequest(f"{folder} contains other files; use a new folder.")


def _converted(tensors: Mapping[str, Tensor], dtype: str) -> dict[str, Tensor]:
    """Return tensors in a precision: contiguous, on the CPU and sorted."""
    import torch

    if dtype not in DTYPES:
        raise InvalidRequest(f"dtype must be one of {', '.join(DTYPES)}, got {dtype!r}.")
    state = {}
    for name, value in sorted(tensors.items()):
        value = value.detach().cpu()
        if value.is_floating_point():
            if not value.isfinite().all():
                raise WeightsMismatch(f"{name} contains NaN or infinity; export an older checkpoint.")
            largest, value = value.abs().max(), value.to(torch.float16 if dtype == "fp16" else torch.float32)
            if not value.isfinite().all():
                raise WeightsMismatch(f"{name} contains {largest:g}, which is too large for fp16; export it as fp32.")
        state[name] = value.contiguous()
    return state


def _pretrained_cfg(backbone: nn.Module, preprocessing: Preprocessing, about: Mapping[str, Any]) -> dict[str, Any]:
    """Return the block for timm with every field set, because timm's defaults describe its supervised weights."""
    timm_cfg: Mapping[str, Any] = backbone.pretrained_cfg  # type: ignore[assignment]
    size = preprocessing.input_size
    foreign = "converted" in about  # weights of another project must not name our paper
    paper = {} if foreign else {"paper_ids": "arXiv:2104.14548", "paper_name": PAPER}
    return {
        "tag": "converted" if foreign else "nnclr",
        "custom_load": False,
        "input_size": [preprocessing.in_chans, size, size],
        "fixed_input_size": bool(timm_cfg.get("fixed_input_size", False)),
        "interpolation": preprocessing.interpolation,
        "crop_pct": preprocessing.crop_pct,
        "crop_mode": preprocessing.crop_mode,
        "mean": list(preprocessing.mean),
        "std": list(preprocessing.std),
        "num_classes": 0,
        "pool_size": timm_cfg.get("pool_size"),
        # timm adapts the named layer from 3 channels to others, and its older versions drop weights that have others
        "first_conv": timm_cfg.get("first_conv") if preprocessing.in_chans == 3 else None,
        "classifier": timm_cfg.get("classifier"),
        "license": str(about.get("license") or NO_LICENSE),
        **paper,
    }


def _write(folder: Path, config: ModelConfig, tensors: Mapping[str, dict[str, Tensor]], graph: bool) -> Path:
    """Write all files to a staging folder, then move them into place, config.json last.

    Until the moves begin, an existing model does not change. If the machine stops between two moves, the hashes in
    config.json do not match, so the mixed folder is refused.

    Args:
        tensors: of each file; one without tensors is not written.
    """
    from safetensors.torch import save

    # build the network that config.json describes, so that a folder which cannot be loaded is not written
    network = backbone_with_weights(config.architecture, tensors[WEIGHTS], "this encoder", model_args=config.model_args)
    block = {name: value for name, value in config.nnclr.items() if name != "graph"}  # of the source
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for left_over in folder.glob(f"{STAGING}*"):
            shutil.rmtree(left_over, ignore_errors=True)
        # inside, because the folder may be a mount point
        with tempfile.TemporaryDirectory(prefix=STAGING, dir=folder, ignore_cleanup_errors=True) as temporary:
            half = Path(temporary)
            for name, state in tensors.items():
                if state:
                    # a single metadata key, because safetensors writes several in random order; not save_file, because
                    # only the owner can read the files that it creates
                    (half / name).write_bytes(save(state, metadata={"format": "pt"}))
            if graph:
                preprocessing = Preprocessing.from_pretrained_cfg(config.pretrained_cfg)
                encoder = Encoder(network, preprocessing, config=config, device="cpu")
                write_graph(encoder, half)
                block["graph"] = describe(encoder)
            hashes = {name: sha256_of(half / name) for name in (*tensors, GRAPH) if (half / name).is_file()}
            config = replace(config, nnclr={**block, "sha256": hashes})
            try:
                (half / CONFIG).write_text(config.to_json(), "utf-8")
            except (TypeError, ValueError) as error:
                raise InvalidRequest(
                    f"The model's provenance or arguments cannot be written as JSON: {error}."
                ) from error
            if not is_edited(folder / CARD):
                (half / CARD).write_text(model_card(folder.resolve().name, config), "utf-8")
            last = (WEIGHTS, CARD, CONFIG)
            written = sorted(os.listdir(half), key=lambda name: last.index(name) if name in last else -1)
            for name in written:
                with (half / name).open("rb+") as file:
                    os.fsync(file.fileno())
            for name in {*OPTIONAL} - {*written}:
                (folder / name).unlink(missing_ok=True)
            for name in written:
                os.replace(half / name, folder / name)
    except OSError as error:
        raise ModelError(
            f"{folder} cannot be written ({error.strerror or error}); free some space, or use another folder."
        ) from error
    return folder
