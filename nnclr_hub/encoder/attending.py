"""Attending: the part of an encoder, or of what stands for one, that says what it looks at."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, overload

import torch
from torch import nn

from nnclr_hub.encoder.attention import MAX_SIDE, AttentionMap, AttentionSettings, Query
from nnclr_hub.encoder.attention.anatomy import anatomy_of
from nnclr_hub.encoder.attention.looker import Looker
from nnclr_hub.encoder.given import ImageLike
from nnclr_hub.encoder.preprocess import EvalTransform
from nnclr_hub.errors import InvalidRequest


class Attends:
    """What can show where in an image it finds what: an Encoder, or a server's engine around one."""

    @property
    def heads(self) -> int | None:
        """How many `head` chooses from; None where there are none to ask for, as in a ResNet."""
        raise NotImplementedError

    def look(
        self, settings: AttentionSettings, image: ImageLike, targets: Sequence[ImageLike] = ()
    ) -> list[AttentionMap]:
        """`attention` with its question in one piece: the map of the image, or one for each target.

        Raises:
            ImageError, InvalidRequest: as there.
        """
        raise NotImplementedError

    @overload
    def attention(
        self,
        image: ImageLike,
        query: Query | None = None,
        target: ImageLike | None = None,
        similarity: str = "dot",
        head: int | None = None,
        threshold: float | None = None,
        max_side: int = MAX_SIDE,
    ) -> AttentionMap: ...

    @overload
    def attention(
        self,
        image: ImageLike,
        query: Query | None = None,
        *,
        target: list[Any] | tuple[Any, ...],
        similarity: str = "dot",
        head: int | None = None,
        threshold: float | None = None,
        max_side: int = MAX_SIDE,
    ) -> list[AttentionMap]: ...

    def attention(
        self,
        image: ImageLike,
        query: Query | None = None,
        target: ImageLike | list[Any] | tuple[Any, ...] | None = None,
        similarity: str = "dot",
        head: int | None = None,
        threshold: float | None = None,
        max_side: int = MAX_SIDE,
    ) -> AttentionMap | list[AttentionMap]:
        """What the encoder looks at in the whole image, uncropped: see `nnclr_hub.encoder.attention`.

        Args:
            image: the image that is asked about.
            query: Point or Box in pixels of the upright original; None: the image as a whole.
            target: another image to look for the query in, or a list of up to 6; their maps share one scale.
            similarity: "dot", the paper's, or "cosine".
            head: of the last block's attention, from 0; None: the mean of all. Only of the row of [CLS].
            threshold: keep the fewest patches that hold this share of the row's mass. Only of the row of [CLS].
            max_side: the long side of the network's input at the most, in pixels; less where that would be more than
                4096 cells, as it is with patches of 8 beyond 512 x 512.

        Returns:
            The map of the image, or of the one target; a list for a list of targets.

        Raises:
            ImageError: an image that cannot be read.
            InvalidRequest: a question that this network, or this image, has no answer to.
        """
        several = isinstance(target, list | tuple)
        targets: list[Any] = [] if target is None else list(target) if several else [target]
        settings = AttentionSettings(query, similarity, head, threshold, max_side)
        if several and not targets:
            raise InvalidRequest("The list of target images is empty: leave target out, or name one.")
        maps = self.look(settings, image, targets)
        return maps if several else maps[0]


class Attending(Attends):
    """What has a network and its preprocessing, and so attends by itself."""

    backbone: nn.Module
    transform: EvalTransform
    device: torch.device
    name: str

    @property
    def heads(self) -> int | None:
        """See `Attends.heads`."""
        try:
            anatomy = anatomy_of(self.backbone)
        except InvalidRequest:  # there is no map of such a network at all
            return None
        return anatomy.heads if anatomy.class_token else None

    def look(
        self, settings: AttentionSettings, image: ImageLike, targets: Sequence[ImageLike] = ()
    ) -> list[AttentionMap]:
        """See `Attends.look`."""
        return self.looker.attention(settings, image, targets)

    @cached_property
    def looker(self) -> Looker:
        """Attention in its three steps, for programs that run each in a thread of its own."""
        return Looker(self.backbone, self.transform, self.device, self.name)
