"""Output of the store benchmarks: command, machine, commit, and results."""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

# what faiss and numpy have kernels for
_FLAGS = ("avx2", "avx512f", "avx512_bf16", "avx512_vnni", "amx_bf16", "neon", "sve")


@dataclass
class Report:
    """Print each result at once, and write all results to a JSON file if one is wanted.

    file: the JSON file, or None.
    """

    file: Path | None = None
    figures: dict[str, Any] = field(default_factory=dict)

    def begin(self, **settings: Any) -> None:
        """Print command, machine, commit, versions and settings."""
        self.figures = {"command": f"python {' '.join(sys.argv)}", "machine": machine(), "commit": commit()}
        self.figures |= {"versions": versions(("numpy", "faiss-cpu")), "settings": settings}
        for name, value in self.figures.items():
            print(f"{name}: {value}")

    def say(self, name: str, value: Any, sentence: str) -> None:
        """Record one result under a unique name, and print its sentence."""
        self.figures[name] = value
        print(f"[{time.strftime('%H:%M:%S')}] {sentence} (load {os.getloadavg()[0]:.1f})", flush=True)
        if self.file is not None:
            self.file.write_text(json.dumps(self.figures, indent=1, default=float) + "\n")


def machine() -> str:
    """Describe the CPU, its cores and vector instructions, the memory, and the load at the start."""
    try:
        info = dict(line.split(":", 1) for line in Path("/proc/cpuinfo").read_text().splitlines() if ":" in line)
        known = {name.strip(): value.strip() for name, value in info.items()}
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    except (OSError, ValueError):
        return f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores"
    flags = " ".join(flag for flag in known.get("flags", "").split() if flag in _FLAGS)
    model = known.get("model name", platform.machine())
    return f"{model} ({flags}), {os.cpu_count()} cores, {memory:.0f} GiB, load {os.getloadavg()[0]:.1f} at the start"


def commit() -> str:
    """Return the short hash of the checkout, with a suffix if files differ from it."""
    command = ["git", "-C", str(Path(__file__).resolve().parent), "describe", "--always", "--dirty", "--exclude", "*"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def versions(packages: Sequence[str]) -> dict[str, str]:
    """Return the versions of the installed packages and of Python."""
    found = {"python": platform.python_version()}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found


def seconds(work: Callable[[], object]) -> float:
    """Return the time that `work` takes."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def cpu_seconds(work: Callable[[], object]) -> float:
    """Return the CPU time of all threads of the process, which other work on the machine changes little."""
    began = time.process_time()
    work()
    return time.process_time() - began


def spread(values: Sequence[float], form: str = ".2f") -> str:
    """Format the median and, in brackets, the range."""
    return f"{statistics.median(values):{form}} ({min(values):{form}} to {max(values):{form}})"
