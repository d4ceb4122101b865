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
import os
import pickle
import re
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
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
        [result] = self.run_each(operation, [source], arguments, take)
        if isinstance(result, Exception):
            raise result
        return result

    def run_each(
        self,
        operation: Operation,
        sources: Sequence[Path | str | bytes],
        arguments: tuple[Any, ...] = (),
        take: Callable[..., T] | None = None,
    ) -> list[T | Exception]:
        """Return for each source what `run` returns, or the exception that it raises.

        One process decodes them one after the other. For small images that is cheaper than a message for each.

        Raises:
            ServiceError, NotReady: see `run`.
        """
        chosen = lane.get()
        take = take or _copies
        if chosen is not None and chosen.heavy:
            return [self._run(True, operation, [source], arguments, take, chosen)[0] for source in sources]
        results = self._run(False, operation, sources, arguments, take, Lane(heavy=False))
        if chosen is None:
            heavy = Lane(heavy=True)
            for index, result in enumerate(results):
                if isinstance(result, HeavyImage):
                    [results[index]] = self._run(True, operation, [sources[index]], arguments, take, heavy)
        return results

    def close(self) -> None:
        """End the processes; images that they decode fail with NotReady."""
        self._closed = True
        for process in tuple(self._all):
            process.kill()

    def _run(
        self, heavy: bool, operation: Operation, sources: Sequence[Any], arguments: Any, take: Any, chosen: Lane
    ) -> list[Any]:
        with self._slots[heavy]:
            if self._closed:
                raise NotReady("The decoding processes are closed.")
            try:
                process = self._idle[heavy].pop()
            except IndexError:
                process = _Process(self._limits.memory, NICE if heavy else 0)
                self._all.add(process)
            try:
                return process.run(operation, sources, arguments, self._limits.cpu_s, take, chosen)
            except _Ended as ended:
                if self._closed:
                    raise NotReady("The decoding processes are closed.") from None
                self._on_killed(ended.why)
                failure = _failure(ended, heavy)
            finally:
                if process.is_open and not self._closed:
                    self._idle[heavy].append(process)
                else:
                    self._all.discard(process)
                    process.close()
        if len(sources) == 1:
            return [failure]
        # one of them ended the process; alone, each gets its own result
        return [self._run(heavy, operation, [source], arguments, take, chosen)[0] for source in sources]


class _Ended(Exception):
    """Raised when a process ended while it decoded an image."""

    def __init__(self, why: str, detail: str = "") -> None:
        super().__init__(why)
        self.why, self.detail = why, detail


def _failure(ended: _Ended, heavy: bool) -> Exception:
    """Return the error of the image that ended its process."""
    if ended.why == "withdrawn":
        return Withdrawn()
    if ended.why == "crash":
        return ImageError(f"The image crashed its decoder ({ended.detail}); save it again.")
    if not heavy:
        return HeavyImage()
    return ImageTooExpensive(
        f"Decoding the image takes more than {ended.detail}; save it again in a simpler format, or smaller."
    )


class _Process:
    """One decoding process, used by one thread at a time."""

    def __init__(self, memory: int, nice: int) -> None:
        self.is_open = True
        self._ready = False
        self._buffer = SharedBuffer(_unnamed_file())
        self._connection, other = socket.socketpair()
        path = [str(Path(__file__).resolve().parents[2]), *sys.path]
        self._waiting = select.poll()
        self._waiting.register(self._connection, select.POLLIN)
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
        sources: Sequence[Any],
        arguments: tuple[Any, ...],
        seconds: float,
        take: Callable[..., T],
        chosen: Lane,
    ) -> list[T | Exception]:
        """Run an operation on several images.

        Raises:
            _Ended: the process ended, or was killed.
        """
        self._wait_until_ready()
        sent: list[int | str] = []
        with self._buffer.view(sum(len(source) for source in sources if isinstance(source, bytes))) as view:
            position = 0
            for source in sources:
                if isinstance(source, bytes):
                    view[position : position + len(source)] = source
                    position += len(source)
                    sent.append(len(source))
                else:
                    sent.append(os.path.abspath(source))  # the working directory of this process may have changed
        message = (operation, sent, arguments, seconds, not chosen.heavy, self._buffer.size)
        self.is_open = False  # until the reply is here, also if an exception such as Ctrl-C arrives before it
        try:
            send(self._connection, pickle.dumps(message, pickle.HIGHEST_PROTOCOL))
            reply = json.loads(self._receive(seconds, chosen) or self._fail(seconds))
        except OSError:
            self._fail(seconds)
        self.is_open = True
        self._buffer.size = reply["size"]
        for name in reply["pages"]:
            from nnclr_hub.encoder import decoding  # imports this module

            decoding.warn_of_pages(name)
        try:
            return [self._result(each, take) for each in reply["results"]]
        finally:
            self._buffer.shrink(KEPT)

    def _result(self, result: dict[str, Any], take: Callable[..., T]) -> T | Exception:
        if "values" in result:
            view = self._buffer.view(self._buffer.size)
            return take(*(np.ndarray(v[2], v[1], view, v[0]) if isinstance(v, list) else v for v in result["values"]))
        if "error" in result:
            code, message = result["error"]
            return BY_CODE[code](message)
        return HeavyImage() if "heavy" in result else RuntimeError(f"decoding failed ({result['failed']})")

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
        with suppress(OSError):
            self._ready = bool(self._waiting.poll(1000 * START_S)) and receive(self._connection) == b"ready"
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
            if self._waiting.poll(1000 * (min(left, CHECK_S) if chosen.heavy else left)):
                return receive(self._connection)
            if not chosen.is_wanted():
                raise _Ended("withdrawn")

    def _fail(self, seconds: float) -> Any:
        """Raise _Ended with the reason why the process ended."""
        code = self._process.wait()
        if code == -signal.SIGPROF:
            raise _Ended("cpu", f"its share of {seconds:g} CPU seconds") from None
        name = signal.Signals(-code).name if code < 0 else f"exit status {code}"
        raise _Ended("crash", name) from None


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
