"""The number of CPU cores that this process may use."""

from __future__ import annotations

import math
import os
from contextlib import suppress
from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")  # in a container, its own limits


def usable_cores() -> int:
    """Return the number of cores of the process's CPU mask and of its container's limit, rounded up; at least 1."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    for names in (["cpu.max"], ["cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us"]):  # cgroup versions 2 and 1
        with suppress(OSError, ValueError):  # no such file, or "max"
            quota, period = map(int, " ".join((CGROUP / name).read_text() for name in names).split())
            if quota > 0 and period > 0:
                cores = min(cores, math.ceil(quota / period))
    return max(1, cores)
