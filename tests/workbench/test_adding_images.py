"""Images into a collection: requests that cannot be made, errors of single images, thumbnails, and bounded memory."""

import hashlib
import io
import re
import threading
import weakref

import numpy as np
import pytest
from PIL import Image

from nnclr_hub.errors import InvalidRequest, ModelError
from nnclr_hub.images.tiles import Tiling
from nnclr_hub.store.base import CollectionSpec
from nnclr_hub.store.checks import MAX_THUMBNAIL
from nnclr_hub.workbench import (
    AddRequest,
    FolderRequest,
    NewCollection,
    NewImage,
    folder_index,
    image_record,
    reembedding,
)
from nnclr_hub.workbench.folder_index import IndexRequest
from nnclr_hub.workbench.image_record import make_thumbnail
from nnclr_hub.workbench.inspection.comparison import ComparisonRequest
from nnclr_hub.workbench.maintenance import BackupRequest
from nnclr_hub.workbench.probes import ProbeFit
from nnclr_hub.workbench.reembedding import reembed

ITEMS = [{"label": "a", "vector": [1.0]}, {"label": "b", "vector": [2.0]}]
RNG = np.random.default_rng(0)


def test_an_image_without_an_id_gets_a_hash_of_its_bytes(image_files):
    data = image_files[0].read_bytes()
    assert NewImage(None, data).id == hashlib.sha256(data).hexdigest()[:32]
    assert len(AddRequest([NewImage(None, data), NewImage(None, data)]).images) == 2
    with pytest.raises(InvalidRequest):
        NewImage(None, image_files[0])


@pytest.mark.parametrize(
    "make",
    [
        lambda: AddRequest("a"),
        lambda: AddRequest([b"x"]),
        lambda: AddRequest([NewImage("a", b"x"), NewImage("a", b"y")]),
        lambda: NewImage("no!", b"x"),
        lambda: NewImage("a", b"x", []),
        lambda: NewImage("a", b"x", thumbnail=1),
        lambda: FolderRequest("photos", shrink=8),
        lambda: FolderRequest("photos", source="s", tiling=Tiling(512)),
        lambda: NewCollection("model", 4),
        lambda: NewCollection(dim=0),
        lambda: NewCollection(metric="x"),
        lambda: ProbeFit(name="p", collection="c", field="label", model="m"),
        lambda: ProbeFit(name="p", collection="c", field="label", reject_far=1.0),
        lambda: ProbeFit(name="p", collection="c", field="label", l2=float("nan")),
        lambda: ProbeFit(name="p", items=ITEMS, where={"must": []}),
        lambda: ProbeFit(name="p", items=ITEMS[:1]),
        lambda: IndexRequest("c", folder="x" * 5000),
        lambda: BackupRequest(keep=0),
        lambda: ComparisonRequest("c", ["pixels"] * 9),
        lambda: ComparisonRequest("c", field='a"b'),
    ],
)
def test_an_invalid_request_cannot_be_made(make):
    with pytest.raises(InvalidRequest):
        make()


def test_errors_are_at_the_positions_of_their_images_and_the_rest_is_stored(bench, image_files):
    bench.create_collection("photos")
    images = [NewImage(f"i{i}", path if i % 5 else b"garbage") for i, path in enumerate(image_files[:23])]
    assert [error is None for error in bench.add_images("photos", images)] == [i % 5 != 0 for i in range(23)]
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


# ---- thumbnails


def test_images_can_be_added_without_a_thumbnail(bench, image_files, photos):
    bench.create_collection("photos")
    images = [NewImage("with", image_files[0]), NewImage("without", image_files[1], thumbnail=False)]
    assert bench.add_images("photos", AddRequest(images)) == [None, None]
    assert bench.collection("photos").thumbnail("with") is not None
    assert bench.collection("photos").thumbnail("without") is None
    bench.index_folder("indexed", FolderRequest(photos / "cat", thumbnails=False))
    [item] = bench.collection("indexed").scroll(limit=1).items
    assert bench.collection("indexed").thumbnail(item.id) is None


@pytest.mark.parametrize("side", [256, 300, 512])
@pytest.mark.parametrize("levels", [256, 2])
def test_a_thumbnail_of_noise_fits_a_collection(levels, side):
    """Nothing compresses worse: a folder with one image of it used to stop at it."""
    pixels = RNG.integers(0, levels, (side, side, 3)) * (255 // (levels - 1))
    jpeg = make_thumbnail(Image.fromarray(pixels.astype(np.uint8)))
    assert len(jpeg) <= MAX_THUMBNAIL
    assert Image.open(io.BytesIO(jpeg)).size == (256, 256)


def test_a_thumbnail_of_a_photo_has_good_quality():
    """Within 30 dB of the image itself."""
    ramp = np.add.outer(np.arange(200), np.arange(240))[..., None].repeat(3, -1) * 255 // 438
    kept = np.asarray(Image.open(io.BytesIO(make_thumbnail(Image.fromarray(ramp.astype(np.uint8))))))
    assert kept.shape == (200, 240, 3)
    assert np.mean((kept - ramp.astype(float)) ** 2) < 255**2 / 10**3


# ---- memory


class Counting:
    """A decoder that counts how many of its images are in memory at a time."""

    def __init__(self, decode) -> None:
        self._decode, self._lock = decode, threading.Lock()
        self.here, self.most = 0, 0

    def __call__(self, source, reading) -> Image.Image:
        image = self._decode(source, reading)
        with self._lock:
            self.here += 1
            self.most = max(self.most, self.here)
        weakref.finalize(image, self._gone)
        return image

    def _gone(self) -> None:
        with self._lock:
            self.here -= 1


def test_few_images_are_in_memory_at_a_time(bench, photos, image_files, monkeypatch):
    """Adding, indexing and re-embedding hold two or three batches, and the images that the workers decode."""
    for module in (folder_index, reembedding):
        monkeypatch.setattr(module, "MAX_BATCH_BYTES", 4 * max(path.stat().st_size for path in image_files))
    bench.create_collection("added")
    images = [NewImage(f"i{i}", path) for i, path in enumerate(image_files)]
    decode, most = image_record.decode_any, []
    for work in (
        lambda: bench.add_images("added", images).count(None),
        lambda: bench.index_folder("photos", photos).added,
        lambda: reembed(bench, "photos", "random:test_resnet").embedded,
    ):
        counting = Counting(decode)
        monkeypatch.setattr(image_record, "decode_any", counting)
        assert work() == 60
        most.append(counting.most)
    assert all(4 <= one <= 24 for one in most), most  # of 60
