"""Which rows of METHODS are possible."""

import dataclasses

import pytest

from nnclr_hub.errors import InvalidRequest
from nnclr_hub.method import METHODS


@pytest.mark.parametrize(
    ("method", "choices"),
    [
        ("sce", {"negatives": "batch"}),
        ("nnclr", {"objective": "negative_cosine"}),
        ("nnclr", {"negatives": "Queue"}),
        ("simclr", {"negatives": "none"}),
    ],
)
def test_negatives_that_the_objective_does_not_take_are_refused(method, choices):
    with pytest.raises(InvalidRequest):
        dataclasses.replace(METHODS[method], **choices)
