"""Wait for other threads, processes and servers, on a condition, for far longer than a busy machine needs."""

import secrets
import socket
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import httpx

PATIENCE_S = 120.0


def until(condition: Callable[[], object], *, pause_s: float = 0.005, patience_s: float = PATIENCE_S) -> None:
    """Return once the condition holds; fail if it never does."""
    end = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < end, "the condition never held"
        time.sleep(pause_s)


def free_port() -> int:
    """Return a port that nothing listens on now, and that no outgoing connection takes before it is used."""
    while True:
        port = 20_000 + secrets.randbelow(12_000)  # connections have ports above 32,767
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def until_served(
    url: str, process: subprocess.Popen | None = None, log: Path | None = None, patience_s: float = PATIENCE_S
) -> None:
    """Return once the address answers 200; fail at once if the process ends, with its log."""

    def answers() -> bool:
        assert process is None or process.poll() is None, log.read_text() if log else "the process ended"
        try:
            return client.get(url).status_code == 200
        except httpx.TransportError:  # the server does not listen yet
            return False

    with httpx.Client(timeout=30) as client:  # a new client would load the CA certificates each time
        until(answers, pause_s=0.05, patience_s=patience_s)
