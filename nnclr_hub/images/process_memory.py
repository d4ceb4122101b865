"""A limit of the memory of this process, for one that decodes untrusted files."""

from __future__ import annotations

import resource
import sys
from contextlib import suppress
from pathlib import Path


def limit_memory(memory: int) -> None:
    """Let this process allocate `memory` more bytes; beyond that MemoryError is raised. Only Linux enforces it."""
    if sys.platform != "linux":
        return
    with Path("/proc/self/statm").open() as file:
        own = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (own + memory, own + memory))
    with suppress(OSError):  # if the machine itself runs out of memory, this process ends before its parent does
        Path("/proc/self/oom_score_adj").write_text("1000")
