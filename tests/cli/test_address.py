"""The address that `nnclr serve` prints is one that a browser opens."""

import re
import subprocess
import sys

import pytest
from waiting import until_served

from nnclr_hub.cli.service import _browser_host


@pytest.mark.parametrize(
    ("listened", "opened"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("photos.example", "photos.example"),
        ("0.0.0.0", "127.0.0.1"),
        ("0", "127.0.0.1"),
        ("", "127.0.0.1"),
        ("::", "[::1]"),
        ("::1", "[::1]"),
        ("fe80::1", "[fe80::1]"),
    ],
)
def test_the_host_can_be_opened(listened, opened):
    assert _browser_host(listened) == opened


def test_port_0_is_replaced_by_a_free_port(tmp_path):
    command = [
        sys.executable,
        "-m",
        "nnclr_hub.cli",
        "serve",
        "--port",
        "0",
        "--no-page",
        "--store",
        str(tmp_path / "s"),
    ]
    with subprocess.Popen([*command, "--model", "random:test_resnet@0"], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        printed = (re.search(r"http://127\.0\.0\.1:\d+", line) for line in process.stderr)
        address = next(filter(None, printed))[0]
        until_served(f"{address}/healthz")
        process.terminate()
        process.communicate(timeout=120)
    assert process.returncode == 0
