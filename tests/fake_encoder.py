"""A small fake encoder, whose images are numbers, or words that call functions of the test; and its engine's work."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np

from nnclr_hub.errors import ImageError
from nnclr_hub.images.pool import attempt_each
from nnclr_hub.images.reading import PLAIN
from serving.engine import Engine

SIDE = 4


class FakeEncoder:
    """Image b"7" has the vector (7, 1); b"bad" cannot be read; any other word calls the function of that name.

    Args:
        decoding: word -> function to call in the decoding thread.
        forwarding: word -> function to call in the device thread for a batch with that word.
        weights: number of weights of four bytes.
    """

    embed_dim, config, reading = 2, None, PLAIN
    transform = SimpleNamespace(preprocessing=SimpleNamespace(input_size=SIDE, in_chans=3))

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


def numbers(*values: int) -> list[bytes]:
    return [str(value).encode() for value in values]


def first_column(results) -> list[float]:
    return [float(result[0]) for result in results]


def sample(engine: Engine, name: str, **labels: str) -> float:
    return engine.metrics.registry.get_sample_value(name, labels) or 0.0


def queued(engine: Engine) -> float:
    """Return the number of decoded images that wait for the device."""
    return sample(engine, "nnclr_queued_images", model="fake")


@contextmanager
def busy(engine: Engine, encoder: FakeEncoder, release: threading.Event) -> Iterator[None]:
    """Occupy the device with one image until the release."""
    begun = threading.Event()
    encoder.before = lambda: (begun.set(), release.wait(120))
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(engine.run, numbers(1))
        assert begun.wait(120)
        yield
        assert first_column(first.result()) == [1]
