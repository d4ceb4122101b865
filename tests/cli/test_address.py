"""The address that `nnclr serve` prints is one that a browser opens."""

import pytest

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
