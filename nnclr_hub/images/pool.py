"""DecodingPool: open images in processes that the kernel ends above a limit of CPU time or memory.

    with decoding_processes():
        decode_image(data)          # in another process; the same pixels, or an ImageError

A thread cannot be stopped inside a codec, and a codec may crash. Here an image that exceeds a limit, or crashes two
processes, is one ImageError; the other images of its batch arrive. There is one queue: an image waits at most for the
CPU limit of the images before it.
"""

from __future__ import annotations

import os
import re
import resource
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, Future, TimeoutError, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from multiprocessing import spawn
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

from nnclr_hub.cores import usable_cores
from nnclr_hub.errors import ImageError, ImageTooExpensive, InvalidRequest, NNCLRHubError, NotReady, ServiceError

if TYPE_CHECKING:  # a machine that only trains decodes the files of its user without it
    from pebble import ProcessPool

T = TypeVar("T")
FEW = 200  # below this number of images, starting processes (0.4 s) takes longer than they save
TOGETHER, LIGHT = 8, 200_000  # images and bytes that a process takes at a time
WALL_PER_CPU, WALL_S = 30.0, 60.0  # seconds that may pass per CPU second on a busy machine, and at least
FORGOTTEN_S = 1  # after the end of a pool, for the results of what it had begun
ATTEMPTS = 3  # pools that are started for one image, if the system kills processes
PRELOADED = ["nnclr_hub.images.decode"]
NAME = "nnclr decoder"
_UNITS = {"KB": 10**3, "MB": 10**6, "GB": 10**9}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(KB|MB|GB)\s*", re.IGNORECASE)


