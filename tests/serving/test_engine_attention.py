"""Attention maps from a server's model: the same as the encoder's own."""

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from PIL import Image
from waiting import until

from nnclr_hub import Box, ImageError, load_encoder
from nnclr_hub.encoder.attention import AttentionSettings
from nnclr_hub.errors import DeadlineExceeded, InvalidRequest, Overloaded, RequestTooLarge
from serving import engine
from serving.models import Engines, Model
from serving.settings import Settings


@pytest.fixture(scope="module")
def vit():
    return load_encoder("random:test_vit", device="cpu")


@pytest.fixture
def make() -> Iterator:
    """Return make(encoder, **settings), which makes a model on an engine; `make.made` has the engines."""
    made: list[Engines] = []

    def start(encoder, **settings) -> Model:
        options = Settings(**{"decode_threads": 2, "max_batch": 4, "stall_s": 60, **settings})
        made.append(Engines("one", options, load=lambda _: encoder, weigh=lambda _: 0))
        return made[-1].get()

    start.made = made
    yield start
    for engines in made:
        engines.close(0.2)


def attend(served, image, query=None, *, target=None, **settings):
    """Return the map of the image or target, or the maps of a list of targets."""
    targets = [] if target is None else target if isinstance(target, list) else [target]
    maps = asyncio.run(served.attention_maps_async(AttentionSettings(query, **settings), image, targets))
    return maps if isinstance(target, list) else maps[0]


def test_maps_and_vectors_at_the_same_time_do_not_change_each_other(make, vit, image_files):
    served, want = make(vit), vit.embed(image_files[:3])
    row = vit.attention(image_files[0]).values
    with ThreadPoolExecutor(6) as pool:
        maps = [pool.submit(attend, served, image_files[0]) for _ in range(6)]
        vectors = [pool.submit(served.embed_each, image_files[:3]) for _ in range(6)]
        for one in maps:
            np.testing.assert_allclose(one.result().values, row, atol=1e-6)
        for one in vectors:
            np.testing.assert_allclose(one.result(), want, atol=1e-5)


def test_impossible_queries_are_refused_before_an_image_is_read(make, vit, image_files):
    served = make(vit, attention_side=512)
    for settings, targets in ((AttentionSettings(head=99), []), (AttentionSettings(), [b""] * 7)):
        with pytest.raises(InvalidRequest):
            asyncio.run(served.attention_maps_async(settings, b"not an image", targets))
    with pytest.raises(InvalidRequest):
        attend(served, image_files[0], Box(0, 0, 65, 64))
    with pytest.raises(ImageError, match="number 1"):
        attend(served, image_files[0], target=[image_files[1], b"bad"])


def test_the_server_limits_the_side_of_the_input(make, vit):
    large = Image.new("RGB", (900, 600), "red")
    assert attend(make(vit, attention_side=512), large).input_size == (512, 336)
    assert attend(make(vit), large, max_side=448).input_size == (448, 304)


def test_too_many_pixels_together_are_refused(make, vit, monkeypatch):
    monkeypatch.setattr(engine, "MAX_TOTAL_PIXELS", 3 * 64 * 64)
    served, image = make(vit), Image.new("RGB", (64, 64), "red")
    assert len(attend(served, image, target=[image, image])) == 2
    with pytest.raises(RequestTooLarge):
        attend(served, image, target=[image] * 3)


def test_attention_needs_permits_and_has_a_deadline(make, vit, image_files):
    served = make(vit, capacity=2)
    with pytest.raises(RequestTooLarge):
        attend(served, image_files[0], target=image_files[1:3])
    (engines,) = make.made
    hold, forward = threading.Event(), vit.forward_crops
    vit.forward_crops = lambda crops: (hold.wait(120), forward(crops))[1]
    try:
        with ThreadPoolExecutor(1) as pool:
            busy = pool.submit(served.embed_each, image_files[:1])
            until(lambda: engines.in_work)
            with pytest.raises(DeadlineExceeded):
                asyncio.run(served.attention_maps_async(AttentionSettings(), image_files[0], deadline_s=0.05))
            with pytest.raises(Overloaded):
                attend(served, image_files[0], target=image_files[1])
            hold.set()
            busy.result()
    finally:
        vit.forward_crops = forward
    until(lambda: engines.in_work == 0)
