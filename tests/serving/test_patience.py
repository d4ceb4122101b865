"""The embedder of background work: it waits where requests are refused, and asks for less where it asked too much."""

import numpy as np
import pytest
from PIL import Image

from nnclr_hub.errors import RequestTooLarge
from serving.engine.admission import Admission
from serving.jobs.patience import Patient
from serving.telemetry import Metrics


class Admitted:
    """Embeds a picture as its width, if it is let in: 100 bytes at once, a picture having as many as it is wide."""

    def __init__(self) -> None:
        self.admission = Admission(512, 100, Metrics())
        self.asked: list[int] = []

    def embed_each(self, images) -> list[np.ndarray]:
        size = sum(image.width for image in images)
        self.admission.enter(len(images), size)
        self.admission.leave(len(images), size)
        self.asked.append(len(images))
        return [np.array([image.width]) for image in images]


def test_pictures_that_are_too_large_together_come_a_few_at_a_time_and_in_order():
    embedder = Admitted()
    images = [Image.new("RGB", (30 + i, 1)) for i in range(10)]
    found = Patient(embedder, lambda seconds: None).embed_each(images)  # type: ignore[arg-type]
    assert [int(one[0]) for one in found] == [image.width for image in images]  # type: ignore[index]
    assert embedder.asked == [2] * 5


def test_one_that_is_too_large_by_itself_is_refused():
    with pytest.raises(RequestTooLarge, match="101 bytes"):
        Patient(Admitted(), lambda seconds: None).embed_each([Image.new("RGB", (101, 1))])  # type: ignore[arg-type]
