"""Hostile images over REST: refused or embedded as the manifest of the pack says, in bounded memory."""

import csv
import io
import resource
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

REFUSED = {"undecodable_image", "unsupported_image", "image_too_large"}
# above what decoding one image of 40 megapixels on each thread takes
LARGEST_GROWTH = 1_500_000_000


def peak() -> int:
    """Return the peak memory of this process, which runs the server, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def png(mode: str, size: tuple[int, int]) -> bytes:
    file = io.BytesIO()
    Image.new(mode, size).save(file, "PNG")
    return file.getvalue()


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


@pytest.mark.parametrize("size", [(6400, 6400), (40_000_001, 1), (65_000, 700)])
def test_above_40_megapixels_nothing_is_decoded(client, size):
    answer = client.post("/api/v1/embed", files={"files": png("1", size)})
    assert answer.status_code == 422
    assert "40 megapixels" in answer.json()["errors"][0]["detail"]
    assert answer.json()["errors"][0]["code"] == "image_too_large"


def test_just_below_40_megapixels_is_served(client):
    assert client.post("/api/v1/embed", files={"files": png("1", (39_999_999, 1))}).status_code == 200
    assert client.post("/api/v1/embed", files={"files": png("L", (8000, 5000))}).status_code == 200
