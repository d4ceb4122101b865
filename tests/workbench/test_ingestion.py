"""Images into a collection, a handful at a time."""

import re
import weakref

import numpy as np
import pytest

from nnclr_hub.errors import ImageError, ModelError
from nnclr_hub.store.base import CollectionSpec
from nnclr_hub.workbench import NewImage, folder_index, ingestion


def test_at_most_a_few_images_are_decoded_at_a_time(bench, image_files, monkeypatch):
    """Three batches at most: the one that was embedded, the one that is, and the one after it."""
    alive, most, read = [0], [0], ingestion.read_image

    def gone() -> None:
        alive[0] -= 1

    def counting(new, reading, **options):
        result = read(new, reading, **options)
        assert not isinstance(result, ImageError)
        image, _ = result
        alive[0] += 1
        most[0] = max(most[0], alive[0])
        weakref.finalize(image, gone)
        return result

    monkeypatch.setattr(ingestion, "read_image", counting)
    bench.ensure_collection("photos")
    assert bench.add_images("photos", [NewImage(f"i{i}", path) for i, path in enumerate(image_files)]) == [None] * 60
    assert most[0] <= 3 * ingestion.DECODED_AT_ONCE
    assert bench.collection("photos").count() == 60


def test_errors_are_at_the_positions_of_their_images_and_one_write_stores_the_rest(bench, image_files):
    bench.ensure_collection("photos")
    images = [NewImage(f"i{i}", path if i % 5 else b"garbage") for i, path in enumerate(image_files[:23])]
    before = bench.collection("photos").info().durable_seq
    errors = bench.add_images("photos", images)
    assert [error is None for error in errors] == [i % 5 != 0 for i in range(23)]
    assert bench.collection("photos").info().durable_seq > before
    assert {item.id for item in bench.collection("photos").scroll().items} == {f"i{i}" for i in range(23) if i % 5}


def test_a_model_that_returns_nan_is_named_and_leaves_no_collection(bench, photos, monkeypatch):
    embedder = bench.embedder()
    spec = CollectionSpec.of(embedder)
    nan = np.full(spec.dim, np.nan, np.float32)
    monkeypatch.setattr(embedder, "embed_each", lambda images: [nan] * len(images))
    with pytest.raises(ModelError, match=re.escape(embedder.name)):
        bench.index_folder("photos", photos)
    assert bench.store.list() == []
    bench.store.create("photos", spec)
    with pytest.raises(ModelError):
        bench.index_folder("photos", photos)
    assert [info.name for info in bench.store.list()] == ["photos"]  # it was not created by this call


def test_an_index_stores_images_before_it_counts_them(bench, photos, monkeypatch):
    monkeypatch.setattr(folder_index, "BATCH", 8)
    stored = []

    def stop(done: int, total: int) -> None:
        stored.append((done, bench.collection("photos").count()))
        if done > 20:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        bench.index_folder("photos", photos, progress=stop)
    assert all(done <= count for done, count in stored)
    report = bench.index_folder("photos", photos)
    assert (report.added, report.unchanged) == (60 - stored[-1][1], stored[-1][1])
