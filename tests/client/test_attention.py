"""Attention maps from a server equal those of the library, and overlays use the local images."""

import asyncio
from collections.abc import Iterator

import numpy as np
import pytest
from PIL import Image

from nnclr_hub import AsyncClient, AttentionMap, Box, ImageError, Point
from nnclr_hub.errors import CollectionNotFound, InvalidRequest


@pytest.fixture(scope="module")
def server(model, tmp_path_factory, serve) -> Iterator:
    yield from serve(model, tmp_path_factory.mktemp("attention") / "store")


def alike(found, want: AttentionMap) -> None:
    assert isinstance(found, AttentionMap)
    np.testing.assert_allclose(found.values, want.values, rtol=1e-4, atol=1e-5)
    assert found.values.dtype == np.float32
    assert (found.kind, found.grid) == (want.kind, want.grid)
    assert found.limits == pytest.approx(want.limits, rel=1e-4)
    assert found.peak == want.peak
    np.testing.assert_allclose(found.shown(), want.shown(), atol=2e-3)
    assert np.abs(np.asarray(found.overlay(), int) - np.asarray(want.overlay(), int)).max() <= 2


def test_maps_are_those_of_the_library(client, encoder, image_files):
    turned = Image.open(image_files[3]).resize((90, 64))  # a map with more columns than rows
    alike(client.attention(image_files[0]), encoder.attention(image_files[0]))
    alike(client.attention(turned, center_prior=False), encoder.attention(turned, center_prior=False))
    alike(client.attention(turned, Point(80, 10)), encoder.attention(turned, Point(80, 10)))
    asked = {"query": Box(4, 4, 40, 40), "similarity": "cosine", "max_side": 336}
    alike(
        client.attention(image_files[0], target=turned, **asked),
        encoder.attention(image_files[0], target=turned, **asked),
    )
    targets = [image_files[1], np.asarray(turned)]
    found = client.attention(image_files[0].read_bytes(), Point(1, 2), targets)
    for one, other in zip(found, encoder.attention(image_files[0], Point(1, 2), targets), strict=True):
        alike(one, other)


def test_async_calls_use_the_encoder_of_a_collection(server, client, encoder, image_files):
    async def run():
        async with AsyncClient(server.url) as opened:
            return await asyncio.gather(*(opened.attention(one, collection="seen") for one in image_files[:3]))

    client.create_collection("seen")
    for one, path in zip(asyncio.run(run()), image_files[:3], strict=True):
        alike(one, encoder.attention(path))


def test_errors_have_the_classes_of_the_library(client, image_files, tmp_path):
    image = image_files[0]
    for wrong, asked, kind in (
        (image, {"query": Box(0, 0, 99, 9)}, InvalidRequest),
        (image, {"head": 0}, InvalidRequest),
        (image, {"target": image_files[:7]}, InvalidRequest),
        (image, {"target": []}, InvalidRequest),
        (image, {"query": (1, 2)}, InvalidRequest),
        (b"garbage", {}, ImageError),
        (tmp_path / "none.jpg", {}, ImageError),
        (image, {"collection": "none"}, CollectionNotFound),
    ):
        with pytest.raises(kind):
            client.attention(wrong, **asked)
