"""Processes of the serving benchmark: started once, and suspended while another one is measured."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
PATIENCE_S = 600


class Side:
    """A process group that runs only while it is `awake`.

    Args:
        command: arguments after the Python interpreter.
        port: of its server, if it is one.
        url: to send requests to.
        form: see serving_load.py.
    """

    def __init__(self, command: list[str], port: int = 0, url: str = "", form: str = "multipart") -> None:
        self.url, self.form = url, form
        self._process = subprocess.Popen(
            [sys.executable, *command],
            cwd=HERE.parent,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE if not port else subprocess.DEVNULL,
            stderr=subprocess.DEVNULL if not os.environ.get("NNCLR_BENCHMARK_LOUD") else None,
            text=True,
            start_new_session=True,
        )
        self._port = port

    def wait(self, path: str = "/readyz") -> None:
        """Wait until the process is ready."""
        if not self._port:
            assert self.line() == "ready"
            return
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end and self._process.poll() is None:
            if answers(self._port, path):
                return
            time.sleep(0.02)
        raise SystemExit(f"{self._process.args} did not become ready: set NNCLR_BENCHMARK_LOUD=1 to see why.")

    def line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def say(self, text: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{text}\n")
        self._process.stdin.flush()

    def sleep(self) -> None:
        os.killpg(self._process.pid, signal.SIGSTOP)

    @contextmanager
    def awake(self) -> Iterator[None]:
        os.killpg(self._process.pid, signal.SIGCONT)
        try:
            yield
        finally:
            self.sleep()

    def end(self) -> None:
        os.killpg(self._process.pid, signal.SIGCONT)
        os.killpg(self._process.pid, signal.SIGTERM)
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


def ours(model: str, store: str, port: int, *, page: bool = False) -> Side:
    """Start `nnclr serve` as a user would."""
    command = ["-m", "nnclr_hub.cli", "serve", "--model", model, "--store", store, "--port", str(port)]
    return Side([*command, *([] if page else ["--no-page"])], port, f"http://127.0.0.1:{port}/api/v1/embed")


def plain(model: str, port: int) -> Side:
    """Start the FastAPI handler around timm."""
    return Side([str(HERE / "serving_plain.py"), model, str(port)], port, f"http://127.0.0.1:{port}/predict")


def load(url: str, images: Path, form: str = "multipart", **options: Any) -> dict[str, Any]:
    """Return the measurements of serving_load.py."""
    flags = [part for name, value in options.items() for part in (f"--{name}", str(value))]
    command = [sys.executable, str(HERE / "serving_load.py"), url, str(images), "--form", form, *flags]
    figures = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    if set(figures["statuses"]) != {"200"}:
        raise SystemExit(f"{url} did not answer all: {figures['statuses']}")
    return figures


def answers(port: int, path: str) -> bool:
    """Return whether the server responds with 200 at this path."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", path)
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
