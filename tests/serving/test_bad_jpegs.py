"""Two clients that send bad JPEGs all the time delay the images of others by at most the CPU limit of one image."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import numpy as np
import pytest
from hostile_images import repeated_scans

CPU_S = 2.0  # the default limit of an image
TRIES = 3  # another program may keep the processors of the machine busy for a moment
SPIN_S = 0.2


def bad_jpegs() -> list[tuple[bytes, int]]:
    """Return files, and the status of each: one that costs more than the limit, and broken ones, which cost little."""
    costly = repeated_scans(99, (7900, 5000))
    return [(costly, 422), (costly[: len(costly) // 2], 422), (b"\xff\xd8\xff" + bytes(5000), 422)]


def waits_with_bad_jpegs(url: str, ordinary: bytes, seconds: float) -> list[float]:
    """Send ordinary images one after the other while two clients send bad ones; return the seconds that each took."""
    stopped, waits, files = threading.Event(), [], bad_jpegs()

    def send_bad(first: int) -> int:
        number = first
        with httpx.Client(base_url=url, timeout=120) as client:
            while number == first or not stopped.is_set():  # at least one, however late a busy machine starts it
                data, status = files[number % len(files)]
                assert client.post("/api/v1/embed", files={"files": data}).status_code == status
                number += 1
        return number - first

    with ThreadPoolExecutor(2) as threads, httpx.Client(base_url=url, timeout=120) as client:
        client.post("/api/v1/embed", files={"files": ordinary}).raise_for_status()
        bad = [threads.submit(send_bad, first) for first in range(2)]
        end = time.monotonic() + seconds
        try:
            while not waits or time.monotonic() < end:
                begun = time.monotonic()
                client.post("/api/v1/embed", files={"files": ordinary}).raise_for_status()
                waits.append(time.monotonic() - begun)
        finally:
            stopped.set()
        assert min(one.result() for one in bad) > 0
    return waits


def slowness() -> float:
    """Return the seconds that pass for each CPU second of a thread, because of other programs."""
    begun, until = time.monotonic(), time.thread_time() + SPIN_S
    while time.thread_time() < until:
        pass
    return max(1.0, (time.monotonic() - begun) / SPIN_S)


def check(url: str, ordinary: bytes, seconds: float) -> None:
    for _ in range(TRIES):
        before = slowness()
        waits = waits_with_bad_jpegs(url, ordinary, seconds)  # raises for any error of an ordinary image
        if np.quantile(waits, 0.99) < CPU_S * max(before, slowness()):
            return
    pytest.fail(f"p99 of {len(waits)} ordinary images is {np.quantile(waits, 0.99):.2f} s")


def test_ordinary_images_have_no_error_and_wait_at_most_for_one_bad_jpeg(server, image_files):
    check(server.url, image_files[0].read_bytes(), 4)


@pytest.mark.slow
def test_a_minute_of_bad_jpegs(server, image_files):
    check(server.url, image_files[0].read_bytes(), 60)
