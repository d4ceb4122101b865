"""Fake models of known size."""

import threading

from fake_encoder import FakeEncoder

from nnclr_hub.errors import UnknownModel

KB = 250  # weights of a thousand bytes


class Shelf:
    """Load fake encoders, and record each load."""

    def __init__(self, **weights: int) -> None:
        self.weights = weights
        self.fingerprints: dict[str, str] = {}
        self.loads: list[str] = []
        self.loading = lambda: None
        self.made: dict[str, FakeEncoder] = {}
        self.wait = threading.Event()
        self.wait.set()

    def __call__(self, source: str) -> FakeEncoder:
        self.loads.append(source)
        self.loading()
        self.wait.wait(120)
        if source not in self.weights:
            raise UnknownModel(f"Unknown model {source}.")
        fingerprint = self.fingerprints.get(source, source[0])
        self.made[source] = FakeEncoder(name=source, fingerprint=fingerprint, weights=self.weights[source])
        return self.made[source]
