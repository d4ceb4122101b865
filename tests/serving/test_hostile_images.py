"""Hostile images over REST: refused or embedded as the manifest of the pack says, in bounded memory and time."""

import csv
import resource
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import numpy as np
import pytest
from hostile_images import repeated_scans
from image_bytes import encoded
from PIL import Image

REFUSED = {"undecodable_image", "unsupported_image", "image_too_large"}
# above what decoding one image of 40 megapixels on each thread takes
LARGEST_GROWTH = 1_500_000_000


def peak() -> int:
    """Return the peak memory of this process, which runs the server, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


@pytest.mark.data
def test_every_file_of_the_nasty_pack_ends_well_over_rest(client, pack, image_files):
    """Send each file alone, and together with a good image, which is still embedded."""
    folder = pack("nasty.tar")
    good = ("files", ("good.jpg", image_files[0].read_bytes(), "image/jpeg"))
    want = client.post("/api/v1/embed", files=[good]).json()["data"][0]["embedding"]
    before, wrong = peak(), []
    with (folder / "manifest.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        path: Path = folder / row["file"]
        nasty = ("files", (path.name, path.read_bytes(), "application/octet-stream"))
        answer = client.post("/api/v1/embed", files=[nasty, good])
        assert answer.status_code == 200, (row["file"], answer.text)
        first, second = answer.json()["data"]
        np.testing.assert_allclose(second["embedding"], want, atol=1e-5)
        if "error" in first:
            outcome, sentence = "refuse", first["error"]["detail"]
            assert first["error"]["code"] in REFUSED
            assert sentence.endswith(".")
            assert not [bad for bad in ("\n", "0x", str(folder), "<", "Traceback") if bad in sentence], sentence
        else:
            outcome = "decode"
            assert np.linalg.norm(first["embedding"]) == pytest.approx(1, abs=1e-4)
        if row["expect"] not in (outcome, "either"):
            wrong.append((row["file"], row["expect"], outcome))
        assert client.get("/readyz").status_code == 200, row["file"]
    assert wrong == []
    assert peak() - before < LARGEST_GROWTH


@pytest.mark.parametrize(
    ("mode", "size", "status"),
    [
        *(("1", size, 422) for size in ((6400, 6400), (40_000_001, 1), (65_000, 700))),
        ("1", (39_999_999, 1), 200),
        ("L", (8000, 5000), 200),
    ],
)
def test_above_40_megapixels_nothing_is_decoded(client, mode, size, status):
    answer = client.post("/api/v1/embed", files={"files": encoded(Image.new(mode, size))})
    assert answer.status_code == status
    if status == 422:
        [error] = answer.json()["errors"]
        assert (error["code"], "40 megapixels" in error["detail"]) == ("image_too_large", True)


# ---- two clients that send bad JPEGs all the time delay the images of others by at most the CPU limit of one image


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
