"""DecodingPool: images decoded in processes that can be killed, with limits on CPU seconds and memory per image.

    with decoding_processes():
        decode_image(data)          # in another process; the same pixels, or an ImageError

A thread cannot be stopped inside a codec, and a codec may crash. Here the image that exceeds a limit, or crashes its
process, is an ImageError, and the process is replaced.

There are two lanes. Every image begins in the quick lane, which has a small limit. An image that exceeds it moves to
the heavy lane, whose processes have a low priority. So images that take seconds do not delay others.
"""

from __future__ import annotations

import json
import math
import os
import pickle
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeVar

import numpy as np

from nnclr_hub.encoder.decoding_worker import NICE, HeavyImage, SharedBuffer, receive, send
from nnclr_hub.errors import BY_CODE, ImageError, ImageTooExpensive, InvalidRequest, NotReady, ServiceError

T = TypeVar("T")
Operation = Callable[..., tuple[Any, ...]]
START_S = 60.0  # seconds until a new process is ready, also on a busy machine
WALL_PER_CPU = 30.0  # seconds that may pass per CPU second: a process may also wait, for a disk or for a busy machine
CHECK_S = 0.5  # seconds between two checks that somebody still waits for a heavy image
FEW = 200
KEPT = 48 << 20  # bytes of the buffer that a process keeps between two images
_UNITS = {"KB": 10**3, "MB": 10**6, "GB": 10**9}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(KB|MB|GB)\s*", re.IGNORECASE)
_START = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from nnclr_hub.encoder.decoding_worker import main; main(*map(int, sys.argv[2:]))"
)


@dataclass(frozen=True)
class DecodingLimits:
    """What one image may cost.

    cpu_s: CPU seconds of an image of 40 megapixels; smaller ones have less in proportion, but at least a twentieth.
    memory: bytes of memory, on Linux.
    """

    cpu_s: float = 40.0
    memory: int = 2_000_000_000

    @classmethod
    def from_environment(cls) -> Self:
        """Read NNCLR_DECODE_CPU_S and NNCLR_DECODE_MEMORY, as the server does.

        Raises:
            InvalidRequest: a value is not a positive number.
        """

        def read(variable: str, parse: Callable[[str], Any], default: Any) -> Any:
            text = os.environ.get(variable)
            try:
                value = parse(text) if text else default
                if value > 0:
                    return value
            except ValueError:
                pass
            raise InvalidRequest(f"{variable} must be a positive number, got {text!r}.")

        return cls(read("NNCLR_DECODE_CPU_S", float, cls.cpu_s), read("NNCLR_DECODE_MEMORY", parse_bytes, cls.memory))


def parse_bytes(text: str) -> int:
    """Return a number of bytes from text such as 4GB, which is 4,000,000,000.

    Raises:
        ValueError: it is neither that nor a whole number.
    """
    match = _SIZE.fullmatch(text)
    return int(text) if match is None else int(float(match[1]) * _UNITS[match[2].upper()])


class Withdrawn(Exception):
    """Raised when nobody waits for the image any more."""


@dataclass(frozen=True)
class Lane:
    """Restricts what `run` does in this context, for a caller that queues heavy images itself.

    heavy: use the heavy lane only; otherwise the quick lane, which raises HeavyImage.
    is_wanted: whether somebody still waits for the image.
    """

    heavy: bool
    is_wanted: Callable[[], bool] = lambda: True


lane: ContextVar[Lane | None] = ContextVar("lane", default=None)


