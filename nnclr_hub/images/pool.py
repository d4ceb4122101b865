"""DecodingPool: open images in processes that the kernel ends above a limit of CPU time or memory.

    with decoding_processes():
        decode_image(data)          # in another process; the same pixels, or an ImageError

    DecodingPool(2).run(operation, data, limits=DecodingLimits(5, 1 << 30))     # any function of a module, any bytes

A thread cannot be stopped inside a codec, and a codec may crash. Here an image that exceeds a limit, or crashes two
processes, is one ImageError; the other images of its batch arrive. There is one queue: an image waits at most for the
CPU limit of the images before it.

A thread that wants an image takes a process, sends the image through a socket and waits at the socket. There are no
other threads, locks or shared memory, so whatever ends a process is seen by the one thread that waits for it.
"""

from __future__ import annotations

import io
import multiprocessing
import os
import pickle
import queue
import re
import resource
import select
import signal
import socket
import struct
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from multiprocessing import forkserver, popen_forkserver, reduction, spawn, util
from multiprocessing.connection import wait
from multiprocessing.context import ForkServerProcess, set_spawning_popen
from pathlib import Path
from typing import Any, Self, TypeVar

from nnclr_hub.cores import usable_cores
from nnclr_hub.errors import ImageError, ImageTooExpensive, InvalidRequest, NNCLRHubError, NotReady
from nnclr_hub.images.source import TABLE, Source
from nnclr_hub.remote_files import is_address

T = TypeVar("T")
FEW = 200  # below this number of images, starting processes (0.4 s) takes longer than they save
TOGETHER, LIGHT = 8, 200_000  # images and bytes that a process takes at a time
WALL_PER_CPU, WALL_S = 30.0, 60.0  # seconds that may pass per CPU second on a busy machine, and at least
START_S = 60.0  # in which a process starts, on a busy machine too
# processes that are tried for one image: after a crash, a second one shows that it was the image; the system kills
# processes when memory is short, which may pass
CRASHES, KILLS = 2, 3
PRELOADED = "nnclr_hub.images.decode"
NAME = "nnclr decoder"
_HEAD, _PIECE = 8, 1 << 16  # bytes of the length before a message, and most that are received at once
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
        given: dict[str, Any] = {}
        for field, variable, parse in (
            ("cpu_s", "NNCLR_DECODE_CPU_S", float),
            ("memory", "NNCLR_DECODE_MEMORY", parse_bytes),
        ):
            if text := os.environ.get(variable):
                with suppress(ValueError):
                    given[field] = parse(text)
                if not given.get(field, 0) > 0:
                    raise InvalidRequest(f"{variable} must be a positive number, got {text!r}.")
        return cls(**given)


def parse_bytes(text: str) -> int:
    """Return a number of bytes from text such as 4GB, which is 4,000,000,000; raise ValueError for other text."""
    match = _SIZE.fullmatch(text)
    return int(text) if match is None else int(float(match[1]) * _UNITS[match[2].upper()])


# of listing one archive, and of reading one row of a table, whose group of rows is in memory as a whole
LISTING, ROWS = DecodingLimits(300.0, 6_000_000_000), DecodingLimits(60.0, 6_000_000_000)


