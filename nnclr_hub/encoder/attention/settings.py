"""What is asked of a map."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral, Real
from typing import TYPE_CHECKING

from nnclr_hub.encoder.attention.queries import Box, Point, Query
from nnclr_hub.encoder.attention.sizes import MAX_SIDE
from nnclr_hub.errors import InvalidRequest

if TYPE_CHECKING:  # a wrong question is refused before torch and timm are there
    from nnclr_hub.encoder.attention.anatomy import Anatomy

SIMILARITIES = ("dot", "cosine")
MOST_TARGETS = 6


@dataclass(frozen=True)
class AttentionSettings:
    """A question to an encoder.

    query: what in the image is asked about; None: the image as a whole.
    similarity: "dot", the paper's, or "cosine", which brings both sides to length 1.
    head: of the last block's attention, from 0; None: the mean of all. Only of the row of [CLS].
    threshold: in (0, 1]; keep the fewest patches that hold this share of the row's mass. Only of the row of [CLS].
    max_side: of the network's input, in pixels; see `sizes.input_size`.

    Raises:
        InvalidRequest: a value that makes no sense whatever the network.
    """

    query: Query | None = None
    similarity: str = "dot"
    head: int | None = None
    threshold: float | None = None
    max_side: int = MAX_SIDE

    def __post_init__(self) -> None:
        if not isinstance(self.query, Point | Box | None):
            raise InvalidRequest(f"A query is Point(x, y), Box(x0, y0, x1, y1) or None; this one is {self.query!r}.")
        if self.similarity not in SIMILARITIES:
            raise InvalidRequest(f"Similarity {self.similarity!r} is none of {', '.join(SIMILARITIES)}.")
        if self.head is not None and not (_whole(self.head) and self.head >= 0):
            raise InvalidRequest(f"head={self.head!r} is no head: give a whole number from 0, or leave it out.")
        if self.threshold is not None and not (_number(self.threshold) and 0 < self.threshold <= 1):
            raise InvalidRequest(f"threshold={self.threshold!r} is not in (0, 1]: give a share of the mass, as 0.6.")
        if not (_whole(self.max_side) and self.max_side >= 1):
            raise InvalidRequest(f"max_side={self.max_side!r} is no length in pixels: give a whole number.")

    def of_class_token(self, anatomy: Anatomy, targets: int = 0) -> bool:
        """Whether the map is the softmax row of [CLS]: a vision transformer's, of one image, without a query."""
        return anatomy.transformer and self.query is None and not targets and self.similarity == "dot"

    def check(self, anatomy: Anatomy, name: str, targets: int = 0) -> None:
        """Refuses what this network has no answer to.

        Args:
            anatomy: of the network.
            name: of the encoder, for the sentence.
            targets: number of images that the query is looked for in.

        Raises:
            InvalidRequest: one sentence on the first such thing.
        """
        if targets > MOST_TARGETS:
            raise InvalidRequest(f"There are {targets} target images: give {MOST_TARGETS} at the most.")
        row = self.of_class_token(anatomy, targets)
        for value, what in ((self.head, "head"), (self.threshold, "threshold")):
            if value is not None and not row:
                why = (
                    f"and this map is of a query's similarity: leave out query, target and similarity, or {what}"
                    if anatomy.transformer
                    else f"which {name}, a ResNet, does not have: leave it out"
                )
                raise InvalidRequest(f"{what}={value} is of a vision transformer's [CLS] row, {why}.")
        if anatomy.transformer and self.query is None and not anatomy.class_token:
            raise InvalidRequest(f"{name} has no [CLS] token to look from: give a point or a box as query.")
        if row and anatomy.heads is None:
            raise InvalidRequest(
                f"The last block of {name} attends by {anatomy.attends_by}, whose rows we cannot read: give a point or "
                "a box as query."
            )
        if row and self.head is not None and self.head >= (anatomy.heads or 0):
            raise InvalidRequest(f"There is no head {self.head}: {name} has {anatomy.heads}, from 0.")


def _whole(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)
