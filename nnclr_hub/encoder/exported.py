"""Exported networks: the forward pass of a model folder, so that a start needs neither torch nor timm.

    exported = find_exported("openvino", folder, weights)       # None until `save_exported` was called
    exported.open("fp32").run(crops)                            # (N, D) float32

A model folder may contain its network (network.onnx), which both runtimes open; others are in the cache. The cache has
a folder per network and runtime, named by a hash of the weights, config.json and the library's version. A folder is
complete or does not exist, and its files are verified by their recorded sha256.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import nnclr_hub
from nnclr_hub.cache import cache_folder
from nnclr_hub.encoder.backends.base import GRAPHS, Backend, parse_backend
from nnclr_hub.encoder.backends.choice import COMPARED, candidates, worst_cosine
from nnclr_hub.encoder.backends.probe_batch import probe_images
from nnclr_hub.encoder.fingerprint import fingerprint_of_arrays
from nnclr_hub.encoder.preprocessing import Preprocessing
from nnclr_hub.hub.integrity import Pins, check, digest_of
from nnclr_hub.hub.layout import ABOUT_GRAPH, CONFIG, GRAPH, WEIGHTS, read_arrays, read_config

if TYPE_CHECKING:
    from torch import nn

    from nnclr_hub.encoder.encoder import Encoder

log = logging.getLogger(__name__)

RUNTIMES = tuple(GRAPHS)  # those that need no torch
RECORD = "network.json"


@dataclass(frozen=True)
class ExportedNetwork:
    """A network of a model folder.

    graph: its file.
    runtime: one of RUNTIMES.
    fingerprint: of the encoder.
    embed_dim: D.
    heads: number of attention heads; see `Encoder.heads`.
    weight_bytes: size of the weights in torch.
    cosine: the lowest between its vectors in its lowest precision and torch's, on synthetic images.
    """

    graph: Path
    runtime: str
    fingerprint: str
    embed_dim: int
    heads: int | None
    weight_bytes: int
    cosine: float = 1.0

    def open(self, precision: str) -> Backend:
        """Open the backend.

        Args:
            precision: "fp32" or "bf16".

        Raises:
            MissingDependency, InvalidRequest: the runtime is not installed, or does not support the precision.
        """
        if self.runtime == "onnx":
            from nnclr_hub.encoder.backends.with_onnx import ONNXBackend

            return ONNXBackend(self.graph, self.weight_bytes)
        from nnclr_hub.encoder.backends.with_openvino import OpenVINOBackend

        return OpenVINOBackend(self.graph, precision, self.weight_bytes)


class DeferredBackbone:
    """A backbone that is built in torch only if something other than vectors of images is needed.

    Args:
        build: returns it.
        embed_dim: D.
        heads: number of attention heads; see `Encoder.heads`.
        weight_bytes: size of its weights.
    """

    def __init__(self, build: Callable[[], nn.Module], embed_dim: int, heads: int | None, weight_bytes: int) -> None:
        self.embed_dim = embed_dim
        self.heads = heads
        self.weight_bytes = weight_bytes
        self._build = build
        self._built: nn.Module | None = None
        self._lock = threading.Lock()

    def build(self) -> nn.Module:
        """Build it once, whichever thread comes first."""
        with self._lock:
            if self._built is None:
                self._built = self._build()
            return self._built


def find_exported(runtime: str, folder: Path, weights: str) -> ExportedNetwork | None:
    """Return the exported network of a model folder; None if there is none, or it cannot be used.

    The graph in a model folder serves both runtimes. It contains the colors of its preprocessing, so it is used only
    with the preprocessing, weights and architecture that it was exported with.

    Args:
        runtime: one of RUNTIMES.
        folder: a verified model folder.
        weights: name of the weights file in it.

    Raises:
        ModelFilesMissing, TamperedModel: the folder records a network.onnx that is missing or differs.
    """
    config = read_config(folder)
    if weights == WEIGHTS and GRAPH in config.sha256:
        check(folder, Pins(CONFIG, {GRAPH: config.sha256[GRAPH]}))
        found = ExportedNetwork(folder / GRAPH, runtime, **_fields(config.nnclr["graph"]))
        preprocessing = Preprocessing.from_pretrained_cfg(config.pretrained_cfg)
        if fingerprint_of_arrays(read_arrays(folder), preprocessing, config) == found.fingerprint:
            return found
        log.warning("%s is not used: it does not belong to the other files of %s", GRAPH, folder)
    place = _place(runtime, folder, weights)
    try:
        record = json.loads((place / RECORD).read_text("utf-8"))
        if any(digest_of(place / name) != digest for name, digest in record["sha256"].items()):
            raise ValueError("its files have other hashes than recorded")
        return ExportedNetwork(place / GRAPHS[runtime], runtime, **_fields(record), cosine=float(record["cosine"]))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, TypeError, AttributeError, KeyError) as error:
        log.warning("the exported network %s is not used: %s", place, error)
        return None


def save_exported(encoder: Encoder, runtime: str, folder: Path, weights: str) -> None:
    """Save the network of an encoder whose backend is `runtime`. Without a writable cache, nothing is saved.

    Args:
        encoder: loaded from the model folder.
        runtime, folder, weights: see `find_exported`.
    """
    place = _place(runtime, folder, weights)
    backend: Any = encoder.backend
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=place.parent, ignore_cleanup_errors=True) as temporary:
            part = Path(temporary)
            backend.save(part)
            digests = {path.name: digest_of(path) for path in part.iterdir()}
            about = described(encoder)
            cosine = _cosine(encoder, ExportedNetwork(part / GRAPHS[runtime], runtime, **_fields(about)))
            record = {**about, "cosine": cosine, "sha256": digests}
            (part / RECORD).write_text(json.dumps(record, indent=1), "utf-8")
            part.chmod(0o755)  # another user may share the cache
            shutil.rmtree(place, ignore_errors=True)  # damaged, or of another process that was as fast
            os.replace(part, place)
    except (OSError, RuntimeError) as error:  # only costs the next start some seconds
        log.warning(
            "the network cannot be saved in %s (%s); set NNCLR_CACHE to a folder that can be written", place, error
        )


def described(encoder: Encoder) -> dict[str, Any]:
    """Return what must be known of an encoder whose network is not built: the fields ABOUT_GRAPH."""
    return {name: getattr(encoder, name) for name in ABOUT_GRAPH} | {"fingerprint": encoder.network_fingerprint}


def _fields(record: Mapping[str, Any]) -> dict[str, Any]:
    return {name: record[name] for name in ABOUT_GRAPH}


def _cosine(encoder: Encoder, exported: ExportedNetwork) -> float:
    """Return the lowest cosine of an exported network's vectors with torch's, on synthetic images."""
    from nnclr_hub.encoder.backends.network import Network
    from nnclr_hub.encoder.backends.with_torch import TorchBackend

    preprocessing = encoder.transform.preprocessing
    images = probe_images(preprocessing.input_size, COMPARED, preprocessing.in_chans)
    network = Network(encoder.backbone, preprocessing).to(encoder.device)
    lowest = next(name for name in candidates("cpu", None, RUNTIMES) if name.startswith(exported.runtime))
    backend = exported.open(parse_backend(lowest)[1] or "fp32")
    return worst_cosine(backend.run(images), TorchBackend(network, encoder.device, "fp32").run(images))


def _place(runtime: str, folder: Path, weights: str) -> Path:
    """Return the folder of an exported network in the cache."""
    about = [runtime, digest_of(folder / weights), digest_of(folder / CONFIG), nnclr_hub.__version__]
    return cache_folder() / "networks" / hashlib.sha256(json.dumps(about).encode()).hexdigest()[:32]