class DecodingPool:
    """The decoding processes of this process; they start when they are needed.

    Args:
        size: images decoded at once.
        limits: limits on one image.
        on_killed: called with the reason when a process ended early: cpu, time or crash.
        wait_s: seconds that a caller waits for a process that is not busy; None: as long as it takes.
    """

    def __init__(
        self,
        size: int,
        limits: DecodingLimits = DecodingLimits(),
        on_killed: Callable[[str], None] = lambda why: None,
        wait_s: float | None = None,
    ) -> None:
        self.owner = os.getpid()
        self._size, self._limits, self._on_killed, self._wait_s = size, limits, on_killed, wait_s
        self._running: set[_Worker] = set()
        self._closed = False
        self._readers: dict[DecodingLimits, DecodingPool] = {}
        self._starting = threading.Lock()
        # a process, or None for one that is not started; the last one that was used is taken first
        self._free: queue.LifoQueue[_Worker | None] = queue.LifoQueue()
        for _ in range(size):
            self._free.put(None)

    def run(self, operation: Callable[..., T], source: Any, *arguments: Any, limits: DecodingLimits | None = None) -> T:
        """Return operation(source, *arguments), computed in a process.

        Args:
            operation: a function of a module that does not import torch.
            limits: limits of this call, instead of those of the pool.

        Raises:
            ImageTooExpensive: the image exceeded a limit.
            ImageError: it cannot be read, or it crashed the codec.
            NotReady: the pool is closed, all processes stay busy, none can be started, or the system killed several
                that decoded the image.
        """
        [result] = self.run_each(operation, [source], *arguments, limits=limits)
        if isinstance(result, Exception):
            raise result
        return result

    def run_each(
        self, operation: Callable[..., T], sources: Sequence[Any], *arguments: Any, limits: DecodingLimits | None = None
    ) -> list[T | Exception]:
        """Return for each source what `run` returns, or the exception that it raises.

        One process takes all of them. For small images that is cheaper than a message for each.
        """
        limits = limits or self._limits
        sources, results, ended = [_absolute(source) for source in sources], list[Any](), 0
        while len(results) < len(sources):
            try:
                worker = self._free.get(timeout=self._wait_s)
            except queue.Empty as error:
                text = f"All decoding processes were busy for {self._wait_s:g} s; try again in a moment."
                raise NotReady(text) from error
            try:
                self._check_open()
                worker = worker or _Worker()
                self._running.add(worker)
                worker.channel.patience(max(WALL_S, WALL_PER_CPU * limits.cpu_s))
                worker.channel.send((operation, sources[len(results) :], arguments, limits))
                while len(results) < len(sources):
                    results.append(worker.channel.receive())
                    ended = 0
            except (EOFError, OSError) as error:  # OSError also for a process that is killed while it sends
                assert worker is not None
                failure, most = self._failure(error, worker.end(), limits)
                ended += 1
                if ended >= most:
                    results.append(failure)
                    ended = 0
            except BaseException:  # such as KeyboardInterrupt: the process may still send results
                if worker is not None:
                    worker.end()
                raise
            finally:
                self._running.discard(worker)  # type: ignore[arg-type]
                self._free.put(None if worker is None or worker.channel.closed else worker)
        return results

    def reader(self, limits: DecodingLimits) -> DecodingPool:
        """Return the one process that lists archives, or reads rows of tables, because it keeps groups of them."""
        with self._starting:
            self._check_open()
            if limits not in self._readers:
                wait_s = max(WALL_S, 2 * limits.cpu_s)
                self._readers[limits] = DecodingPool(1, limits, self._on_killed, wait_s)
            return self._readers[limits]

    def close(self) -> None:
        """End the processes; images that they decode fail with NotReady."""
        with self._starting:
            self._closed = True
        for reader in self._readers.values():
            reader.close()
        for _ in range(self._size):
            while True:
                for worker in tuple(self._running):
                    worker.process.kill()
                with suppress(queue.Empty):
                    worker = self._free.get(timeout=0.1)
                    break
            if worker is not None:
                worker.end()
        for _ in range(self._size):  # for threads that wait for a process
            self._free.put(None)

    def _check_open(self) -> None:
        if self._closed:
            raise NotReady("The decoding processes are closed.")

    def _failure(self, error: Exception, code: int, limits: DecodingLimits) -> tuple[Exception, int]:
        """Return the error of the image in a process that ended, and how many processes are tried."""
        if isinstance(error, TimeoutError):
            self._on_killed("time")
            text = "Reading the image takes too long; check the disk or the network mount, or save it again."
            return ImageError(text), 1
        if code == -signal.SIGPROF:
            self._on_killed("cpu")
            text = f"Decoding the image takes more than {limits.cpu_s:g} CPU seconds; save it again in a simpler format"
            return ImageTooExpensive(f"{text}, or smaller."), 1
        self._check_open()
        self._on_killed("crash")
        if code in (-signal.SIGKILL, -signal.SIGTERM):  # no codec raises these: the system was short of memory
            return NotReady("The process that decoded the image was killed; try again in a moment."), KILLS
        name = signal.Signals(-code).name if code < 0 else f"exit status {code}"
        return ImageError(f"The image crashed its decoder ({name}); save it again."), CRASHES


