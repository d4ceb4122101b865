"""Attention through the engine: the encoder's own maps, and never two of them between two batches of vectors."""

import asyncio
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from fake_encoder import FakeEncoder
from PIL import Image

from nnclr_hub import Box, ImageError, Point, load_encoder
from nnclr_hub.encoder.attention import AttentionSettings
from nnclr_hub.errors import DeadlineExceeded, InvalidRequest, Overloaded, RequestTooLarge
from serving.engine import Engine, Task, attention
from serving.settings import Settings


@pytest.fixture(scope="module")
def vit():
    return load_encoder("random:test_vit", device="cpu")


@pytest.fixture
def make() -> Iterator:
    made = []

    def start(encoder, **settings) -> Engine:
        made.append(Engine(encoder, Settings(**{"decode_threads": 2, "max_batch": 4, "stall_s": 20, **settings})))
        return made[-1]

    yield start
    for engine in made:
        engine.close(0.2)


def wait_until(holds) -> None:
    end = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < end, "it did not come to that"
        time.sleep(0.005)


# ------------------------------------------------------------------------------ turns of the device


def order_of_work(make, asked: str) -> str:
    """What the device does, in order, once all that is asked for waits for it: a batch of vectors v, an errand e."""
    release, log = threading.Event(), []
    encoder = FakeEncoder(forwarding={"first": lambda: release.wait(20)})
    engine = make(encoder)
    encoder.before = lambda: log.append("v")
    errand = Task(bytes, lambda picture: log.append("e"))
    with ThreadPoolExecutor(len(asked) + 1) as pool:
        done = [pool.submit(engine.embed_each, [b"first"])]
        wait_until(lambda: log)  # the device is at work, so all others have to wait
        for one in asked:
            waiting = len(engine._device.line)
            done.append(pool.submit(engine.each, [b"1"], errand if one == "e" else None))
            wait_until(lambda: len(engine._device.line) > waiting)  # noqa: B023
        release.set()
        for one in done:
            one.result()
    return "".join(log[1:])


@pytest.mark.parametrize(
    ("asked", "order"),
    [
        ("eeeevvvvvvvvvvvv", "veveveve"),  # of four places one is the errand's
        ("vvvvvvvvvvvveeee", "vvveeee"),
        ("evevevevevev", "veveeeee"),
        ("vvvvvvvv", "vv"),
        ("eee", "eee"),
    ],
)
def test_between_two_batches_that_wait_there_is_one_errand_at_most(make, asked, order):
    assert order_of_work(make, asked) == order
    assert "ee" not in order.rstrip("e")  # after the last batch nobody waits for vectors


def test_who_asks_for_maps_without_end_does_not_hold_up_vectors(make):
    """While a hundred errands wait, a vector waits for two of them at the most: that at work, and one turn."""
    done, embedded_after = [], []
    engine = make(FakeEncoder(), capacity=200)
    errand = Task(bytes, lambda picture: (time.sleep(0.005), done.append(picture)))
    with ThreadPoolExecutor(2) as pool:
        maps = pool.submit(engine.each, [b"1"] * 100, errand)
        wait_until(lambda: len(done) > 3)
        for _ in range(5):
            queued = len(done)
            engine.embed_each([b"7"])
            embedded_after.append(len(done) - queued)
        assert len(done) < 100
        maps.result()
    assert max(embedded_after) <= 8, embedded_after  # not a hundred; a busy machine may put a few between


# ------------------------------------------------------------------------------ maps


@pytest.mark.parametrize(
    "settings",
    [
        AttentionSettings(),
        AttentionSettings(Point(20, 30), similarity="cosine"),
        AttentionSettings(Box(8, 8, 40, 50), max_side=320),
        AttentionSettings(head=1, threshold=0.6),
    ],
)
def test_maps_are_the_encoders_own(make, vit, pictures, settings):
    engine = make(vit)
    targets = pictures[1:3] if settings.head is None and settings.query else []
    want = vit.look(settings, pictures[0], targets)
    found = asyncio.run(engine.look_async(settings, pictures[0].read_bytes(), [one.read_bytes() for one in targets]))
    for one, other in zip(found, want, strict=True):
        np.testing.assert_allclose(one.values, other.values, rtol=1e-5, atol=1e-6)
        assert one.limits == pytest.approx(other.limits, rel=1e-5)
        assert (one.kind, one.grid, one.size) == (other.kind, other.grid, other.size)
    assert engine.in_work == 0
    again = engine.attention(pictures[0], settings.query, similarity=settings.similarity, max_side=settings.max_side)
    assert again.values.shape == want[0].values.shape


def test_vectors_that_are_asked_for_meanwhile_are_the_same(make, vit, pictures):
    """A vision transformer gives its rows without being switched over."""
    engine, want = make(vit), vit.embed(pictures[:8])
    row = vit.attention(pictures[0]).values
    with ThreadPoolExecutor(6) as pool:
        maps = [pool.submit(engine.attention, pictures[0]) for _ in range(6)]
        vectors = [pool.submit(engine.embed, pictures[:8]) for _ in range(6)]
        for one in maps:
            np.testing.assert_allclose(one.result().values, row, atol=1e-6)
        for one in vectors:
            np.testing.assert_allclose(one.result(), want, atol=1e-5)


def test_what_cannot_be_answered_is_refused_before_a_image_is_read(make, vit, pictures):
    engine = make(vit, attention_side=512)
    for settings, targets, words in (
        (AttentionSettings(head=99), [], "no head 99"),
        (AttentionSettings(), [b""] * 7, "7 target"),
    ):
        with pytest.raises(InvalidRequest, match=words):
            engine.look(settings, b"no image", targets)
    with pytest.raises(InvalidRequest, match="not inside"):
        engine.attention(pictures[0], Box(0, 0, 65, 64))
    with pytest.raises(ImageError) as told:
        engine.attention(pictures[0], target=[pictures[1], b"bad"])
    assert "number 1" in str(told.value)
    assert engine.in_work == 0


def test_no_image_is_given_more_pixels_than_the_server_allows(make, vit):
    large = Image.new("RGB", (900, 600), "red")
    assert make(vit, attention_side=512).attention(large).input_size == (512, 336)
    assert make(vit).attention(large, max_side=448).input_size == (448, 304)


def test_images_that_are_too_many_pixels_together_are_refused(make, vit, monkeypatch):
    monkeypatch.setattr(attention, "MOST_PIXELS", 3 * 64 * 64)
    engine, picture = make(vit), Image.new("RGB", (64, 64), "red")
    assert len(engine.attention(picture, target=[picture, picture])) == 2
    with pytest.raises(RequestTooLarge, match="together"):
        engine.attention(picture, target=[picture] * 3)


def test_it_needs_permits_and_ends_at_its_deadline(make, vit, pictures):
    engine = make(vit, capacity=2)
    with pytest.raises(RequestTooLarge):
        engine.attention(pictures[0], target=pictures[1:3])
    hold = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        busy = pool.submit(engine.each, [b"1"], Task(bytes, lambda _: hold.wait(20)))
        wait_until(lambda: engine.in_work)
        with pytest.raises(DeadlineExceeded):
            asyncio.run(engine.look_async(AttentionSettings(), pictures[0], deadline_s=0.05))
        with pytest.raises(Overloaded):
            engine.attention(pictures[0], target=pictures[1])
        hold.set()
        busy.result()
    wait_until(lambda: engine.in_work == 0)
