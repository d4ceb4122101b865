"""Write an encoder as a model folder, or as one ONNX file for runtimes without torch.

    export_model(backbone, Path("models/photos"), architecture="resnet18", preprocessing=Preprocessing(128))
    export_onnx("nnclr_resnet18_starter", Path("model.onnx"))

    session = onnxruntime.InferenceSession("model.onnx")
    vectors, = session.run(["embedding"], {"pixels": crops})        # (N, S, S, 3) uint8 -> (N, D) float32

The same encoder always gives the same bytes of a folder: the safetensors files have a single metadata key, and the
config does not contain times or paths. The metadata of an ONNX file describe the preprocessing ("preprocessing", JSON),
which the caller does, and the encoder ("fingerprint", "source").
"""

from __future__ import annotations

import errno
import json
import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from nnclr_hub.arguments import checked
from nnclr_hub.encoder.backbones import backbone_with_weights, default_side, sized, timm_name
from nnclr_hub.encoder.backends.with_onnx import EMBEDDING, INPUT, ONNXBackend, onnx_bytes, onnx_graph, onnx_session
from nnclr_hub.encoder.backends.with_torch import Network
from nnclr_hub.encoder.encoder import Encoder
from nnclr_hub.encoder.loader import load_encoder
from nnclr_hub.encoder.network_output import pooling, vector_length
from nnclr_hub.encoder.preprocessing import Preprocessing
from nnclr_hub.errors import InvalidRequest, ModelError, ModelFilesMissing, WeightsMismatch
from nnclr_hub.file_replacement import replace_file
from nnclr_hub.hub.layout import (
    ABOUT_GRAPH,
    CARD,
    CONFIG,
    FORMAT_VERSION,
    GRAPH,
    HEADS,
    OPTIONAL,
    WEIGHTS,
    ModelConfig,
    read_config,
    read_weights,
    sha256_of,
)
from nnclr_hub.hub.sources import resolve
from nnclr_hub.images.reading import PLAIN
from nnclr_hub.publish.card import is_edited, model_card
from nnclr_hub.publish.provenance import NO_LICENSE, check_license, check_terms, license_of, record_forced

if TYPE_CHECKING:
    from torch import Tensor, nn

DTYPES = ("fp32", "fp16")
LIMITING = ("data_terms", "parents")  # keys of the record that limit the license
STAGING = ".export-"  # where files are written before they are moved into place
log = logging.getLogger(__name__)
GRAPH_NEEDS = ("onnx", "onnxscript", "onnxruntime")  # a GPU machine may lack them
LOWEST_COSINE = 0.9999  # of vectors with torch's, else the export is refused
PAPER = "With a Little Help from My Friends: Nearest-Neighbor Contrastive Learning of Visual Representations"


@checked
def export_model(
    backbone: nn.Module,
    folder: str | Path,
    *,
    architecture: str,
    model_args: Mapping[str, Any] | None = None,
    preprocessing: Preprocessing,
    heads: Mapping[str, nn.Module | Mapping[str, Tensor]] | None = None,
    provenance: Mapping[str, Any] | None = None,
    dtype: str = "fp32",
    graph: bool | None = None,
) -> Path:
    """Write a model folder.

    An existing model folder is replaced once the new files are complete. An edited README.md is kept.

    Args:
        model_args: the arguments of `create_backbone`.
        heads: by name, which continued training needs; networks, or their weights.
        provenance: the block "nnclr" of config.json; the card shows its "metrics".
        graph: write network.onnx, with which the encoder embeds without torch; None: if the packages for it are
            installed.

    Raises:
        InvalidRequest: the dtype is invalid, provenance is not JSON, or the target contains other files.
        ModelError: the target cannot be written.
        WeightsMismatch: weights are not finite, or not those of `architecture` with `model_args`.
        MissingDependency: `graph` needs onnx, onnxscript and onnxruntime.
    """
    require_free(Path(folder))
    state = _converted(backbone.state_dict(), dtype)
    head_states = {
        name: head if isinstance(head, Mapping) else head.state_dict() for name, head in (heads or {}).items()
    }
    head_state = {f"{name}.{key}": value for name, head in head_states.items() for key, value in head.items()}
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