class DecodingPool:
    """The decoding processes of this process; they start when they are needed.

    Args:
        size: images decoded at once in each lane.
        limits: of one image.
        on_killed: called with the reason when a process ended early: cpu, time, crash or withdrawn.
    """

    def __init__(
        self, size: int, limits: DecodingLimits = DecodingLimits(), on_killed: Callable[[str], None] = lambda why: None
    ) -> None:
        self.owner = os.getpid()
        self._limits, self._on_killed = limits, on_killed
        self._slots = {heavy: threading.BoundedSemaphore(size) for heavy in (False, True)}
        self._idle: dict[bool, list[_Process]] = {False: [], True: []}
        self._all: set[_Process] = set()
        self._closed = False

    def run(
        self,
        operation: Operation,
        source: Path | str | bytes,
        arguments: tuple[Any, ...] = (),
        take: Callable[..., T] | None = None,
    ) -> T:
        """Return take(*operation(source, *arguments)), where the operation runs in a process.

        Args:
            operation: a function of a module that does not import torch. It returns a tuple of arrays, RGB images, and
                values that JSON can hold.
            take: takes the values; arrays are views of memory that is used again, and images are arrays (H, W, 3)
                of uint8. None: a tuple of copies.

        Raises:
            ImageTooExpensive: the image exceeded a limit.
            ImageError: it cannot be read, or it crashed the codec.
            ServiceError: a process cannot start.
            NotReady: the pool is closed.
            HeavyImage, Withdrawn: see `Lane`.
        """
        chosen = lane.get()
        if chosen is None or not chosen.heavy:
            try:
                return self._run(False, operation, source, arguments, take or _copies, Lane(heavy=False))
            except HeavyImage:
                if chosen is not None:
                    raise
        return self._run(True, operation, source, arguments, take or _copies, chosen or Lane(heavy=True))

    def close(self) -> None:
        """End the processes; images that they decode fail with NotReady."""
        self._closed = True
        for process in tuple(self._all):
            process.kill()

    def _run(self, heavy: bool, operation: Operation, source: Any, arguments: Any, take: Any, chosen: Lane) -> Any:
        with self._slots[heavy]:
            if self._closed:
                raise NotReady("The decoding processes are closed.")
            try:
                process = self._idle[heavy].pop()
            except IndexError:
                process = _Process(self._limits.memory, NICE if heavy else 0)
                self._all.add(process)
            try:
                return process.run(operation, source, arguments, self._limits.cpu_s, take, chosen)
            except _Ended as ended:
                if self._closed:
                    raise NotReady("The decoding processes are closed.") from None
                self._on_killed(ended.why)
                if ended.why == "withdrawn":
                    raise Withdrawn from None
                if ended.why == "crash":
                    raise ImageError(f"The image crashed its decoder ({ended.detail}); save it again.") from None
                if not heavy:
                    raise HeavyImage from None
                raise ImageTooExpensive(
                    f"Decoding the image takes more than {ended.detail}; save it again in a simpler format, or smaller."
                ) from None
            finally:
                if process.is_open and not self._closed:
                    self._idle[heavy].append(process)
                else:
                    self._all.discard(process)
                    process.close()


class _Ended(Exception):
    """Raised when a process ended while it decoded an image."""

    def __init__(self, why: str, detail: str = "") -> None:
        super().__init__(why)
        self.why, self.detail = why, detail


