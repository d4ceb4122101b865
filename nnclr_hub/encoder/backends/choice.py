"""Open a backend by its name; "auto" chooses the fastest one on this machine whose vectors match the reference.

The installed candidates run a batch of synthetic images. Those whose vectors differ from the reference (torch in
float32) are rejected, and the fastest of the others is chosen. Measuring takes seconds, so the choice is cached per
encoder, processor, number of threads and package versions. For a few images, measuring would take longer than the
images, so the first accurate candidate that can start without torch is taken.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import platform
import time
from collections.abc import Callable, Container, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from nnclr_hub.cache import cache_folder
from nnclr_hub.encoder.backends.base import AUTO, Backend, parse_backend
from nnclr_hub.encoder.backends.probe_batch import probe_images
from nnclr_hub.errors import NNCLRHubError
from nnclr_hub.file_replacement import replace_file

if TYPE_CHECKING:  # a cached choice is read without torch
    from torch import device as Device

    from nnclr_hub.encoder.backends.network import Network

log = logging.getLogger(__name__)

NOTHING: Mapping[str, Callable[[], Backend]] = MappingProxyType({})
MIN_COSINE = 0.999  # between the vectors of a candidate and the reference, for the worst image
TIMED = 4  # images per timed run
ROUNDS, MAX_ROUNDS = 3, 10
AGREE = 1.1  # times the best time that the second best may take; beyond that, other load is likely
TOO_SLOW = 1.5  # times the best time so far: not measured more than twice
REFERENCE = "torch"
PACKAGES = ("nnclr_hub", "torch", "timm", "openvino", "onnxruntime")
CPU_INFO = Path("/proc/cpuinfo")
FEW = 256  # images, which torch embeds faster than candidates are measured


def _opener(kind: str) -> Callable[[Network, Device, str], Backend]:
    if kind == "openvino":
        from nnclr_hub.encoder.backends.with_openvino import open_openvino

        return open_openvino
    if kind == "onnx":
        from nnclr_hub.encoder.backends.with_onnx import open_onnx

        return open_onnx
    from nnclr_hub.encoder.backends.with_torch import CompileBackend, TorchBackend

    return {"torch": TorchBackend, "compile": CompileBackend}[kind]


def open_backend(
    name: str,
    network: Network,
    device: Device,
    *,
    precision: str | None = None,
    fingerprint: Callable[[], str] = lambda: "",
    images: int | None = None,
    exported: Mapping[str, Callable[[], Backend]] = NOTHING,
) -> Backend:
    """Open the backend of a name for a network.

    Args:
        name: one of `base.BACKENDS`.
        network: already on `device`.
        precision: "fp32" or "bf16", unless the name contains it; None: the backend's default.
        fingerprint: returns the encoder's fingerprint; called for "auto", which caches its choice under it.
        images: number of images to expect; None: many. "auto" does not measure for a few.
        exported: kinds of which a network is ready, with what opens it in float32; candidates of "auto" that need no
            export.

    Raises:
        InvalidRequest: the backend does not exist, or does not support this network or device.
        MissingDependency: its package is not installed.
    """
    kind, wanted = parse_backend(name, precision)
    if kind != AUTO:
        return _opener(kind)(network, device, wanted or "fp32")

    def open_named(named: str) -> Backend:
        return exported[named]() if named in exported else open_backend(named, network, device)

    names = candidates(device.type, wanted, exported)
    if images is not None and images <= FEW:
        cached = cached_choice(fingerprint(), str(device), names)
        return open_named(cached) if cached else _first_accurate(open_named, names, network.side, network.channels)
    return choose(open_named, network.side, device, names, fingerprint(), network.channels)


def cached_choice(fingerprint: str, device: str, names: Sequence[str]) -> str | None:
    """Return which of the candidates is the fastest for an encoder, if they were measured on this machine.

    It needs no torch.
    """
    return _read_choice(_place(fingerprint, device, names), names)


def choose(
    open_named: Callable[[str], Backend],
    side: int,
    device: Device,
    names: Sequence[str],
    fingerprint: str,
    channels: int = 3,
) -> Backend:
    """Open the backend to use on this machine.

    Args:
        open_named: opens a backend by its name.
        side: of the network's input, in pixels.
        names: of the candidates, the reference first.
        channels: of the network's input.
    """
    place = _place(fingerprint, str(device), names)
    cached = _read_choice(place, names)
    if cached is not None:
        try:
            backend = open_named(cached)
        except NNCLRHubError as error:  # such as a package that broke without a new version
            log.warning("the cached choice %s cannot be opened: %s", cached, error)
        else:
            log.info("backend %s, from the cached choice", backend.name)
            return backend
    backend, measured = _fastest(open_named, names, probe_images(side, channels=channels))
    _write_choice(place, {"name": backend.name, "measured": measured})
    log.info("backend %s, fastest of %s", backend.name, _summary(measured))
    return backend


def candidates(device: str, precision: str | None, exported: Container[str] = ()) -> list[str]:
    """Return the candidates, the reference first; without torch.compile, which would take minutes to measure.

    Args:
        device: its type: "cpu" or "cuda".
        precision: "fp32" or "bf16"; None: both.
        exported: kinds of which a network is ready.
    """
    names = [REFERENCE, "torch-bf16"]
    if device == "cpu" and find_spec("openvino"):
        names += ["openvino", "openvino-bf16"]
    elif device == "cpu" and find_spec("onnxruntime") and ("onnx" in exported or find_spec("onnxscript")):
        names += ["onnx"]  # slower than OpenVINO where both are installed, and slow to export
    return [name for name in names if precision in (None, parse_backend(name)[1])] or [f"{REFERENCE}-{precision}"]


def _fastest(
    open_named: Callable[[str], Backend], names: Sequence[str], images: np.ndarray
) -> tuple[Backend, dict[str, Any]]:
    """Return the fastest accurate backend, and the measurements: name -> seconds per image, worst cosine."""
    reference = open_named(REFERENCE)
    wanted = reference.run(images)
    running: dict[str, Backend] = {}
    measured: dict[str, Any] = {}
    for name in names:
        try:
            backend = reference if name == REFERENCE else open_named(name)
            cosine = 1.0 if name == REFERENCE else worst_cosine(backend.run(images), wanted)
        except NNCLRHubError as error:
            measured[name] = {"refused": str(error)}
            continue
        measured[name] = {"cosine": cosine}
        if cosine >= MIN_COSINE:
            running[name] = backend
    if not running:  # the caller requires a precision that is not accurate enough; respect the request
        running = {names[0]: open_named(names[0])}
    for name, seconds in _measure(running, images[:TIMED]).items():
        measured.setdefault(name, {})["seconds"] = seconds / TIMED
    best = min(running, key=lambda name: measured[name]["seconds"])
    return running[best], measured


def _first_accurate(open_named: Callable[[str], Backend], names: Sequence[str], side: int, channels: int) -> Backend:
    """Return OpenVINO in float32 if it matches the reference; else the reference.

    An export to ONNX takes longer than a few images in torch, so it is not tried.
    """
    reference = open_named(names[0])
    if "openvino" not in names:
        return reference
    images = probe_images(side, TIMED, channels)
    try:
        backend = open_named("openvino")
        return backend if worst_cosine(backend.run(images), reference.run(images)) >= MIN_COSINE else reference
    except NNCLRHubError as error:
        log.info("openvino cannot run this network: %s", error)
        return reference


def _measure(running: dict[str, Backend], images: np.ndarray) -> dict[str, float]:
    """Return the best time of each backend; one that is too slow in two rounds is not run again.

    The backends take turns, so that other load on the machine affects all of them. While the two best times of a
    backend disagree, more rounds follow.
    """
    times: dict[str, list[float]] = {name: [] for name in running}
    fast, rounds = list(running), 0
    while rounds < ROUNDS or (rounds < MAX_ROUNDS and any(times[name][1] > AGREE * times[name][0] for name in fast)):
        for name in fast:
            began = time.perf_counter()
            running[name].run(images)
            times[name] = sorted([*times[name], time.perf_counter() - began])
        rounds += 1
        if rounds > 1:
            best = min(one[0] for one in times.values())
            fast = [name for name in fast if times[name][0] <= TOO_SLOW * best]
    return {name: one[0] for name, one in times.items()}


def worst_cosine(got: np.ndarray, wanted: np.ndarray) -> float:
    """Return the lowest cosine between rows of two (N, D) arrays; -1 if a value is not finite."""
    lengths = np.linalg.norm(got, axis=1) * np.linalg.norm(wanted, axis=1)
    cosines = (got * wanted).sum(axis=1) / np.maximum(lengths, 1e-12)
    return float(np.nan_to_num(cosines, nan=-1.0).min())


def _place(fingerprint: str, device: str, names: Sequence[str]) -> Path:
    """Return the file of a cached choice."""
    machine, threads = _processor(), os.environ.get("OMP_NUM_THREADS")
    if device.startswith("cuda"):
        import torch

        machine = torch.cuda.get_device_name(device)
    about = [fingerprint, device, machine, threads, os.cpu_count(), list(names), _versions()]
    return cache_folder() / "backends" / f"{hashlib.sha256(json.dumps(about).encode()).hexdigest()[:32]}.json"


def _processor() -> str:
    """Return the processor's model and its features; machines with the same model name may lack bfloat16."""
    try:
        lines = CPU_INFO.read_text("utf-8", "replace").splitlines()
    except OSError:  # not Linux
        lines = []
    relevant = [line for line in lines if line.startswith(("model name", "flags", "Features"))]
    return f"{platform.machine()} {platform.processor()} {' '.join(relevant[:2])}"


def _versions() -> dict[str, str]:
    found = {}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = ""
    return found


def _read_choice(place: Path, names: Sequence[str]) -> str | None:
    """Return the cached name; None if there is none, or the file is damaged."""
    try:
        name = json.loads(place.read_text("utf-8"))["name"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return name if name in names else None


def _write_choice(place: Path, choice: dict[str, Any]) -> None:
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        replace_file(place, json.dumps(choice, indent=1))
    except OSError as error:  # only costs the next start some seconds
        log.warning("the choice of a backend cannot be cached: %s", error.strerror)


def _summary(measured: dict[str, Any]) -> str:
    parts = [
        f"{name} {1e3 * one['seconds']:.1f} ms" if "seconds" in one else f"{name} (rejected)"
        for name, one in measured.items()
    ]
    return ", ".join(parts) + " per image"
