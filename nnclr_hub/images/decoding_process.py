"""DecodingProcess: a decoding process, as the parent that uses it sees it.

`decoding_worker` is the program on the other side.
"""

from __future__ import annotations

import json
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, Protocol, TypeVar

import numpy as np

from nnclr_hub.errors import BY_CODE, NotReady, ServiceError
from nnclr_hub.images import several_pages
from nnclr_hub.images.decoding_worker import HeavyImage, SharedBuffer, receive, send

T = TypeVar("T")
Operation = Callable[..., tuple[Any, ...]]
START_S = 60.0  # seconds until a new process is ready, also on a busy machine
WALL_PER_CPU = 30.0  # seconds that may pass per CPU second on a busy machine
STALL_S = 60.0  # seconds without any CPU time: it waits for a file, perhaps on a mount that does not answer
KILL_S = 5.0  # seconds for a killed process to end; one that waits for a file may end much later
CHECK_S = 0.5  # seconds between two checks that somebody still waits for a heavy image
KEPT = 48 << 20  # bytes of the buffer that a process keeps between two images
_START = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from nnclr_hub.images.decoding_worker import main; main(*map(int, sys.argv[2:]))"
)


class RelativeSource(Protocol):
    """A source for decoding that may contain a relative path, such as a `Tile`."""

    def absolute(self) -> Any:
        """Return the source with an absolute path, for a process with another working directory."""


@dataclass(frozen=True)
class Lane:
    """Restricts what `run` does in this context, for a caller that queues heavy images itself.

    heavy: use the heavy lane only; otherwise the quick lane, which raises HeavyImage.
    is_wanted: whether somebody still waits for the image.
    """

    heavy: bool
    is_wanted: Callable[[], bool] = lambda: True


class ProcessEnded(Exception):
    """Raised when a process ended while it decoded an image."""

    def __init__(self, why: str, detail: str = "") -> None:
        super().__init__(why)
        self.why, self.detail = why, detail


class DecodingProcess:
    """One decoding process, used by one thread at a time."""

    def __init__(self, memory: int, nice: int) -> None:
        self.is_open = True
        self._ready = False
        self._connection, other = socket.socketpair()
        try:
            self._buffer = SharedBuffer(_unnamed_file())
        except OSError:
            self._connection.close()
            other.close()
            raise
        path = [str(Path(__file__).resolve().parents[2]), *sys.path]
        self._waiting = select.poll()
        self._waiting.register(self._connection, select.POLLIN)
        # -I and -S: the path is given, and reading it again takes a third of the start
        command = [sys.executable, "-I", "-S", "-c", _START, json.dumps(path)]
        try:
            with other:
                self._process = subprocess.Popen(
                    [*command, *map(str, (self._buffer.fd, memory, nice))],
                    stdin=other.fileno(),
                    stdout=subprocess.DEVNULL,
                    pass_fds=(self._buffer.fd,),
                    env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
                    start_new_session=True,  # Ctrl-C in a terminal reaches the parent only
                )
        except BaseException:
            self._connection.close()
            self._buffer.close()
            raise

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
            ProcessEnded: the process ended, or was killed.
        """
        self._wait_until_ready()
        sent: list[tuple[int, str] | str | RelativeSource] = []
        with self._buffer.view(sum(len(source) for source in sources if isinstance(source, bytes))) as view:
            position = 0
            for source in sources:
                if isinstance(source, bytes):
                    view[position : position + len(source)] = source
                    position += len(source)
                    sent.append((len(source), source.name if isinstance(source, several_pages.NamedBytes) else ""))
                else:  # the working directory of this process may have changed
                    sent.append(os.path.abspath(source) if isinstance(source, str | Path) else source.absolute())
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
            several_pages.note(name)
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
        """End the process and wait until it has ended; the thread that uses it, if any, gets ProcessEnded."""
        self._process.kill()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(KILL_S)

    def close(self) -> None:
        """End the process, wait until it has ended, and give its memory back."""
        self.kill()
        self._connection.close()
        self._buffer.close()

    def _wait_until_ready(self) -> None:
        if self._ready:
            return
        in_time = True
        with suppress(OSError):
            in_time = bool(self._waiting.poll(1000 * START_S))
            self._ready = in_time and receive(self._connection) == b"ready"
        if self._ready:
            return
        self.is_open = False
        if not in_time:
            raise NotReady(f"A decoding process did not start within {START_S:g} s; try again in a moment.")
        if self._process.wait() < 0:
            self._fail(0)
        raise ServiceError("A decoding process cannot be started; see the messages on standard error.")

    def _receive(self, seconds: float, chosen: Lane) -> bytes:
        """Return the reply; b"" if the process ended."""
        begun = active = time.monotonic()
        used: int | None = -1  # read only if the reply takes long
        while True:
            pause = CHECK_S if chosen.heavy else min(STALL_S, seconds * WALL_PER_CPU) / 4
            if self._waiting.poll(1000 * pause):
                return receive(self._connection)
            if not chosen.is_wanted():
                raise ProcessEnded("withdrawn")
            now, before, used = time.monotonic(), used, self._cpu_time()
            active = now if used is None or used != before else active
            if now - active > STALL_S:
                raise ProcessEnded("stalled", f"{STALL_S:g} s")
            if now - begun > seconds * WALL_PER_CPU:
                raise ProcessEnded("time", f"{seconds * WALL_PER_CPU:g} s")

    def _cpu_time(self) -> int | None:
        """Return the ticks of CPU time that the process has used; None where that is unknown."""
        try:
            stat = Path(f"/proc/{self._process.pid}/stat").read_bytes()
        except OSError:  # not on Linux
            return None
        return sum(map(int, stat.rpartition(b")")[2].split()[11:13]))

    def _fail(self, seconds: float) -> NoReturn:
        """Raise ProcessEnded with the reason why the process ended."""
        code = self._process.wait()
        if code == -signal.SIGPROF:
            raise ProcessEnded("cpu", f"its share of {seconds:g} CPU seconds") from None
        name = signal.Signals(-code).name if code < 0 else f"exit status {code}"
        raise ProcessEnded("crash", name) from None


def _unnamed_file() -> int:
    """Return a file in memory without a name, or on macOS a temporary file that is deleted already."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("nnclr-decoding")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
