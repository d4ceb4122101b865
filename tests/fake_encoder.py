"""A small fake encoder, whose images are numbers, or words that call functions of the test."""

import threading
from types import SimpleNamespace

import numpy as np

from nnclr_hub.encoder.decoding import attempt_each
from nnclr_hub.errors import ImageError

SIDE = 4


class FakeEncoder:
    """Image b"7" has the vector (7, 1); b"bad" cannot be read; any other word calls the function of that name.

    Args:
        decoding: word -> function to call in the decoding thread.
        forwarding: word -> function to call in the device thread for a batch with that word.
        weights: number of weights of four bytes.
    """

    embed_dim, config = 2, None
    transform = SimpleNamespace(preprocessing=SimpleNamespace(input_size=SIDE))

    def __init__(self, decoding=None, forwarding=None, name="fake", fingerprint="", weights=10):
        self.decoding, self.forwarding = dict(decoding or {}), dict(forwarding or {})
        self.name, self.fingerprint = name, fingerprint or name
        self.weight_bytes = 4 * weights
        self.backend = SimpleNamespace(buckets=None, memory=None, name="fake")
        self.words = ["0"]
        self.batches: list[int] = []
        self.before = lambda: None
        self._lock = threading.Lock()

    def prepare(self, image):
        if isinstance(image, np.ndarray):
            return image
        word = image.decode().partition(":")[0]
        if word == "bad":
            raise ImageError("It is not an image.")
        if word in self.decoding:
            self.decoding[word]()
        with self._lock:
            if word not in self.words:
                self.words.append(word)
            return np.full((SIDE, SIDE, 3), self.words.index(word), np.uint8)

    def prepare_each(self, images):
        return attempt_each(self.prepare, images)

    def forward_crops(self, crops):
        self.batches.append(len(crops))
        self.before()
        words = [self.words[crop[0, 0, 0]] for crop in crops]
        for word in words:
            if word in self.forwarding:
                self.forwarding[word]()
        return np.array([[float(word) if word.isdigit() else -1.0, 1.0] for word in words], np.float32)

    def tokens(self, images):
        return np.zeros((len(images), 1, 1, 2), np.float32)
