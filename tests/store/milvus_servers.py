"""Milvus servers for tests: separate processes on free ports of this machine, killed by process group.

`milvus-lite server` comes with the dev extra. The standalone server is the package milvus 2.3.5, in an environment of
its own (it needs setuptools<80); NNCLR_MILVUS_SERVER names its `milvus-server`, unless that is on the PATH.
"""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import pytest
from waiting import free_port

from nnclr_hub.errors import StoreUnreachable
from nnclr_hub.store.milvus import MilvusStore

T = TypeVar("T")


class Server:
    """One server on one folder; `start` after `kill` restarts it on the same port and folder.

    Args:
        answers: takes the address, returns whether the server is ready.
    """

    def __init__(
        self, command: list[str], log: Path, port: int, patience: float, answers: Callable[[str], bool] | None = None
    ) -> None:
        self._answers = answers or lists_collections
        self.uri = f"milvus://127.0.0.1:{port}"
        self._port = port
        self._command = command
        self._log = log
        self._patience = patience
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the server, and wait until it answers."""
        # milvus-server takes the next port without a word if connections of before still linger on this one (TIME_WAIT)
        wait_until_free(self._port, 90)
        with self._log.open("ab") as log:
            # a separate group: milvus-server starts the real server as a child
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log, start_new_session=True)
        end = time.monotonic() + self._patience
        while True:
            if self._answers(self.uri):
                return
            if time.monotonic() > end or self._process.poll() is not None:
                self.kill()
                tail = self._log.read_text(errors="replace")[-2000:]
                raise AssertionError(f"{self._command[0]} did not come up: {tail}")
            time.sleep(0.2)

    def signal(self, number: int) -> None:
        """Send a signal to all processes of the server."""
        if self._process is not None:
            os.killpg(self._process.pid, number)

    def kill(self) -> None:
        """Kill the server, which leaves it no chance to clean up."""
        if self._process is not None:
            self.signal(signal.SIGKILL)
            self._process.wait(30)
            self._process = None


def lists_collections(uri: str) -> bool:
    """Return whether a server without passwords is ready."""
    try:
        with MilvusStore(uri) as store:
            store.list()
    except StoreUnreachable:
        return False
    return True


def patiently(call: Callable[[], T], seconds: float = 60) -> T:
    """Return what a call returns once the server, which has just started, is ready for it."""
    end = time.monotonic() + seconds
    while True:
        try:
            return call()
        except StoreUnreachable:
            if time.monotonic() > end:
                raise
            time.sleep(0.3)


def wait_until_free(port: int, patience: float) -> None:
    """Wait until a socket can be bound to the port."""
    end = time.monotonic() + patience
    while True:
        with socket.socket() as one:
            try:
                one.bind(("127.0.0.1", port))
                return
            except OSError:
                if time.monotonic() > end:
                    raise
        time.sleep(0.5)


@contextmanager
def lite_server(folder: Path) -> Iterator[Server]:
    """Run `milvus-lite server`, in Python."""
    pytest.importorskip("milvus_lite", reason="milvus-lite is not installed")
    port = free_port()
    command = [sys.executable, "-m", "milvus_lite", "server", "--host", "127.0.0.1"]
    command += ["--port", str(port), "--data-dir", str(folder / "lite")]
    yield from _running(Server(command, folder / "lite.log", port, patience=60))


@contextmanager
def standalone_server(folder: Path, *options: str, answers: Callable[[str], bool] | None = None) -> Iterator[Server]:
    """Run the real server, milvus 2.3.5, with options of its command. Only one can run at a time."""
    program = os.environ.get("NNCLR_MILVUS_SERVER") or shutil.which("milvus-server")
    if program is None or not Path(program).exists():
        pytest.skip("milvus-server is not installed: name it in NNCLR_MILVUS_SERVER")
    port = free_port()
    command = [program, "--data", str(folder / "standalone"), "--proxy-port", str(port), *options]
    yield from _running(Server(command, folder / "standalone.log", port, 180, answers))


SERVERS = {"lite server": lite_server, "standalone": standalone_server}


def _running(server: Server) -> Iterator[Server]:
    try:
        server.start()
        yield server
    finally:
        server.kill()
