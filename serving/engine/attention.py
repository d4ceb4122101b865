"""Attention maps through the engine.

    query = AttentionQuery(encoder.attention_extractor, 1024, settings, image, targets)
    maps = query.maps(engine.run(query.images, query.task))

Decode workers decode the images, and the device thread runs the network, one image between two batches of vectors.
The caller's thread makes the maps from what the network returned.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from nnclr_hub.encoder.attention import AttentionMap, AttentionSettings
from nnclr_hub.encoder.embedder import ImageLike
from nnclr_hub.errors import ImageError, RequestTooLarge
from nnclr_hub.images.decode import MAX_PIXELS

from .request import ImageTask

if TYPE_CHECKING:  # they import torch, which a server needs for its first map only
    from nnclr_hub.encoder.attention.extractor import AttentionExtractor, ImageFeatures, PreparedImage

MAX_TOTAL_PIXELS = 3 * MAX_PIXELS  # of all originals, which stay in memory until the answer


class AttentionQuery:
    """One query and its images: the image of the query, then the targets in which it is searched for.

    Args:
        extractor: of the encoder.
        max_side: upper limit of `settings.max_side`. Each map reports the side that was used.

    Raises:
        InvalidRequest: the encoder cannot answer the query.
    """

    def __init__(
        self,
        extractor: AttentionExtractor,
        max_side: int,
        settings: AttentionSettings,
        image: ImageLike,
        targets: Sequence[ImageLike] = (),
    ) -> None:
        settings = replace(settings, max_side=min(settings.max_side, max_side))
        extractor.check(settings, len(targets))
        self.images = [image, *targets]
        self.task = ImageTask(self._prepare, extractor.forward)
        self._extractor, self._settings, self._image = extractor, settings, image
        self._pixels = 0
        self._lock = threading.Lock()

    def maps(self, results: Sequence[ImageFeatures | ImageError]) -> list[AttentionMap]:
        """Return the map of the image, or those of the targets on one scale, from the results of the task.

        Raises:
            ImageError: the first unreadable image; the message names the number of a target.
            InvalidRequest: the network returned NaN or infinity.
        """
        seen: list[ImageFeatures] = []
        for index, one in enumerate(results):
            if isinstance(one, ImageError):
                raise one if index == 0 else one.for_image(self.images[index], index - 1) from one
            seen.append(one)
        return self._extractor.maps(self._settings, seen[0], seen[1:])

    def _prepare(self, image: ImageLike) -> PreparedImage:
        prepared = self._extractor.prepare(image, self._settings, has_query=image is self._image)
        width, height = prepared.image.size
        with self._lock:
            self._pixels += width * height
            if self._pixels > MAX_TOTAL_PIXELS:
                raise RequestTooLarge(
                    f"The images have more than {MAX_TOTAL_PIXELS // 10**6} megapixels together; send fewer or smaller "
                    "targets."
                )
        return prepared
