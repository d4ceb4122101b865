"""Images ahead of who uses them: all of them, in order, and never more than the memory takes."""

import threading
import weakref

import pytest
from PIL import Image

from nnclr_hub.store import open_store
from nnclr_hub.workbench import Encoders, Workbench, adding, ahead, sources
from nnclr_hub.workbench.ahead import batches_of_files
from nnclr_hub.workbench.reembedding import reembed


@pytest.mark.parametrize(
    ("weights", "lists"),
    [
        ([], []),
        ([1] * 7, [[1, 1, 1], [1, 1, 1], [1]]),
        ([6, 4, 1], [[6, 4], [1]]),
        ([11, 1, 30, 30], [[11], [1], [30], [30]]),
        ([0, 0, 0, 0], [[0, 0, 0], [0]]),
    ],
)
def test_batches_are_bounded_by_number_and_by_bytes(monkeypatch, weights, lists):
    monkeypatch.setattr(ahead, "MOST_BYTES", 10)
    assert list(batches_of_files(weights, 3, lambda weight: weight)) == lists


class Counting:
    """Decodes, and counts how many images that it gave are in memory at once."""

    def __init__(self, decode) -> None:
        self._decode, self._lock = decode, threading.Lock()
        self.here, self.most = 0, 0

    def __call__(self, source) -> Image.Image:
        image = self._decode(source)
        with self._lock:
            self.here += 1
            self.most = max(self.most, self.here)
        weakref.finalize(image, self._gone)
        return image

    def _gone(self) -> None:
        with self._lock:
            self.here -= 1


def test_of_large_files_few_are_in_memory_at_once(photos, pictures, model, tmp_path, monkeypatch):
    """While a folder is indexed, and while it is embedded anew: two batches, and what the workers have in hand."""
    monkeypatch.setattr(ahead, "MOST_BYTES", 4 * max(path.stat().st_size for path in pictures))
    with open_store(str(tmp_path / "store")) as store:
        bench = Workbench(Encoders(str(model), device="cpu"), store)
        indexing = Counting(adding.decode_image)
        monkeypatch.setattr(adding, "decode_image", indexing)
        assert bench.index_folder("photos", photos).added == 60
        reading = Counting(sources.decode_image)
        monkeypatch.setattr(sources, "decode_image", reading)
        assert reembed(bench, "photos", "random:test_resnet").embedded == 60
    for counted in (indexing, reading):
        assert 4 <= counted.most <= 24  # of 60
