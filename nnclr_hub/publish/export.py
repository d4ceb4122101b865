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
from nnclr_hub.publish.onnx_file import described, write_graph
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
    state = _tensors({"": backbone}, dtype)
    head_state = _tensors(heads or {}, dtype)
    name = timm_name(architecture)
    arguments = _arguments(name, model_args, preprocessing)
    loaded = _loaded(name, arguments, state)
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
    network = Encoder(loaded, preprocessing, config=config, device="cpu") if graph else None
    return _write(Path(folder), config, state, {HEADS: head_state}, network)


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
    run, folder = Path(run), Path(folder)
    source = encoder_of(run)
    require_free(folder)
    config = resolve(f"local-dir:{source}").config
    found = weights if weights is not None else read_weights(source)
    before = license_of(config)
    stated = {} if before == NO_LICENSE else {"license": before}
    about = {**config.nnclr, **stated, **(provenance or {})}
    license = str(about.get("license") or NO_LICENSE)
    with record_forced(force_license, about):
        if license != before:
            check_license(license, about, {**config.nnclr, **stated})
        elif license != NO_LICENSE:  # the folder's own terms were compared when it got its license
            check_license(license, {key: about[key] for key in LIMITING if about.get(key) != config.nnclr.get(key)})
        check_terms(about, config.nnclr)
    state = {key: _as(dtype, key, value.cpu()) for key, value in sorted(found.items())}
    loaded = _loaded(config.architecture, config.model_args, state)
    if heads is None:
        heads = read_weights(source, HEADS) if (source / HEADS).is_file() else {}
    optional = {HEADS: {key: _as(dtype, key, value.cpu()) for key, value in sorted(heads.items())}}
    if support_set is not None:
        optional[SUPPORT_SET] = {"bank": _as(dtype, "The support set", support_set.cpu())}
    cfg = {**config.pretrained_cfg, "license": license}
    config = replace(config, nnclr=about, pretrained_cfg=cfg)
    network = Encoder(loaded, Preprocessing.from_pretrained_cfg(cfg), config=config, device="cpu") if graph else None
    return _write(folder, config, state, optional, network)


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
    """Return the states of modules under "name." prefixes, contiguous, on the CPU and sorted."""
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
        raise WeightsMismatch(f"{name} contains NaN or infinity; export an older checkpoint.")
    converted = value.to(torch.float16 if dtype == "fp16" else torch.float32).contiguous()
    if not converted.isfinite().all():
        raise WeightsMismatch(f"{name} contains {value.abs().max():g}, which is too large for fp16; export it as fp32.")
    return converted


def _arguments(name: str, model_args: Mapping[str, Any] | None, preprocessing: Preprocessing) -> dict[str, Any]:
    """Return model_args, with the input size if parameters depend on it, and the number of channels unless it is 3."""
    arguments = dict(model_args or {})
    if sized(name) and preprocessing.input_size != default_side(name):
        arguments.setdefault("img_size", preprocessing.input_size)
    if preprocessing.in_chans != 3:
        arguments["in_chans"] = preprocessing.in_chans
    return arguments


def _loaded(name: str, arguments: Mapping[str, Any], state: Mapping[str, Tensor]) -> nn.Module:
    """Return the network that the architecture and arguments of config.json build, with these weights."""
    return backbone_with_weights(name, state, "this encoder", model_args=arguments)


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


def _write(
    folder: Path,
    config: ModelConfig,
    state: dict[str, Tensor],
    optional: Mapping[str, dict[str, Tensor]],
    network: Encoder | None,
) -> Path:
    """Write all files to a staging folder, then move them into place, config.json last.

    Args:
        network: the encoder whose graph to write; None: none.

    Until the moves begin, an existing model does not change. If the machine stops between two moves, the hashes in
    config.json do not match, so the mixed folder is refused.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for left_over in folder.glob(f"{STAGING}*"):
            shutil.rmtree(left_over, ignore_errors=True)
        # inside, because the folder may be a mount point
        with tempfile.TemporaryDirectory(prefix=STAGING, dir=folder, ignore_cleanup_errors=True) as half:
            _write_inside(Path(half), folder, config, state, optional, network)
    except OSError as error:
        raise ModelError(
            f"{folder} cannot be written ({error.strerror or error}); free some space, or use another folder."
        ) from error
    return folder


def _write_inside(
    half: Path,
    folder: Path,
    config: ModelConfig,
    state: dict[str, Tensor],
    optional: Mapping[str, dict[str, Tensor]],
    network: Encoder | None,
) -> None:
    from safetensors.torch import save

    files = {WEIGHTS: state, **{name: tensors for name, tensors in optional.items() if tensors}}
    for name, tensors in files.items():
        # a single metadata key, because safetensors writes several in random order; not save_file, because only the
        # owner can read the files that it creates
        (half / name).write_bytes(save(tensors, metadata={"format": "pt"}))
    block = {name: value for name, value in config.nnclr.items() if name != "graph"}  # of the source
    if network is not None:
        write_graph(network, half)
        block["graph"] = described(network)
    hashes = {name: sha256_of(half / name) for name in (*files, GRAPH) if (half / name).is_file()}
    config = replace(config, nnclr={**block, "sha256": hashes})
    _write_text(half / CONFIG, config)
    if not is_edited(folder / CARD):
        (half / CARD).write_text(model_card(folder.resolve().name, config), "utf-8")
    written = [path.name for path in half.iterdir()]
    for name in written:
        with (half / name).open("rb+") as file:
            os.fsync(file.fileno())
    for name in OPTIONAL:
        if name not in written:
            (folder / name).unlink(missing_ok=True)
    last = (WEIGHTS, CARD, CONFIG)
    for name in sorted(written, key=lambda name: last.index(name) if name in last else -1):
        os.replace(half / name, folder / name)


def _write_text(path: Path, config: ModelConfig) -> None:
    try:
        path.write_text(config.to_json(), "utf-8")
    except (TypeError, ValueError) as error:
        raise InvalidRequest(f"The model's provenance or arguments cannot be written as JSON: {error}.") from error
