"""A server in a separate process, to be loaded, stopped and killed.

with ServerProcess(store, model="random:resnet18") as server:
    httpx.get(f"{server.url}/readyz")
    server.kill()
    server.start()
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from waiting import free_port, until_served

ROOT = Path(__file__).parents[1]
START_S = 180.0


class ServerProcess:
    """`nnclr serve` on a free port, which is the same after every start.

    Args:
        store: its folder or address.
        model: source of the encoder; None: the default starter.
        log: file for its output; next to the store by default.
        program: arguments of Python that run the command line.
        flags: further arguments of the command.
        settings: NNCLR_* variables of its environment, without the prefix.
    """

    def __init__(
        self,
        store: Path | str,
        *,
        model: str | None = None,
        log: Path | None = None,
        program: Sequence[str] = ("-m", "nnclr_hub.cli"),
        flags: Sequence[str] = (),
        **settings: Any,
    ) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = log or Path(store).with_suffix(".log")
        self._command = [sys.executable, *program, "serve", "--store", str(store), "--no-page"]
        self._command += ["--port", str(self.port), *(["--model", model] if model else []), *flags]
        given = {f"NNCLR_{name.upper()}": str(value) for name, value in settings.items()}
        self._environment = {**os.environ, **given}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start the server and wait until it is ready."""
        with self.log.open("ab") as out:
            self._process = subprocess.Popen(
                self._command, cwd=ROOT, env=self._environment, stdout=out, stderr=subprocess.STDOUT
            )
        until_served(f"{self.url}/readyz", self._process, self.log, START_S)

    def kill(self) -> None:
        """Kill the server, as a crash would."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def terminate(self, timeout: float = 60.0) -> int:
        """Send SIGTERM and return the exit code."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(timeout)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._process is not None and self._process.poll() is None:
            self.kill()
