"""DecodingPool: images decoded in processes that can be killed, with limits on CPU seconds and memory per image.

    with decoding_processes():
        decode_image(data)          # in another process; the same pixels, or an ImageError

A thread cannot be stopped inside a codec, and a codec may crash. Here the image that exceeds a limit, or crashes two
processes, is an ImageError, and the process is replaced.

There are two lanes. Every image begins in the quick lane, which has a small limit. An image that exceeds it moves to
the heavy lane, whose processes have a low priority. So images that take seconds do not delay others.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeVar

import numpy as np

from nnclr_hub.cores import usable_cores
from nnclr_hub.errors import ImageError, ImageTooExpensive, InvalidRequest, NotReady, ServiceError
from nnclr_hub.images.decoding_process import DecodingProcess, Lane, Operation, ProcessEnded, RelativeSource
from nnclr_hub.images.decoding_worker import NICE, HeavyImage

T = TypeVar("T")
FEW = 200  # images that are decoded without processes, which take 0.2 s to start
KILLS = ("SIGKILL", "SIGTERM")  # signals that no codec raises
_UNITS = {"KB": 10**3, "MB": 10**6, "GB": 10**9}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(KB|MB|GB)\s*", re.IGNORECASE)


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
    """Raised when the image is no longer needed."""


lane: ContextVar[Lane | None] = ContextVar("lane", default=None)


class DecodingPool:
    """The decoding processes of this process; they start when they are needed.

    Args:
        size: images decoded at once in each lane.
        limits: of one image.
        on_killed: called with the reason when a process ended early: cpu, time, stalled, crash or withdrawn.
    """

    def __init__(
        self, size: int, limits: DecodingLimits = DecodingLimits(), on_killed: Callable[[str], None] = lambda why: None
    ) -> None:
        self.owner = os.getpid()
        self._limits, self._on_killed = limits, on_killed
        self._slots = {heavy: threading.BoundedSemaphore(size) for heavy in (False, True)}
        self._idle: dict[bool, list[DecodingProcess]] = {False: [], True: []}
        self._all: set[DecodingProcess] = set()
        self._closed = False

    def run(
        self,
        operation: Operation,
        source: Path | str | bytes | RelativeSource,
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
        sources: Sequence[Path | str | bytes | RelativeSource],
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
        self._close_idle()

    def _close_idle(self) -> None:
        """Close the processes that no thread uses; the thread that uses one of the others closes it."""
        for idle in self._idle.values():
            with suppress(IndexError):  # none is left
                while True:
                    self._close(idle.pop())

    def _close(self, process: DecodingProcess) -> None:
        self._all.discard(process)
        process.close()

    def _started(self, heavy: bool) -> DecodingProcess:
        try:
            process = DecodingProcess(self._limits.memory, NICE if heavy else 0)
        except OSError as error:
            raise ServiceError(
                f"A decoding process cannot be started ({error.strerror or error}); raise the limit that it names "
                "(`ulimit -a`), or decode fewer images at once."
            ) from error
        self._all.add(process)
        return process

    def _run(
        self,
        heavy: bool,
        operation: Operation,
        sources: Sequence[Any],
        arguments: Any,
        take: Any,
        chosen: Lane,
        *,
        again: bool = False,
    ) -> list[Any]:
        """Run an operation on several images, the second time (`again`) in a new process."""
        with self._slots[heavy]:
            if self._closed:
                raise NotReady("The decoding processes are closed.")
            process = None
            if not again:
                with suppress(IndexError):  # none is idle
                    process = self._idle[heavy].pop()
            process = process or self._started(heavy)
            try:
                return process.run(operation, sources, arguments, self._limits.cpu_s, take, chosen)
            except ProcessEnded as ended:
                if self._closed:
                    raise NotReady("The decoding processes are closed.") from None
                self._on_killed(ended.why)
                crashed, failure = ended.why == "crash", _failure(ended, heavy)
            finally:
                if process.is_open:
                    self._idle[heavy].append(process)
                else:
                    self._close(process)
                if self._closed:
                    self._close_idle()
        if len(sources) == 1 and crashed and not again:
            # perhaps it was not the image: the system kills processes when memory is short, also idle ones
            return self._run(heavy, operation, sources, arguments, take, chosen, again=True)
        if len(sources) == 1:
            return [failure]
        # one of them ended the process; alone, each gets its own result
        return [self._run(heavy, operation, [source], arguments, take, chosen)[0] for source in sources]


def _failure(ended: ProcessEnded, heavy: bool) -> Exception:
    """Return the error of the image that ended its process."""
    if ended.why == "withdrawn":
        return Withdrawn()
    if ended.why == "crash" and ended.detail in KILLS:
        return NotReady(f"The process that decoded the image was killed twice ({ended.detail}); try again in a moment.")
    if ended.why == "crash":
        return ImageError(f"The image crashed its decoder ({ended.detail}); save it again.")
    if ended.why == "stalled":
        return ImageError(f"The file was not readable for {ended.detail}; check the disk or the network mount.")
    if not heavy:
        return HeavyImage()
    return ImageTooExpensive(
        f"Decoding the image takes more than {ended.detail}; save it again in a simpler format, or smaller."
    )


def _copies(*values: Any) -> Any:
    return tuple(value.copy() if isinstance(value, np.ndarray) else value for value in values)


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
            _pool, _users = DecodingPool(size or usable_cores(), limits, on_killed), 0
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
