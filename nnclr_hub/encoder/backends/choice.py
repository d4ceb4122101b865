"""auto: the fastest backend on this machine whose vectors are those of the reference.

The candidates whose packages are there run a batch of made images. One whose vectors leave the reference's
(torch in float32) is out, and of the others the fastest is taken. Measuring takes seconds, so the choice is
remembered in the cache folder, for this encoder, processor, number of threads and these versions.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import platform
import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nnclr_hub.cache import cache_folder
from nnclr_hub.encoder.backends.base import Backend, parse_backend
from nnclr_hub.encoder.backends.probe_batch import probe_images
from nnclr_hub.errors import NNCLRHubError

log = logging.getLogger(__name__)

LOWEST_COSINE = 0.999  # of the worst probe image's vector with the reference's
TIMED = 4  # images of a timed run
ROUNDS = 3
FAR_BEHIND = 1.5
REFERENCE = "torch"
PACKAGES = ("nnclr_hub", "torch", "timm", "openvino", "onnxruntime")
CPU_INFO = Path("/proc/cpuinfo")


def choose(
    open_named: Callable[[str], Backend], side: int, device: torch.device, precision: str | None, identity: str
) -> Backend:
    """The backend to use here, opened.

    Args:
        open_named: opens a backend by its name.
        side: of the network's input, in pixels.
        device: where the network is.
        precision: only candidates of this one; None: any.
        identity: the encoder's fingerprint.
    """
    names = candidates(device, precision)
    place = cache_folder() / "backends" / f"{_key(identity, device, names)}.json"
    remembered = _remembered(place, names)
    if remembered is not None:
        try:
            backend = open_named(remembered)
        except NNCLRHubError as error:  # such as a package that broke without changing its version
            log.warning("backend %s was chosen before and cannot be opened now: %s", remembered, error)
        else:
            log.info("backend %s, chosen before", backend.name)
            return backend
    backend, figures = _fastest(open_named, names, side)
    _remember(place, {"name": backend.name, "measured": figures})
    log.info("backend %s, fastest of %s", backend.name, _in_words(figures))
    return backend


def candidates(device: torch.device, precision: str | None) -> list[str]:
    """What may be chosen, the reference first. torch.compile is not among them: it takes minutes to find out."""
    names = [REFERENCE, "torch-bf16"]
    if device.type == "cpu" and find_spec("openvino"):
        names += ["openvino", "openvino-bf16"]
    elif device.type == "cpu" and find_spec("onnxruntime") and find_spec("onnxscript"):
        names += ["onnx"]  # slower than OpenVINO wherever both are there, and slow to export
    return [name for name in names if precision in (None, parse_backend(name)[1])] or [f"{REFERENCE}-{precision}"]


def _fastest(open_named: Callable[[str], Backend], names: list[str], side: int) -> tuple[Backend, dict[str, Any]]:
    """The fastest of those that are near enough, and what was measured: name -> seconds an image, worst cosine."""
    pictures = probe_images(side)
    reference = open_named(REFERENCE)
    wanted = reference.run(pictures)
    running: dict[str, Backend] = {}
    figures: dict[str, Any] = {}
    for name in names:
        try:
            backend = reference if name == REFERENCE else open_named(name)
            cosine = 1.0 if name == REFERENCE else worst_cosine(backend.run(pictures), wanted)
        except NNCLRHubError as error:
            figures[name] = {"refused": str(error)}
            continue
        figures[name] = {"cosine": cosine}
        if cosine >= LOWEST_COSINE:
            running[name] = backend
    if not running:  # a precision was asked for that is not near enough: what was asked for is done all the same
        running = {names[0]: open_named(names[0])}
    for name, seconds in _by_turns(running, pictures[:TIMED]).items():
        figures.setdefault(name, {})["seconds"] = seconds / TIMED
    best = min(running, key=lambda name: figures[name]["seconds"])
    return running[best], figures


def _by_turns(running: dict[str, Backend], pictures: np.ndarray) -> dict[str, float]:
    """The best time of each; what is far behind after a round is not run again.

    By turns, so that what else the machine does hits all of them.
    """
    seconds = dict.fromkeys(running, float("inf"))
    for _ in range(ROUNDS):
        best = min(seconds.values())
        for name in [name for name in running if best == float("inf") or seconds[name] < FAR_BEHIND * best]:
            began = time.perf_counter()
            running[name].run(pictures)
            seconds[name] = min(seconds[name], time.perf_counter() - began)
    return seconds


def worst_cosine(got: np.ndarray, wanted: np.ndarray) -> float:
    """The lowest cosine between rows of two (N, D) arrays; -1 where one is not finite."""
    lengths = np.linalg.norm(got, axis=1) * np.linalg.norm(wanted, axis=1)
    cosines = (got * wanted).sum(axis=1) / np.maximum(lengths, 1e-12)
    return float(np.nan_to_num(cosines, nan=-1.0).min())


def _key(identity: str, device: torch.device, names: list[str]) -> str:
    machine = torch.cuda.get_device_name(device) if device.type == "cuda" else _processor()
    about = [identity, str(device), machine, torch.get_num_threads(), os.cpu_count(), names, _versions()]
    return hashlib.sha256(json.dumps(about).encode()).hexdigest()[:32]


def _processor() -> str:
    """The processor's model and what it can do: a machine of the same name may lack bfloat16."""
    try:
        lines = CPU_INFO.read_text("utf-8", "replace").splitlines()
    except OSError:  # no Linux
        lines = []
    told = [line for line in lines if line.startswith(("model name", "flags", "Features"))]
    return f"{platform.machine()} {platform.processor()} {' '.join(told[:2])}"


def _versions() -> dict[str, str]:
    found = {}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = ""
    return found


def _remembered(place: Path, names: list[str]) -> str | None:
    """The name written there; None without, or for a file that is damaged."""
    try:
        name = json.loads(place.read_text("utf-8"))["name"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return name if name in names else None


def _remember(place: Path, choice: dict[str, Any]) -> None:
    half = place.with_suffix(f".{os.getpid()}")
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        half.write_text(json.dumps(choice, indent=1), "utf-8")
        half.replace(place)
    except OSError as error:  # a full or read-only disk costs the next start some seconds, and nothing more
        log.warning("the choice of a backend cannot be kept: %s", error.strerror)


def _in_words(figures: dict[str, Any]) -> str:
    told = [
        f"{name} {1e3 * one['seconds']:.1f} ms" if "seconds" in one else f"{name} (out)"
        for name, one in figures.items()
    ]
    return ", ".join(told) + " an image"