class _Channel:
    """Messages through a socket, a system call each; a pipe of multiprocessing needs three to receive a crop.

    Each call lets other threads run, and then waits for its turn.
    """

    def __init__(self, own: socket.socket) -> None:
        own.settimeout(None)
        self._socket, self._seconds = own, 0.0
        self._rest = b""  # of the next message

    @property
    def closed(self) -> bool:
        return self._socket.fileno() < 0

    def patience(self, seconds: float) -> None:
        """Set how long `receive` waits; the kernel counts it, which needs no further call."""
        if seconds != self._seconds:
            self._seconds = seconds
            time = struct.pack("ll", int(seconds), int(seconds % 1 * 1e6))
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, time)

    def send(self, value: Any) -> None:
        data = pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
        head = len(data).to_bytes(_HEAD, "little")
        sent = self._socket.sendmsg([head, data])
        if sent < _HEAD + len(data):
            self._socket.sendall(memoryview(data)[sent - _HEAD :] if sent >= _HEAD else (head + data)[sent:])

    def receive(self) -> Any:
        """Return the next message; raise EOFError at the end of the other side, or TimeoutError."""
        data = self._read_until(_HEAD, self._rest)
        end = _HEAD + int.from_bytes(data[:_HEAD], "little")
        data = self._read_until(end, data)
        self._rest = bytes(data[end:])
        return pickle.loads(memoryview(data)[_HEAD:end])

    def _read_until(self, length: int, data: bytes | bytearray) -> bytes | bytearray:
        """Return the data with what arrives until it has this length. A broken process may promise any length."""
        while len(data) < length:
            try:
                piece = self._socket.recv(_PIECE)
            except BlockingIOError as error:
                raise TimeoutError from error
            if not piece:
                raise EOFError
            if not data:
                data = piece  # nearly always the whole message
            elif isinstance(data, bytearray):
                data += piece
            else:
                data = bytearray(data) + piece
        return data

    def has_ended(self) -> bool:
        """Return whether the other side has closed its end, or sent what nobody has received."""
        waiting = select.poll()
        waiting.register(self._socket, select.POLLIN)
        return bool(waiting.poll(0))

    def close(self) -> None:
        self._socket.close()


class _Worker:
    """A process and the socket to it; raises NotReady if it cannot be started in two attempts."""

    def __init__(self) -> None:
        try:
            self._start()
        except (OSError, EOFError):  # the system may have killed the process that forks this one
            try:
                self._start()
            except (OSError, EOFError) as error:
                raise NotReady(
                    f"A decoding process cannot be started ({getattr(error, 'strerror', None) or error}); if that is a "
                    "limit of the system (`ulimit -a`), raise it, or decode fewer images at once."
                ) from error

    def _start(self) -> None:
        ours, theirs = socket.socketpair()
        self.channel = _Channel(ours)
        with theirs:
            # of a daemon, this program does not wait for the end at its own
            self.process = _Process(target=_serve, args=(theirs,), name=NAME, daemon=True)
            self.process.start()

    def end(self) -> int:
        """End the process; return its exit status, or minus the signal that had ended it before."""
        if self.channel.has_ended():
            self.process.join(0.2)  # a process that stopped may not be reaped yet
        self.process.kill()
        self.process.join()
        self.channel.close()
        return self.process.exitcode or 0


def _absolute(source: Any) -> Any:
    # the process has another working directory
    if isinstance(source, str | Path):
        return source if is_address(str(source)) else os.path.abspath(source)
    return source.absolute() if hasattr(source, "absolute") else source


class _Launch(popen_forkserver.Popen):
    """Start a process as its base does, but never run the main program in it: a script may have no main guard."""

    def _launch(self, process_obj: Any) -> None:
        about, data = spawn.get_preparation_data(NAME), io.BytesIO()
        set_spawning_popen(self)
        try:
            reduction.dump({key: value for key, value in about.items() if not key.startswith("init_main")}, data)
            reduction.dump(process_obj, data)
        finally:
            set_spawning_popen(None)
        self.sentinel, pipe = forkserver.connect_to_new_process(self._fds)  # type: ignore[attr-defined]
        # while its end of the pipe is open, the process knows that its parent runs
        self.finalizer = util.Finalize(self, util.close_fds, (os.dup(pipe), self.sentinel))  # type: ignore[attr-defined]
        with open(pipe, "wb") as file:
            file.write(data.getbuffer())
        if not wait([self.sentinel], START_S):
            raise TimeoutError(f"it did not start within {START_S:g} s")
        self.pid = forkserver.read_signed(self.sentinel)


class _Process(ForkServerProcess):
    """Forks from a process that has loaded the codecs."""

    _Popen = staticmethod(_Launch)


@cache
def _context() -> Any:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([PRELOADED])
    return context


