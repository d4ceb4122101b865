"""Decompression bombs over REST: refused by the size in their headers, in bounded memory."""

import csv
import io
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from PIL import Image

STATUS = Path("/proc/self/status")


def reset_peak() -> int:
    """Reset the peak of resident memory, and return it in MB."""
    Path("/proc/self/clear_refs").write_text("5")
    return peak()


def peak() -> int:
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) // 1024


def png(mode: str, size: tuple[int, int]) -> bytes:
    file = io.BytesIO()
    Image.new(mode, size).save(file, "PNG")
    return file.getvalue()


@pytest.mark.data
@pytest.mark.skipif(sys.platform != "linux", reason="the peak of memory is read from /proc")
def test_the_bombs_of_the_nasty_pack(pack, server, client, image_files):
    """Send all of them at once, several times, while a good image is embedded."""
    folder = pack("nasty.tar")
    with (folder / "manifest.csv").open() as file:
        bombs = {row["file"]: row["expect"] for row in csv.DictReader(file) if row["file"].startswith("bomb/")}
    assert len(bombs) > 10
    before = reset_peak()

    def send(name: str) -> tuple[str, httpx.Response]:
        with httpx.Client(base_url=server.url, timeout=60) as own:
            return name, own.post("/api/v1/embed", files={"files": (folder / name).read_bytes()})

    with ThreadPoolExecutor(8) as pool:
        for name, answer in pool.map(send, [*bombs] * 3):
            allowed = {"refuse": {413, 415, 422}, "decode": {200}, "either": {200, 413, 415, 422}}[bombs[name]]
            assert answer.status_code in allowed, (name, answer.text)
            assert client.post("/api/v1/embed", files={"files": image_files[0].read_bytes()}).status_code == 200
    assert peak() - before < 600, "MB"
    assert client.get("/readyz").status_code == 200


@pytest.mark.parametrize("size", [(6400, 6400), (40_000_001, 1), (65_000, 700)])
def test_above_40_megapixels_nothing_is_decoded(client, size):
    answer = client.post("/api/v1/embed", files={"files": png("1", size)})
    assert answer.status_code == 422
    assert "40 megapixels" in answer.json()["errors"][0]["detail"]
    assert answer.json()["errors"][0]["code"] == "image_too_large"


def test_just_below_40_megapixels_is_served(client):
    assert client.post("/api/v1/embed", files={"files": png("1", (39_999_999, 1))}).status_code == 200
    assert client.post("/api/v1/embed", files={"files": png("L", (8000, 5000))}).status_code == 200
