"""Requests for tests of the engine, and its metrics."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from fake_encoder import FakeEncoder

from serving.engine import Engine


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
