"""Pictures into a collection, a handful at a time."""

import weakref

import pytest

from nnclr_hub.store import open_store
from nnclr_hub.workbench import Encoders, NewImage, Workbench, adding, indexing


@pytest.fixture
def bench(tmp_path, model):
    with open_store(tmp_path / "store") as store:
        yield Workbench(Encoders(str(model), device="cpu"), store)


def test_many_pictures_are_never_all_decoded_at_once(bench, pictures, monkeypatch):
    """Three batches at most: the one that was embedded, the one that is, and the one after it."""
    alive, most, read = [0], [0], adding.read_image

    def gone() -> None:
        alive[0] -= 1

    def counting(new):
        image, draft = read(new)
        alive[0] += 1
        most[0] = max(most[0], alive[0])
        weakref.finalize(image, gone)
        return image, draft

    monkeypatch.setattr(adding, "read_image", counting)
    bench.ensure_collection("photos")
    assert bench.add_images("photos", [NewImage(f"i{i}", path) for i, path in enumerate(pictures)]) == [None] * 60
    assert most[0] <= 3 * indexing.DECODED_AT_ONCE
    assert bench.collection("photos").count() == 60


def test_errors_stand_where_their_pictures_stood_and_one_write_takes_the_rest(bench, pictures):
    bench.ensure_collection("photos")
    images = [NewImage(f"i{i}", path if i % 5 else b"garbage") for i, path in enumerate(pictures[:23])]
    before = bench.collection("photos").info().durable_seq
    errors = bench.add_images("photos", images)
    assert [error is None for error in errors] == [i % 5 != 0 for i in range(23)]
    assert bench.collection("photos").info().durable_seq > before
    assert {item.id for item in bench.collection("photos").scroll().items} == {f"i{i}" for i in range(23) if i % 5}
