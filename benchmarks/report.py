"""What benchmarks share: a report of command, machine, commit and results, clocks, and images."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

PACKAGES = ("numpy", "faiss-cpu", "torch", "timm", "onnxruntime", "openvino", "fastapi", "uvicorn")


@dataclass
class Report:
    """Print each result at once, and write all results to a JSON file if there is one."""

    file: Path | None = None
    results: dict[str, Any] = field(default_factory=dict)

    def begin(self, **settings: Any) -> None:
        """Print command, machine, commit, versions and settings."""
        folder = str(Path(__file__).parent)
        described = ["git", "-C", folder, "describe", "--always", "--dirty", "--exclude", "*"]
        commit = subprocess.run(described, capture_output=True, text=True, check=False).stdout.strip()
        self.results = {"command": f"python {' '.join(sys.argv)}", "machine": machine(), "commit": commit}
        self.results |= {"versions": {name: installed(name) for name in PACKAGES}, "settings": settings}
        for name, value in self.results.items():
            print(f"{name}: {value}")

    def say(self, name: str, value: Any, sentence: str) -> None:
        """Record one result under a unique name, and print its sentence."""
        self.results[name] = value
        print(f"[{time.strftime('%H:%M:%S')}] {sentence} (load {os.getloadavg()[0]:.1f})", flush=True)
        if self.file is not None:
            self.file.write_text(json.dumps(self.results, indent=1, default=float) + "\n")


def machine() -> str:
    """Describe the CPU, its cores, and the load at the start."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown CPU")
    return f"{model}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} at the start"


def installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def seconds(work: Callable[..., object], *given: object) -> float:
    """Return the time that `work` takes."""
    began = time.perf_counter()
    work(*given)
    return time.perf_counter() - began


def cpu_seconds(work: Callable[..., object], *given: object) -> float:
    """Return the CPU time of all threads of the process, which other work on the machine changes little."""
    began = time.process_time()
    work(*given)
    return time.process_time() - began


def spread(values: Sequence[float], form: str = ".2f") -> str:
    """Format the median and, in brackets, the range."""
    return f"{statistics.median(values):{form}} ({min(values):{form}} to {max(values):{form}})"


def make_images(folder: Path, count: int, size: tuple[int, int]) -> Path:
    """Write JPEGs of that size: resized crops of scikit-image's photos, quality 90."""
    import numpy as np
    from PIL import Image
    from skimage import data

    folder.mkdir(exist_ok=True)
    photos = [Image.fromarray(getattr(data, name)()) for name in ("astronaut", "coffee", "cat")]
    rng = np.random.default_rng(0)
    for index in range(count):
        photo = photos[index % len(photos)]
        side = int(rng.integers(200, min(photo.size)))
        left, top = (int(rng.integers(0, whole - side + 1)) for whole in photo.size)
        crop = photo.crop((left, top, left + side, top + side * size[1] // size[0]))
        crop.resize(size, Image.Resampling.BICUBIC).save(folder / f"{index:04}.jpg", quality=90)
    return folder
