"""Operations for tests of decoding processes, which import this module; so it imports little."""

import os
import signal
import stat
import struct
import sys
import time
from contextlib import suppress
from pathlib import Path

import numpy as np


def describe(source):
    """Return the process, and whether it has loaded a large library."""
    return os.getpid(), bool({"torch", "faiss", "fastapi", "timm"} & set(sys.modules))


def echo(source):
    return np.frombuffer(source, np.uint8), len(source)


def sleep(source, begun):
    """Sleep for a minute after the file `begun` was made."""
    Path(begun).touch()
    time.sleep(60)


def outlive(source, begun):
    """Return when the parent that made the call has ended, after the file `begun` was made."""
    Path(begun).touch()
    time.sleep(0.5)


def spin(source):
    """Compute for ever."""
    while True:
        pass


def spin_if_asked(source):
    """Compute for ever for the source b"spin"."""
    return spin(source) if source == b"spin" else len(source)


def crash(source):
    os.kill(os.getpid(), signal.SIGSEGV)


def exhaust(source):
    return np.ones(3_000_000_000, np.uint8)


def allocate(source, size):
    return len(bytes(size))


def killed_once(source, begun):
    """Be killed the first time, as by the system when memory is short."""
    if not Path(begun).exists():
        Path(begun).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return True


def killed_while_it_answers(source, begun):
    """Be killed the first time, when a part of the result is sent."""
    if not Path(begun).exists():
        Path(begun).touch()
        for handle in map(int, os.listdir("/proc/self/fd")):
            with suppress(OSError):
                if handle > 2 and stat.S_ISSOCK(os.fstat(handle).st_mode):
                    os.write(handle, struct.pack("!i", 1000) + b"half")
        os.kill(os.getpid(), signal.SIGKILL)
    return True


def killed_always(source):
    """Be killed, as by the system when memory is short."""
    os.kill(os.getpid(), signal.SIGKILL)
