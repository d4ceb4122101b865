"""The embedder of background jobs: it waits while the engine is busy, and sends fewer images if they are too large."""

import numpy as np
import pytest
from PIL import Image

from nnclr_hub.errors import NotReady, Overloaded, RequestTooLarge
from serving.jobs import PatientEmbedder, PatientModels
from serving.limits import Admission
from serving.telemetry import Metrics


class Admitted:
    """Embed an image as its width. Admission allows 100 bytes, and an image has as many bytes as its width."""

    def __init__(self) -> None:
        self.admission = Admission(512, 100, Metrics())
        self.calls: list[int] = []

    def embed_each(self, images) -> list[np.ndarray]:
        size = sum(image.width for image in images)
        self.admission.enter(len(images), size)
        self.admission.leave(len(images), size)
        self.calls.append(len(images))
        return [np.array([image.width]) for image in images]


def test_images_that_are_too_large_together_are_sent_in_smaller_groups_and_in_order():
    embedder = Admitted()
    images = [Image.new("RGB", (30 + i, 1)) for i in range(10)]
    found = PatientEmbedder(embedder, lambda seconds: None).embed_each(images)  # type: ignore[arg-type]
    assert [int(one[0]) for one in found] == [image.width for image in images]  # type: ignore[index]
    assert embedder.calls == [2] * 5


def test_an_image_that_is_too_large_alone_is_refused():
    with pytest.raises(RequestTooLarge):
        PatientEmbedder(Admitted(), lambda seconds: None).embed_each([Image.new("RGB", (101, 1))])  # type: ignore[arg-type]


class Full:
    """Models whose memory is full for some calls."""

    default = "a"

    def __init__(self, times: int) -> None:
        self.times = times

    def get(self, source=None) -> Admitted:
        self.times -= 1
        if self.times >= 0:
            raise Overloaded("The memory for models is full.", 2.0)
        return Admitted()

    def by_fingerprint(self, fingerprint: str) -> Admitted | None:
        """Load a known model again, as `Engines` does."""
        return self.get() if fingerprint == "known" else None


@pytest.mark.parametrize("get", [lambda models: models.get("a"), lambda models: models.by_fingerprint("known")])
def test_a_model_without_memory_is_retried(get):
    waited: list[float] = []
    found = get(PatientModels(Full(3), waited.append))  # type: ignore[arg-type]
    assert (len(found.embed_each([Image.new("RGB", (3, 1))])), waited) == (1, [2.0] * 3)


def test_an_unknown_fingerprint_is_not_retried():
    assert PatientModels(Full(0), pytest.fail).by_fingerprint("unknown") is None  # type: ignore[arg-type]


def test_embedding_is_retried_while_the_engine_is_busy():
    class Busy:
        name, refusals = "x", [Overloaded("busy", 2.0), NotReady("starting")]

        def embed_each(self, images):
            if self.refusals:
                raise self.refusals.pop(0)
            return [np.full(2, float(image)) for image in images]

    waits: list[float] = []
    embedder = PatientEmbedder(Busy(), waits.append)  # type: ignore[arg-type]
    found = embedder.embed_each(str(i) for i in range(70))
    assert [float(one[0]) for one in found] == list(range(70))
    assert waits == [2.0, 1.0]
    assert embedder.name == "x"
