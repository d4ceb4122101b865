"""Images into a collection, a handful at a time."""

import re
import weakref
from contextlib import nullcontext

import numpy as np
import pytest

from nnclr_hub.errors import ModelError
from nnclr_hub.store.base import CollectionSpec
from nnclr_hub.workbench import AddRequest, Encoders, Ingestion, NewImage, ingestion
from nnclr_hub.workbench.write_lock import Target


def test_at_most_a_few_images_are_decoded_at_a_time(bench, image_files, monkeypatch):
    """Three batches at most: the one that was embedded, the one that is, and the one after it."""
    alive, most, read = [0], [0], ingestion.read_image

    def gone() -> None:
        alive[0] -= 1

    def counting(new, reading, **options):
        image, draft = read(new, reading, **options)
        alive[0] += 1
        most[0] = max(most[0], alive[0])
        weakref.finalize(image, gone)
        return image, draft

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


def test_images_added_when_re_embedding_starts_get_both_vectors(bench, image_files, model, make_model):
    first, second = Encoders(str(model), device="cpu").get(), Encoders(str(make_model(seed=1)), device="cpu").get()
    targets = [
        Target(bench.store.create(f"c{i}", CollectionSpec.of(one)), one) for i, one in enumerate((first, second))
    ]
    written = iter([targets[:1], targets, targets])
    images = [NewImage("a", image_files[0]), NewImage("bad", b"garbage"), NewImage("b", image_files[1])]
    there = Ingestion(lambda: nullcontext(next(written)), AddRequest(images))
    for embedder in (first, second):
        assert there.store() is embedder
        assert [target.collection.count() for target in targets] == [0, 0]
        read = {i: image for i in range(3) if (image := there.read(i, embedder)) is not None}
        there.set_vectors(embedder, list(read), embedder.embed_each(read.values()))
    assert there.store() is None
    assert [error is None for error in there.errors] == [True, False, True]
    for target in targets:
        for id, path in (("a", image_files[0]), ("b", image_files[1])):
            [item] = target.collection.get([id])
            np.testing.assert_allclose(item.vector, target.embedder.embed([path])[0], atol=1e-5)


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
