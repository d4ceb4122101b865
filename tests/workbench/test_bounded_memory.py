"""Indexing and re-embedding decode images ahead of the encoder, in bounded memory."""

import threading
import weakref

from PIL import Image

from nnclr_hub.store import open_store
from nnclr_hub.workbench import Encoders, Workbench, folder_index, image_record, reembedding
from nnclr_hub.workbench.reembedding import reembed


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


def test_few_large_files_are_in_memory_at_a_time(photos, image_files, model, tmp_path, monkeypatch):
    """Indexing and re-embedding hold two batches and the images that the workers decode."""
    for module in (folder_index, reembedding):
        monkeypatch.setattr(module, "MAX_BATCH_BYTES", 4 * max(path.stat().st_size for path in image_files))
    with open_store(str(tmp_path / "store")) as store:
        bench = Workbench(Encoders(str(model), device="cpu"), store)
        decode = image_record.decode_any
        decoding = Counting(decode)
        monkeypatch.setattr(image_record, "decode_any", decoding)
        assert bench.index_folder("photos", photos).added == 60
        reading = Counting(decode)
        monkeypatch.setattr(image_record, "decode_any", reading)
        assert reembed(bench, "photos", "random:test_resnet").embedded == 60
    for counted in (decoding, reading):
        assert 4 <= counted.most <= 24  # of 60
