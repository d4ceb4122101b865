"""Attention maps from a server equal those of the library, and overlays use the local images."""

from collections.abc import Iterator

import numpy as np
import pytest
from PIL import Image

from nnclr_hub import AttentionMap, Box, Point


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
    small = {"max_side": 256}  # the default takes seconds
    alike(client.attention(turned, center_prior=False, **small), encoder.attention(turned, center_prior=False, **small))
    alike(client.attention(turned, Point(80, 10), **small), encoder.attention(turned, Point(80, 10), **small))
    asked = {"query": Box(4, 4, 40, 40), "similarity": "cosine", "max_side": 336}
    alike(
        client.attention(image_files[0], target=turned, **asked),
        encoder.attention(image_files[0], target=turned, **asked),
    )
    client.create_collection("seen")
    alike(client.attention(image_files[2], collection="seen"), encoder.attention(image_files[2]))
    targets = [image_files[1], np.asarray(turned)]
    found = client.attention(image_files[0].read_bytes(), Point(1, 2), targets, **small)
    for one, other in zip(found, encoder.attention(image_files[0], Point(1, 2), targets, **small), strict=True):
        alike(one, other)