@dataclass(frozen=True)
class DecodingLimits:
    """What one image may cost.

    cpu_s: CPU seconds. Of 40 megapixels, QOI takes 35, JPEG 2000 takes 11, and other formats take at most 2.
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


class DecodingPool:
    """The decoding processes of this process; they start when they are needed.

    Args:
        size: images decoded at once.
        limits: of one image.
        on_killed: called with the reason when a process ended early: cpu, time or crash.
    """

    def __init__(
        self, size: int, limits: DecodingLimits = DecodingLimits(), on_killed: Callable[[str], None] = lambda why: None
    ) -> None:
        self.owner = os.getpid()
        self._size, self._limits, self._on_killed = size, limits, on_killed
        self._pool: ProcessPool | None = None
        self._closed = False
        self._changing = threading.Lock()

    def run(self, operation: Callable[..., T], source: Any, *arguments: Any, cpu_s: float | None = None) -> T:
        """Return operation(source, *arguments), computed in a process.

        Args:
            operation: a function of a module that does not import torch.
            cpu_s: CPU seconds instead of those of the limits.

        Raises:
            ImageTooExpensive: the image exceeded a limit.
            ImageError: it cannot be read, or it crashed the codec.
            NotReady: the pool is closed, or the system killed several processes that decoded the image.
            ServiceError: processes cannot start.
        """
        [result] = self._results(operation, [_absolute(source)], arguments, cpu_s)
        if isinstance(result, Exception):
            raise result
        return result

    def run_each(self, operation: Callable[..., T], sources: Sequence[Any], *arguments: Any) -> list[T | Exception]:
        """Return for each source what `run` returns, or the exception that it raises.

        One process takes all of them. For small images that is cheaper than a message for each.
        """
        return self._results(operation, [_absolute(source) for source in sources], arguments)

    def close(self) -> None:
        """End the processes; images that they decode fail with NotReady."""
        self._closed = True
        self._replace(self._pool)

    def _replace(self, pool: ProcessPool | None) -> None:
        """End a pool, so that the next image starts another one."""
        with self._changing:
            if self._pool is pool:
                self._pool = None
        if pool is not None:
            with suppress(RuntimeError):
                pool.stop()
                pool.join()

    def _started(self) -> ProcessPool:
        with self._changing:
            if self._closed:
                raise NotReady("The decoding processes are closed.")
            if self._pool is None:
                from pebble import ProcessPool

                self._pool = ProcessPool(
                    self._size, initializer=_prepare, initargs=(self._limits.memory,), context=_context()
                )
            return self._pool

    def _results(
        self, operation: Any, sources: list[Any], arguments: tuple[Any, ...], cpu_s: float | None = None
    ) -> list[Any]:
        if not sources:
            return []
        if find_spec("pebble") is None:
            return attempt_each(lambda source: operation(source, *arguments), sources)
        from pebble import ProcessExpired

        limit = cpu_s or self._limits.cpu_s
        failure: Exception = NotReady("The decoding processes are closed.")
        crashes = 0
        for _ in range(ATTEMPTS):
            pool = self._started()
            try:
                wall = max(WALL_S, WALL_PER_CPU * limit) * len(sources)
                work = (operation, sources, arguments, limit)
                return self._wait(pool, pool.schedule(_work, args=work, timeout=wall))
            except (TimeoutError, ProcessExpired) as ended:
                failure, crashed = self._failure(ended, limit)
            except (BrokenProcessPool, RuntimeError, CancelledError, OSError) as error:
                # an idle process was killed, perhaps because memory was short, or none could be started
                if self._closed:
                    raise NotReady("The decoding processes are closed.") from None
                self._replace(pool)
                failure = _cannot_start(error)
                continue
            if len(sources) > 1:  # alone, each gets its own result
                return [self._results(operation, [source], arguments, cpu_s)[0] for source in sources]
            crashes += crashed
            if not crashed or (crashes > 1 and not isinstance(failure, NotReady)):
                break
        return [failure] if len(sources) == 1 else [failure] * len(sources)

    def _wait(self, pool: ProcessPool, future: Future[list[Any]]) -> list[Any]:
        """Return the result; a pool that ended may have forgotten what was scheduled at that moment."""
        while not future.done() and self._pool is pool:
            wait([future], timeout=0.5)
        if not wait([future], timeout=FORGOTTEN_S).done:
            raise CancelledError
        return future.result()

    def _failure(self, ended: Exception, limit: float) -> tuple[Exception, bool]:
        """Return the error of the image in the process that ended, and whether another process should try it."""
        if isinstance(ended, TimeoutError):
            self._on_killed("time")
            return ImageError(
                "Reading the image takes too long; check the disk or the network mount, or save it again."
            ), False
        code = getattr(ended, "exitcode", 0) or 0
        if code == -signal.SIGPROF:
            self._on_killed("cpu")
            return ImageTooExpensive(
                f"Decoding the image takes more than {limit:g} CPU seconds; save it again in a simpler format, or "
                "smaller."
            ), False
        self._on_killed("crash")
        if self._closed:
            return NotReady("The decoding processes are closed."), False
        if code in (-signal.SIGKILL, -signal.SIGTERM):  # no codec raises these: the system was short of memory
            return NotReady("The process that decoded the image was killed; try again in a moment."), True
        name = signal.Signals(-code).name if code < 0 else f"exit status {code}"
        return ImageError(f"The image crashed its decoder ({name}); save it again."), True


def _absolute(source: Any) -> Any:
    """Return a source that means the same in a process with another working directory."""
    if isinstance(source, str | Path):
        return os.path.abspath(source)
    return source.absolute() if hasattr(source, "absolute") else source


def _cannot_start(error: Exception) -> Exception:
    cause = error.__cause__ or error
    if isinstance(cause, OSError) and cause.errno is not None:
        return ServiceError(
            f"A decoding process cannot be started ({cause.strerror or cause}); raise the limit that it names "
            "(`ulimit -a`), or decode fewer images at once."
        )
    return NotReady("The decoding processes were killed several times; try again in a moment.")


# ---- in a decoding process -------------------------------------------------------------------------------------------


def _prepare(memory: int) -> None:
    """Load the codecs, then limit the memory of a decoding process."""
    warnings.simplefilter("ignore")
    for module in PRELOADED:
        import_module(module).readable_formats()
    limit_memory(memory)


def _work(operation: Any, sources: Sequence[Any], arguments: tuple[Any, ...], cpu_s: float) -> list[Any]:
    """Run an operation on several images, each under a timer by which the kernel ends this process."""
    results: list[Any] = []
    for source in sources:
        signal.setitimer(signal.ITIMER_PROF, cpu_s)
        try:
            results.append(operation(source, *arguments))
        except MemoryError:
            results.append(ImageTooExpensive("Too little memory to decode the image."))
        except NNCLRHubError as error:
            results.append(error)
        except Exception as error:  # noqa: BLE001 - the parent raises it
            results.append(RuntimeError(f"decoding failed ({type(error).__name__}: {error})"))
    signal.setitimer(signal.ITIMER_PROF, 0)
    return results


def limit_memory(memory: int) -> None:
    """Let this process allocate `memory` more bytes; beyond that MemoryError is raised. Only Linux enforces it."""
    if sys.platform != "linux":
        return
    with Path("/proc/self/statm").open() as file:
        own = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (own + memory, own + memory))
    with suppress(OSError):  # if the machine itself runs out of memory, this process ends before its parent does
        Path("/proc/self/oom_score_adj").write_text("1000")


# ---- how processes start ---------------------------------------------------------------------------------------------


class _Process(ForkServerProcess):
    @staticmethod
    def _Popen(process_obj: Any) -> Any:
        name, process_obj._name = process_obj._name, NAME
        try:
            return ForkServerProcess._Popen(process_obj)
        finally:
            process_obj._name = name


class _Context(ForkServerContext):
    Process = _Process  # type: ignore[assignment]


def _context() -> _Context:
    """Return a context whose processes fork from one that has loaded the codecs, and never run the main program."""
    context = _Context()
    context.set_forkserver_preload(PRELOADED)
    spawn.get_preparation_data = _without_main
    return context


_preparation_data = spawn.get_preparation_data


def _without_main(name: str) -> dict[str, Any]:
    """Return what multiprocessing sends to a new process; a decoder must not import the user's script again."""
    data: dict[str, Any] = _preparation_data(name)
    return {key: value for key, value in data.items() if name != NAME or not key.startswith("init_main")}


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
        limits: of one image; None: from the environment.
        on_killed: see `DecodingPool`.
        images: number of images, if known; fewer than FEW are decoded here.
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


