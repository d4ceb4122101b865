"""AttentionQuery: attention through the engine.

    looking = AttentionQuery(encoder.looker, 1024, settings, image, targets)
    seen = engine.each(looking.images, looking.errand)
    maps = looking.maps(seen)

Images are decoded by the decoding threads and go through the network in the device's, one between two batches of
vectors; the maps are made of what that gives, by whoever asked.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace

from nnclr_hub.encoder.attention import AttentionMap, AttentionSettings
from nnclr_hub.encoder.attention.looker import Looker, Prepared, Seen
from nnclr_hub.encoder.decoding import MAX_PIXELS
from nnclr_hub.encoder.embedder import ImageLike
from nnclr_hub.errors import ImageError, RequestTooLarge

from .request import Task

MOST_PIXELS = 3 * MAX_PIXELS  # of all originals of one question, which are kept whole until it is answered


class AttentionQuery:
    """One question and its images.

    images: that which is asked about, then the targets.
    errand: what is to be done for each of them.

    Args:
        looker: the encoder's.
        most_side: of the network's input, whatever `max_side` is asked for: what it was, each map says.
        settings: the question.
        image: the image that is asked about.
        targets: images that the query is looked for in.

    Raises:
        InvalidRequest: the encoder has no answer to it.
    """

    def __init__(
        self,
        looker: Looker,
        most_side: int,
        settings: AttentionSettings,
        image: ImageLike,
        targets: Sequence[ImageLike] = (),
    ) -> None:
        settings = replace(settings, max_side=min(settings.max_side, most_side))
        looker.check(settings, len(targets))
        self.pictures = [image, *targets]
        self.errand = Task(self._prepare, looker.forward)
        self._looker, self._settings, self._image = looker, settings, image
        self._pixels = 0
        self._lock = threading.Lock()

    def maps(self, seen: Sequence[Seen | ImageError]) -> list[AttentionMap]:
        """The map of the image, or those of the targets on one scale.

        Args:
            seen: of each image, what the errand gave.

        Raises:
            ImageError: the first that could not be read; a target's says its number.
            InvalidRequest: the network's numbers are not finite.
        """
        good: list[Seen] = []
        for index, one in enumerate(seen):
            if isinstance(one, ImageError):
                raise one if index == 0 else one.for_image(self.pictures[index], index - 1) from one
            good.append(one)
        return self._looker.maps(self._settings, good[0], good[1:])

    def _prepare(self, picture: ImageLike) -> Prepared:
        prepared = self._looker.prepare(picture, self._settings, asked=picture is self._image)
        width, height = prepared.picture.size
        with self._lock:
            self._pixels += width * height
            if self._pixels > MOST_PIXELS:
                raise RequestTooLarge(
                    f"The images have more than {MOST_PIXELS // 10**6} megapixels together: send fewer targets, or "
                    "smaller ones."
                )
        return prepared