class _Process:
    """One decoding process, used by one thread at a time."""

    def __init__(self, memory: int, nice: int) -> None:
        self.is_open = True
        self._ready = False
        self._buffer = SharedBuffer(_unnamed_file())
        self._connection, other = socket.socketpair()
        path = [str(Path(__file__).resolve().parents[2]), *sys.path]
        with other:
            self._process = subprocess.Popen(
                # -I and -S: the path is given, and reading it again takes a third of the start
                [
                    sys.executable,
                    "-I",
                    "-S",
                    "-c",
                    _START,
                    json.dumps(path),
                    *map(str, (self._buffer.fd, memory, nice)),
                ],
                stdin=other.fileno(),
                stdout=subprocess.DEVNULL,
                pass_fds=(self._buffer.fd,),
                env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
                start_new_session=True,  # Ctrl-C in a terminal reaches the parent only
            )

    def run(
        self,
        operation: Operation,
        source: Any,
        arguments: tuple[Any, ...],
        seconds: float,
        take: Callable[..., T],
        chosen: Lane,
    ) -> T:
        """Run one operation.

        Raises:
            _Ended: the process ended, or was killed.
        """
        self._wait_until_ready()
        if isinstance(source, bytes):
            with self._buffer.view(len(source)) as view:
                view[:] = source
            source = len(source)
        else:
            source = os.path.abspath(source)  # the working directory of this process may have changed
        message = pickle.dumps((operation, source, arguments, seconds, not chosen.heavy), pickle.HIGHEST_PROTOCOL)
        self.is_open = False  # until the reply is here, also if an exception such as Ctrl-C arrives before it
        try:
            send(self._connection, message)
            reply = json.loads(self._receive(seconds, chosen) or self._fail(seconds))
        except OSError:
            self._fail(seconds)
        self.is_open = True
        if pages := reply.get("pages"):
            from nnclr_hub.encoder import decoding  # imports this module

            decoding.warn_of_pages(pages[0])
        if "values" in reply:
            return self._take(reply["values"], take)
        if "error" in reply:
            code, message = reply["error"]
            raise BY_CODE[code](message)
        if "heavy" in reply:
            raise HeavyImage
        raise RuntimeError(f"decoding failed ({reply['failed']})")

    def kill(self) -> None:
        """End the process and wait until it has ended; the thread that uses it, if any, gets _Ended."""
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        """End the process, wait until it has ended, and give its memory back."""
        self.kill()
        self._connection.close()
        self._buffer.close()

    def _wait_until_ready(self) -> None:
        if self._ready:
            return
        self._connection.settimeout(START_S)
        with suppress(OSError):
            self._ready = receive(self._connection) == b"ready"
        if not self._ready:
            self.is_open = False
            raise ServiceError("A decoding process cannot be started; see the messages on standard error.")

    def _receive(self, seconds: float, chosen: Lane) -> bytes:
        """Return the reply; b"" if the process ended."""
        deadline = time.monotonic() + seconds * WALL_PER_CPU
        while True:
            left = deadline - time.monotonic()
            if left <= 0:
                raise _Ended("time", f"{seconds * WALL_PER_CPU:g} s")
            self._connection.settimeout(min(left, CHECK_S) if chosen.heavy else left)
            try:
                return receive(self._connection)
            except TimeoutError:
                if not chosen.is_wanted():
                    raise _Ended("withdrawn") from None

    def _fail(self, seconds: float) -> Any:
        """Raise _Ended with the reason why the process ended."""
        code = self._process.wait()
        if code == -signal.SIGPROF:
            raise _Ended("cpu", f"its share of {seconds:g} CPU seconds") from None
        name = signal.Signals(-code).name if code < 0 else f"exit status {code}"
        raise _Ended("crash", name) from None

    def _take(self, described: list[Any], take: Callable[..., T]) -> T:
        """Return the values of a reply, with arrays in the shared buffer."""
        parts = [value for value in described if isinstance(value, list)]
        sizes = [math.prod(shape) * np.dtype(kind).itemsize for _, kind, shape in parts]
        view = self._buffer.view(sum(sizes))
        values = [np.ndarray(v[2], v[1], view, v[0]) if isinstance(v, list) else v for v in described]
        try:
            return take(*values)
        finally:
            values.clear()
            del view
            self._buffer.shrink(KEPT)


def _copies(*values: Any) -> Any:
    return tuple(value.copy() if isinstance(value, np.ndarray) else value for value in values)


def _unnamed_file() -> int:
    """Return a file in memory without a name, or on macOS a temporary file that is deleted already."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("nnclr-decoding")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


# ---- the pool of this process ----------------------------------------------------------------------------------------

_pool: DecodingPool | None = None
_users = 0
_changing = threading.Lock()


@contextmanager
def decoding_processes(
    size: int | None = None,
    limits: DecodingLimits | None = None,
    on_killed: Callable[[str], None] = lambda why: None,
    *,
    images: int | None = None,
) -> Iterator[None]:
    """Decode all images of this process in other processes, inside the block. An inner block uses the outer pool.

    Args:
        size: images decoded at once; None: one per core.
        images: number of images, if known; fewer than FEW are decoded here, since a process takes 0.2 s to start.
        limits: of one image; None: from the environment.
        on_killed: see `DecodingPool`.
    """
    global _pool, _users
    if images is not None and images < FEW:
        yield
        return
    with _changing:
        if _pool is None or _pool.owner != os.getpid():
            limits = limits or DecodingLimits.from_environment()
            _pool, _users = DecodingPool(size or os.cpu_count() or 1, limits, on_killed), 0
        _users += 1
    try:
        yield
    finally:
        with _changing:
            _users -= 1
            unused, _pool = (_pool, None) if not _users else (None, _pool)
        if unused is not None:
            unused.close()


def active_pool() -> DecodingPool | None:
    """Return the pool of this process; None outside `decoding_processes`, and in a fork."""
    return _pool if _pool is not None and _pool.owner == os.getpid() else None
