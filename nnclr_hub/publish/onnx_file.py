"""Export an encoder as one ONNX file, for runtimes without torch.

    export_onnx("nnclr_resnet18_starter", Path("model.onnx"))

    session = onnxruntime.InferenceSession("model.onnx")
    vectors, = session.run(["embedding"], {"pixels": crops})        # (N, S, S, 3) uint8 -> (N, D) float32

The caller decodes, resizes and crops the images. The metadata of the file describe this preprocessing
("preprocessing", JSON) and the encoder ("fingerprint", "source").
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from nnclr_hub.encoder.backends.with_onnx import EMBEDDING, INPUT, ONNXBackend, onnx_bytes, onnx_graph, onnx_session
from nnclr_hub.encoder.backends.with_torch import Network
from nnclr_hub.encoder.encoder import Encoder
from nnclr_hub.encoder.loader import load_encoder
from nnclr_hub.errors import InvalidRequest, ModelError, WeightsMismatch
from nnclr_hub.file_replacement import replace_file
from nnclr_hub.hub.layout import ABOUT_GRAPH, GRAPH, WEIGHTS

LOWEST_COSINE = 0.9999


@dataclass(frozen=True)
class ONNXFile:
    """An exported file.

    path: of the file.
    cosine: the lowest cosine of its vectors with torch's, on synthetic images in batches of two sizes; None if ONNX
        Runtime is not installed, because nothing was compared.
    """

    path: Path
    cosine: float | None


def export_onnx(source: str | Path, path: Path) -> ONNXFile:
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


def describe(encoder: Encoder) -> dict[str, Any]:
    """Return what must be known of an encoder whose network is not built: the fields ABOUT_GRAPH."""
    return {name: getattr(encoder, name) for name in ABOUT_GRAPH} | {"fingerprint": encoder.network_fingerprint}


def write_graph(encoder: Encoder, folder: Path) -> None:
    """Write network.onnx into a folder with the encoder's weights, and check that it gives torch's vectors."""
    graph = onnx_graph(Network(encoder.backbone, encoder.transform.preprocessing), folder / WEIGHTS)
    (folder / GRAPH).write_bytes(graph)
    _agreement(encoder, ONNXBackend(folder / GRAPH).run)


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