def _forget_fork_server() -> None:
    """Let a fork start a fork server itself: it cannot wait for that of its parent."""
    forkserver._forkserver.__init__()  # type: ignore[attr-defined,misc]
    _context.cache_clear()


os.register_at_fork(after_in_child=_forget_fork_server)


# ---- in a decoding process -------------------------------------------------------------------------------------------


def _serve(own: socket.socket) -> None:
    """Run operations, each image under a timer by which the kernel ends this process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what Ctrl-C ends
    warnings.simplefilter("ignore")
    import_module(PRELOADED).readable_formats()
    threading.Thread(target=_end_with_parent, daemon=True).start()
    channel, reserved, known = _Channel(own), 0, None
    if sys.platform == "linux":  # no other system enforces a limit of memory
        reserved = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    with suppress(OSError):  # if the machine runs out of memory, this process ends before its parent does
        Path("/proc/self/oom_score_adj").write_text("1000")
    while True:
        try:
            operation, sources, arguments, limits = channel.receive()
        except EOFError:
            return
        if reserved and limits != known:  # beyond it, MemoryError is raised
            known = limits
            hard = resource.getrlimit(resource.RLIMIT_AS)[1]
            resource.setrlimit(resource.RLIMIT_AS, (reserved + limits.memory, hard))
        for source in sources:
            signal.setitimer(signal.ITIMER_PROF, limits.cpu_s)
            result: Any
            try:
                result = operation(source, *arguments)
            except MemoryError:
                result = ImageTooExpensive("Too little memory to decode the image.")
            except (NNCLRHubError, OSError, ImportError) as error:
                result = error
            except Exception as error:  # noqa: BLE001 - the parent raises it
                result = RuntimeError(f"decoding failed ({type(error).__name__}: {error})")
            signal.setitimer(signal.ITIMER_PROF, 0)
            channel.send(result)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


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
        limits: limits on one image; None: from the environment.
        on_killed: see `DecodingPool`.
        images: number of images, if known; fewer than FEW are decoded here.
    """
    global _pool, _users
    if images is not None and images < FEW:
        yield
        return
    with _changing:
        if active_pool() is None:
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


def run_isolated(operation: Callable[..., T], source: Any, *arguments: Any, limits: DecodingLimits | None = None) -> T:
    """Return operation(source, *arguments), computed in a decoding process if this process uses them.

    Pixels are decoded already, and stay here.
    """
    pool, source = active_pool(), read_packed(source)
    if pool is None or not _is_file(source):
        return operation(source, *arguments)
    return pool.run(operation, source, *arguments, limits=limits)


def run_isolated_each(operation: Callable[..., T], sources: Sequence[Any], *arguments: Any) -> list[T | Exception]:
    """Return for each source what `run_isolated` returns, or the exception that it raises."""
    pool = active_pool()
    if pool is not None and all(map(_is_file, sources)):
        return pool.run_each(operation, sources, *arguments)
    return attempt_each(lambda source: run_isolated(operation, source, *arguments), sources)


def run_in_reader(limits: DecodingLimits, operation: Callable[..., T], source: Any, *arguments: Any) -> T:
    """Return operation(source, *arguments) for an archive of this machine; see `DecodingPool.reader`."""
    pool = active_pool()
    return operation(source, *arguments) if pool is None else pool.reader(limits).run(operation, source, *arguments)


def read_bytes(source: Source) -> bytes:
    """Return the bytes of an image; see `Source.read`."""
    if source.place.archive == TABLE and source.place.is_local:
        return run_in_reader(ROWS, Source.read, source)
    return source.read()


def read_packed(source: Any) -> Any:
    """Return what is decoded of a source: the path of its file, the bytes of a packed image, or a tile as it is."""
    source = Source.at(source) if isinstance(source, str) and is_address(source) else source
    if isinstance(source, Source):
        return source if source.box is not None else source.file or read_bytes(source)
    return source.read() if hasattr(source, "read") else source  # a type of the caller's own


def _is_file(source: Any) -> bool:
    return isinstance(source, str | Path | bytes | Source)


def attempt_each(work: Callable[[Any], T], sources: Sequence[Any]) -> list[T | Exception]:
    """Return for each source what `work` returns, or the exception that it raises."""
    results: list[T | Exception] = []
    for source in sources:
        try:
            results.append(work(source))
        except Exception as error:  # noqa: BLE001 - the caller decides
            results.append(error)
    return results
