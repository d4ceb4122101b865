"""The embedder of background work: it waits where requests are refused, and asks for less where it asked too much."""

import numpy as np
import pytest
from PIL import Image

from nnclr_hub.errors import Overloaded, RequestTooLarge
from serving.engine.admission import Admission
from serving.jobs.context import RetryingEmbedder, RetryingModels
from serving.telemetry import Metrics


class Admitted:
    """Embeds an image as its width, if it is let in: 100 bytes at once, an image having as many as it is wide."""

    def __init__(self) -> None:
        self.admission = Admission(512, 100, Metrics())
        self.asked: list[int] = []

    def embed_each(self, images) -> list[np.ndarray]:
        size = sum(image.width for image in images)
        self.admission.enter(len(images), size)
        self.admission.leave(len(images), size)
        self.asked.append(len(images))
        return [np.array([image.width]) for image in images]


def test_images_that_are_too_large_together_come_a_few_at_a_time_and_in_order():
    embedder = Admitted()
    images = [Image.new("RGB", (30 + i, 1)) for i in range(10)]
    found = RetryingEmbedder(embedder, lambda seconds: None).embed_each(images)  # type: ignore[arg-type]
    assert [int(one[0]) for one in found] == [image.width for image in images]  # type: ignore[index]
    assert embedder.asked == [2] * 5


def test_one_that_is_too_large_by_itself_is_refused():
    with pytest.raises(RequestTooLarge, match="101 bytes"):
        RetryingEmbedder(Admitted(), lambda seconds: None).embed_each([Image.new("RGB", (101, 1))])  # type: ignore[arg-type]


class Full:
    """Models whose memory is full for a while."""

    default = "a"

    def __init__(self, times: int) -> None:
        self.times = times

    def get(self, source=None) -> Admitted:
        self.times -= 1
        if self.times >= 0:
            raise Overloaded("The memory for models is full.", 2.0)
        return Admitted()

    def by_fingerprint(self, fingerprint: str) -> Admitted | None:
        """One that was loaded before is loaded again, as by `Engines`."""
        return self.get() if fingerprint == "known" else None


@pytest.mark.parametrize("ask", [lambda models: models.get("a"), lambda models: models.by_fingerprint("known")])
def test_a_model_for_which_there_is_no_memory_is_waited_for(ask):
    waited: list[float] = []
    found = ask(RetryingModels(Full(3), waited.append))  # type: ignore[arg-type]
    assert (len(found.embed_each([Image.new("RGB", (3, 1))])), waited) == (1, [2.0] * 3)


def test_a_model_that_nobody_loaded_is_not_waited_for():
    assert RetryingModels(Full(0), pytest.fail).by_fingerprint("unknown") is None  # type: ignore[arg-type]
