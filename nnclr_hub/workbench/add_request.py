"""AddRequest: images to put into a collection, as every entry point takes them.

    request = AddRequest([NewImage("tom", "tom.jpg", {"label": "cat"}), NewImage(None, data)])
    bench.add_images("photos", request)         # one entry per image: None, or why it could not be read

The command line, `Workbench`, `Client`, REST and the apps add images with it. Its JSON form is the body of
POST /api/v1/collections/{name}/items. This module imports neither torch nor a web framework.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Self

from nnclr_hub.errors import InvalidRequest
from nnclr_hub.store.checks import check_name
from nnclr_hub.workbench.payload import decode_base64, encode_image

if TYPE_CHECKING:
    from nnclr_hub.encoder.embedder import ImageLike


@dataclass(frozen=True, eq=False)
class NewImage:
    """An image to put into a collection.

    id: the item's id; None: made from the image's content, which must then be bytes.
    image: a path, the bytes of a file, a PIL image, or (H, W, 3) uint8.
    metadata: JSON values by key, stored with the item; `pixel_sha256` is added.
    thumbnail: whether to store a JPEG of at most 256 pixels a side.
    """

    id: str | None
    image: ImageLike
    metadata: Mapping[str, Any] = field(default_factory=dict)
    thumbnail: bool = True

    def __post_init__(self) -> None:
        if self.id is None:
            if not isinstance(self.image, bytes):
                raise InvalidRequest("An image without an id must be given as bytes; its id is made from them.")
            object.__setattr__(self, "id", content_id(self.image))
        check_name(self.item_id, "Item id")
        if not isinstance(self.metadata, Mapping):
            raise InvalidRequest(f"The metadata of {self.id!r} must be an object, got {self.metadata!r:.80}.")
        if not isinstance(self.thumbnail, bool):
            raise InvalidRequest(f"thumbnail must be true or false, got {self.thumbnail!r:.80}.")

    @property
    def item_id(self) -> str:
        """The id, which is known once the image is made."""
        assert self.id is not None
        return self.id

    def note(self) -> dict[str, Any]:
        """Return the JSON form without the image, for a request that carries the image as a file."""
        note: dict[str, Any] = {"id": self.id, "metadata": dict(self.metadata)}
        return note if self.thumbnail else {**note, "thumbnail": False}


@dataclass(frozen=True, eq=False)
class AddRequest:
    """Images to add to a collection. Making an invalid request raises InvalidRequest.

    images: each under a different id. The same bytes may come twice without an id.
    """

    images: Sequence[NewImage]

    def __post_init__(self) -> None:
        if isinstance(self.images, str | bytes | Mapping) or not isinstance(self.images, Iterable):
            raise InvalidRequest(f"images must be a list of NewImage, got {self.images!r:.80}.")
        object.__setattr__(self, "images", tuple(self.images))
        self.validate()

    @classmethod
    def of(cls, images: AddRequest | Sequence[NewImage]) -> AddRequest:
        """Return a request as it is, or make one of a list of images."""
        return images if isinstance(images, AddRequest) else cls(images)

    def validate(self) -> None:
        """Raise InvalidRequest if an id is given twice: one image would overwrite the other."""
        first: dict[str, NewImage] = {}
        for image in self.images:
            if not isinstance(image, NewImage):
                raise InvalidRequest(f"images must be a list of NewImage, got {image!r:.80}.")
            other = first.setdefault(image.item_id, image)
            if other is not image and not (isinstance(image.image, bytes) and image.id == content_id(image.image)):
                raise InvalidRequest(f"The id {image.id!r} is given twice in one request; use a different id for each.")

    def to_json(self) -> dict[str, Any]:
        """Return the body of a REST upload, images as base64; raise ImageError if a file cannot be opened."""
        return {"items": [{**one.note(), "image": encode_image(one.image)} for one in self.images]}

    @classmethod
    def from_json(cls, body: Mapping[str, Any], decode: Callable[[str], bytes] | None = None) -> Self:
        """Read the body of a REST upload.

        Args:
            decode: makes bytes of the text of an image; None: base64 or a data URI. An image may be bytes already.
        """
        items = body.get("items")
        if body.keys() - {"items"} or not isinstance(items, list | tuple):
            raise InvalidRequest("An upload is an object with one field: items, a list of {id, image, metadata}.")
        return cls([_read(item, decode) for item in items])


def content_id(data: bytes) -> str:
    """Return the id of an image that was given none: 32 hex digits of the SHA-256 of its bytes."""
    return hashlib.sha256(data).hexdigest()[:32]


def _read(item: Any, decode: Callable[[str], bytes] | None) -> NewImage:
    names = [one.name for one in fields(NewImage)]
    if not isinstance(item, Mapping) or item.keys() - set(names) or "image" not in item:
        raise InvalidRequest(f"An item to add must have an image, and may have {', '.join(names)}; got {item!r:.80}.")
    image = item["image"]
    if isinstance(image, str):
        image = decode(image) if decode is not None else decode_base64(image, "image")
    return NewImage(item.get("id"), image, item.get("metadata", {}), item.get("thumbnail", True))