def run_isolated(operation: Callable[..., T], source: Any, *arguments: Any, cpu_s: float | None = None) -> T:
    """Return operation(source, *arguments), computed in a decoding process if this process uses them.

    Pixels are decoded already, and stay here.
    """
    pool, source = active_pool(), read_stored(source)
    if pool is None or not is_file(source):
        return operation(source, *arguments)
    return pool.run(operation, source, *arguments, cpu_s=cpu_s)


def run_isolated_each(operation: Callable[..., T], sources: Sequence[Any], *arguments: Any) -> list[T | Exception]:
    """Return for each source what `run_isolated` returns, or the exception that it raises."""
    pool = active_pool()
    if pool is not None and all(map(is_file, sources)):
        return pool.run_each(operation, sources, *arguments)
    return attempt_each(lambda source: run_isolated(operation, source, *arguments), sources)


def read_stored(source: Any) -> Any:
    """Return the bytes of an image that is stored elsewhere, and other sources as they are."""
    return source.read() if hasattr(source, "read") else source


def is_file(source: Any) -> bool:
    """Return whether a source is a file, a part of one or its bytes, and not yet pixels."""
    return isinstance(source, str | Path | bytes) or hasattr(source, "box")


def attempt_each(work: Callable[[Any], T], sources: Sequence[Any]) -> list[T | Exception]:
    """Return for each source what `work` returns, or the exception that it raises."""
    results: list[T | Exception] = []
    for source in sources:
        try:
            results.append(work(source))
        except Exception as error:  # noqa: BLE001 - the caller decides
            results.append(error)
    return results