@checked
def export_run(
    run: str | Path,
    folder: str | Path,
    *,
    dtype: str = "fp32",
    provenance: Mapping[str, Any] | None = None,
    heads: Mapping[str, Tensor] | None = None,
    force_license: bool = False,
    graph: bool | None = None,
) -> Path:
    """Copy the encoder of a run, or any model folder, to another folder. See `export_model`.

    Args:
        run: a run folder, or a model folder.
        dtype: "fp32", or "fp16" for half the size.
        provenance: additions to the source's record, such as "license", "data" and "metrics".
        heads: replacements of the source's heads.
        force_license: accept a license wider than the terms of the parents and of the training images, or one that
            cannot be compared with them; see `check_license`. New terms are compared with a license that is kept, too.
            The record and the card then say that the license was forced.
        graph: see `export_model`.

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
    files = {WEIGHTS: _converted(read_weights(source), dtype), HEADS: _converted(heads, dtype)}
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


def _write(folder: Path, config: ModelConfig, tensors: Mapping[str, dict[str, Tensor]], graph: bool | None) -> Path:
    """Write all files to a staging folder, then move them into place, config.json last.

    Until the moves begin, an existing model does not change. If the machine stops between two moves, the hashes in
    config.json do not match, so the mixed folder is refused.

    Args:
        tensors: the tensors of each file; a file without tensors is not written.
    """
    from safetensors.torch import save

    # build the network that config.json describes, so that a folder which cannot be loaded is not written
    network = backbone_with_weights(config.architecture, tensors[WEIGHTS], "this encoder", model_args=config.model_args)
    block = {name: value for name, value in config.nnclr.items() if name != "graph"}  # "graph" describes the source
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
            missing = [name for name in GRAPH_NEEDS if not find_spec(name)] if graph is None else []
            if missing:
                log.warning(
                    "%s gets no network.onnx, without which it needs torch and is slower on a CPU; pip install %s, and "
                    "export it again",
                    folder,
                    " ".join(missing),
                )
            if graph is not False and not missing:
                preprocessing = Preprocessing.from_pretrained_cfg(config.pretrained_cfg)
                encoder = Encoder(network, preprocessing, config=config, device="cpu")
                wrapped = Network(encoder.backbone, preprocessing)
                (half / GRAPH).write_bytes(onnx_graph(wrapped, half / WEIGHTS))
                _agreement(encoder, ONNXBackend(half / GRAPH).run)
                about = {name: getattr(encoder, name) for name in ABOUT_GRAPH}
                block["graph"] = about | {"fingerprint": encoder.network_fingerprint}
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


# ---- one file --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ONNXFile:
    """An exported file.

    path: path of the file.
    cosine: the lowest cosine of its vectors with torch's, on synthetic images in batches of two sizes; None if ONNX
        Runtime is not installed, because nothing was compared.
    """

    path: Path
    cosine: float | None


@checked
def export_onnx(source: str | Path, path: str | Path) -> ONNXFile:
    """Write an encoder as ONNX: "pixels" (batch, S, S, 3) uint8 -> "embedding" (batch, D) float32 of length 1.

    A second output, "features", has the vectors before normalization. An existing file is replaced only after the new
    one is complete. If ONNX Runtime is installed, the new one must also give torch's vectors.

    Args:
        source: any source of `load_encoder`.
        path: its name ends in .onnx.

    Raises:
        MissingDependency: onnx or onnxscript is not installed.
        InvalidRequest: the name or the folder is invalid, or the network cannot be exported.
        ModelError: the encoder cannot be loaded, the file does not give torch's vectors, or it cannot be written.
    """
    path = Path(path)
    if path.suffix != ".onnx":
        raise InvalidRequest(f"{path} must end in .onnx, for example {path.with_suffix('.onnx')}.")
    if not path.parent.is_dir():
        raise InvalidRequest(f"The folder {path.parent} does not exist; create it first, or use another file.")
    if path.is_dir():  # checked before the export, which is slow
        raise _unwritable(path, os.strerror(errno.EISDIR))
    encoder = load_encoder(source, device="cpu", backend="torch")
    if encoder.appended:
        raise InvalidRequest(f"The network of {encoder.name} does not compute its parts; name it without them.")
    preprocessing = encoder.transform.preprocessing
    about = {
        "source": encoder.name,
        "fingerprint": encoder.fingerprint,
        "preprocessing": json.dumps(preprocessing.steps),
    }
    model = onnx_bytes(Network(encoder.backbone, preprocessing), about)
    cosine = None
    if find_spec("onnxruntime"):
        session = onnx_session(model)
        cosine = _agreement(encoder, lambda crops: session.run([EMBEDDING], {INPUT: crops})[0])
    try:
        replace_file(path, model)
    except OSError as error:
        raise _unwritable(path, error.strerror) from error
    return ONNXFile(path, cosine)


def _agreement(encoder: Encoder, run: Callable[[np.ndarray], np.ndarray]) -> float:
    """Return the lowest cosine of a network's vectors with torch's; refuse a low one."""
    preprocessing = encoder.transform.preprocessing
    images = probe_images(preprocessing.input_size, channels=preprocessing.in_chans)
    wanted = encoder.forward_crops(images)
    cosine = min(worst_cosine(run(images[:count]), wanted[:count]) for count in (1, len(images)))
    if cosine < LOWEST_COSINE:
        raise WeightsMismatch(
            f"The ONNX model of {encoder.name} gives other vectors than torch (cosine {cosine:.4f}), so it was not "
            "written; try other versions of torch and onnxscript."
        )
    return cosine


def _unwritable(path: Path, reason: str | None) -> ModelError:
    return ModelError(f"{path} cannot be written ({reason}); free some space, or use another file.")


def probe_images(side: int, count: int = 8, channels: int = 3) -> np.ndarray:
    """Return (count, side, side, channels) uint8, the same on every machine; beyond RGB the colors are repeated.

    Noise alone is not enough, because a network returns similar vectors for all of it. So each image is a sum of noise
    of several sizes, coarse noise with the most contrast, as in photographs.
    """
    images = np.zeros((count, side, side, 3), np.uint8)
    for seed, image in enumerate(images):
        rng, total = np.random.default_rng(seed), np.zeros((side, side, 3))
        for cells in (2, 4, 8, 16, 32):
            noise = Image.fromarray(rng.integers(0, 256, (cells, cells, 3), np.uint8))
            total += np.asarray(noise.resize((side, side), Image.Resampling.BICUBIC), float) / cells
        total -= total.min()
        image[:] = total / total.max() * 255
    return images if channels == 3 else images[..., np.arange(channels) % 3]


def worst_cosine(got: np.ndarray, wanted: np.ndarray) -> float:
    """Return the lowest cosine between rows of two (N, D) arrays; -1 if a value is not finite.

    A row of zeros in both, as a collapsed network gives it, counts as equal.
    """
    lengths = np.linalg.norm(got, axis=1) * np.linalg.norm(wanted, axis=1)
    cosines = (got * wanted).sum(axis=1) / np.maximum(lengths, 1e-12)
    equal = (got == wanted).all(axis=1)
    return float(np.where(equal, 1.0, np.nan_to_num(cosines, nan=-1.0)).min())
