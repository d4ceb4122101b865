"""What is put into a collection, as every entry point takes it: images, the images of a folder, or a new collection.

    bench.add_images("photos", AddRequest([NewImage("tom", "tom.jpg", {"label": "cat"}), NewImage(None, data)]))
    bench.index_folder("photos", FolderRequest("~/photos", prune=True))
    bench.create_collection("vectors", NewCollection(dim=512, metric="dot"))

Making an invalid request raises InvalidRequest. This module imports neither torch nor a web framework.
"""

from __future__ import annotations

import hashlib
import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from functools import cache
from numbers import Real
from pathlib import Path, PurePath
from types import UnionType
from typing import TYPE_CHECKING, Any, Literal, Self, Union, get_args, get_origin, get_type_hints

from nnclr_hub.errors import InvalidRequest
from nnclr_hub.store.checks import check_name
from nnclr_hub.store.spec import MAX_DIM, MAX_INDEXED, CollectionSpec, Compared, IndexName, Metric, Precision
from nnclr_hub.store.where import check_key
from nnclr_hub.table_rows import LabelTable

if TYPE_CHECKING:
    from nnclr_hub.encoder.embedder import Embedder, ImageLike
    from nnclr_hub.images.tiles import Tiling

LEAST_SIDE = 32  # pixels
COMPARE = {"ge": operator.ge, "gt": operator.gt, "le": operator.le, "lt": operator.lt}
COMPARE |= {"min_length": operator.ge, "max_length": operator.le}
WORDS = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below", "min_length": "at least"}
WORDS |= {"max_length": "at most"}


def option(doc: str, default: Any = MISSING, *, hidden: bool = False, **limits: Any) -> Any:
    """Return a field of a request.

    Args:
        doc: description in the REST schema; "": the one in the docstring of the class.
        hidden: clients neither set nor see it, such as a path of the server.
        limits: ge, gt, le, lt, min_length and max_length, as pydantic has them; None is always allowed.
    """
    return field(default=default, metadata={"doc": doc, "hidden": hidden, "limits": limits})


@dataclass(frozen=True)
class Request:
    """Base of all requests. Making an invalid one raises InvalidRequest."""

    def __post_init__(self) -> None:
        self.validate()

    def validate(self) -> None:
        """Raise InvalidRequest if a value is not of its field's type, or outside of its limits.

        Whole numbers become int, as JSON has one type of number.
        """
        for name, kind, default, limits in _checked_fields(type(self)):
            given = getattr(self, name)
            if given is default:  # as most are
                continue
            value = _conformed(given, kind)
            if value is WRONG:
                raise InvalidRequest(f"{name} must be {_words(kind)}, got {given!r:.80}.")
            if value is not given:
                object.__setattr__(self, name, value)
            if value is None or not limits:
                continue
            of_length = any(limit.endswith("_length") for limit in limits)
            number = len(value) if of_length else value
            if not all(COMPARE[limit](number, bound) for limit, bound in limits.items()):
                allowed = " and ".join(f"{WORDS[limit]} {bound:,}" for limit, bound in limits.items())
                what = f"The length of {name}" if of_length else name
                raise InvalidRequest(f"{what} must be {allowed}, got {number}.")

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Self:
        """Read what `as_json` returned."""
        names = [one.name for one in fields(cls)]
        unknown = sorted(body.keys() - set(names))
        if unknown:
            raise InvalidRequest(f"{cls.__name__} has no field {unknown[0]!r}; it takes {', '.join(names)}.")
        return cls(**body)

    def as_json(self) -> dict[str, Any]:
        """Return all fields as JSON."""
        return {one.name: getattr(self, one.name) for one in fields(self)}


# ---- types of fields

WRONG: Any = object()
WORDS_OF_TYPES = {bool: "true or false", int: "a whole number", float: "a finite number", str: "a string"}
WORDS_OF_TYPES |= {type(None): "null", Sequence: "a list", Mapping: "an object"}


@cache
def field_types(kind: type) -> Mapping[str, Any]:
    """Return the types of a request's fields by name. Those that only type checkers import are Any."""
    return get_type_hints(kind, localns={"ImageLike": Any, "Tiling": Any})


@cache
def _checked_fields(kind: type) -> list[tuple[str, Any, Any, Mapping[str, Any]]]:
    types = field_types(kind)
    return [(one.name, types[one.name], one.default, one.metadata.get("limits", {})) for one in fields(kind)]


def _conformed(value: Any, kind: Any) -> Any:
    """Return a value as a field of this type holds it, or WRONG. True and false are not numbers."""
    origin, members = get_origin(kind) or kind, get_args(kind)
    if origin in (Union, UnionType):
        return next((found for one in members if (found := _conformed(value, one)) is not WRONG), WRONG)
    if origin is Literal:
        valid = any(type(value) is type(one) and value == one for one in members)
    elif origin in (int, float):
        number: Any = value if isinstance(value, Real) and not isinstance(value, bool) else math.nan
        try:
            valid = math.isfinite(number)
        except OverflowError:  # a whole number that no float holds
            valid = False
        if valid and origin is int:
            return int(number) if number % 1 == 0 else WRONG
    elif origin is str and isinstance(value, PurePath):
        return str(value)
    elif origin is Sequence:
        valid = isinstance(value, Sequence) and not isinstance(value, str | bytes)
        valid = valid and all(_conformed(one, members[0]) is not WRONG for one in value)
    else:
        valid = origin is Any or isinstance(value, origin)
    return value if valid else WRONG


def _words(kind: Any) -> str:
    """Return how a sentence calls the values of a type."""
    origin, members = get_origin(kind) or kind, get_args(kind)
    if origin in (Union, UnionType):
        return " or ".join(_words(one) for one in members if one is not type(None))
    if origin is Literal:
        return " or ".join(map(repr, members))
    words = WORDS_OF_TYPES.get(origin) or f"of the type {origin.__name__}"
    return f"{words}, in which each value is {_words(members[0])}" if origin is Sequence else words


# ---- images and collections


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
    """Images to add to a collection.

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


def content_id(data: bytes) -> str:
    """Return the id of an image that was given none: 32 hex digits of the SHA-256 of its bytes."""
    return hashlib.sha256(data).hexdigest()[:32]


@dataclass(frozen=True)
class FolderRequest(Request):
    """A folder whose images a collection is to hold.

    folder: read with its subfolders; an image's parent folder is its label. Or an archive, an address or a pattern,
        see `find_images`.
    model: source of the encoder; None: the collection's own, or the default for a new collection.
    prune: delete items of this folder whose file was removed. Items of a subfolder that is empty, a link, or unreadable
        are kept, since their files may exist; the report counts them as `kept`. A server keeps all without `source`,
        since another folder may have the same default source.
    tiling: embed tiles of the images, which only a store of this machine can; None: whole images.
    labels: a table of labels; see `list_images_of`.
    source: for a server: name of the folder in the collection; None: FOLDER-ID@HOST, where the ID is a hash of the
        folder's path and of the machine-id. That of an archive is its folder, and the name of the archive follows.
    shrink: for a server: longest side of images that are sent, in pixels; None: send the files as they are.
    """

    folder: str | Path
    model: str | None = None
    prune: bool = False
    thumbnails: bool = True
    tiling: Tiling | None = None
    labels: LabelTable | str | Path | None = None
    source: str | None = None
    shrink: int | None = option("", None, ge=LEAST_SIDE)

    @classmethod
    def of(cls, folder: FolderRequest | str | Path) -> FolderRequest:
        """Return a request as it is, or make one of a folder."""
        return folder if isinstance(folder, FolderRequest) else cls(folder)

    def validate(self) -> None:
        """Raise InvalidRequest if a value is outside of its limits."""
        super().validate()
        if self.tiling is None:
            return
        from nnclr_hub.images.tiles import Tiling

        if not isinstance(self.tiling, Tiling):
            raise InvalidRequest(f"tiling must be a Tiling, got {self.tiling!r:.80}.")
        if self.source is not None or self.shrink is not None:
            raise InvalidRequest("Tiles are read from files of this machine; leave out source and shrink.")


@dataclass(frozen=True)
class NewCollection(Request):
    """A collection to create; see `CollectionSpec`.

    model: source of its encoder; None: the default, or an unknown encoder if `dim` is given.
    dim: length of the vectors, for a collection without a model.
    """

    model: str | None = None
    dim: int | None = option("", None, ge=1, le=MAX_DIM)
    metric: Metric = "cosine"
    indexed: Sequence[str] = option("", ("label",), max_length=MAX_INDEXED)
    index: IndexName = "auto"
    precision: Precision = "f32"
    vectors: Compared = "auto"

    def validate(self) -> None:
        """Raise InvalidRequest or InvalidFilter for an invalid value."""
        super().validate()
        if self.model is not None and self.dim is not None:
            raise InvalidRequest("Give a model or dim, not both; a model determines the length of its vectors.")
        for key in self.indexed:
            check_key(key)
        self._with_options(CollectionSpec(1 if self.dim is None else self.dim))

    def spec(self, embedder: Callable[[str | None], Embedder]) -> CollectionSpec:
        """Return the specification; `embedder` returns the encoder of a source."""
        return self._with_options(
            CollectionSpec.of(embedder(self.model)) if self.dim is None else CollectionSpec(self.dim)
        )

    def as_json(self) -> dict[str, Any]:
        """Return the body of PUT /api/v1/collections/{name}."""
        body = super().as_json() | {"indexed": list(self.indexed)}
        return {name: value for name, value in body.items() if value is not None}

    def _with_options(self, spec: CollectionSpec) -> CollectionSpec:
        return replace(
            spec,
            metric=self.metric,
            indexed=tuple(self.indexed),
            index=self.index,
            precision=self.precision,
            vectors=self.vectors,
        )


# ---- files to import


@dataclass(frozen=True)
class ImportFormat:
    """A format of files that can be imported into a collection.

    media_type: media type of a request with such a file.
    suffixes: suffixes of file names.
    images: whether the file holds images, which must be embedded, or vectors.
    """

    name: str
    media_type: str
    suffixes: tuple[str, ...]
    images: bool = False


FORMATS = {
    one.name: one
    for one in (
        ImportFormat("ndjson", "application/x-ndjson", (".ndjson", ".jsonl")),
        ImportFormat("arrow", "application/vnd.apache.arrow.stream", (".arrow", ".arrows", ".feather")),
        ImportFormat("parquet", "application/vnd.apache.parquet", (".parquet",)),
        ImportFormat("zip", "application/zip", (".zip",), images=True),
        ImportFormat("tar", "application/x-tar", (".tar",), images=True),
    )
}


def format_of_file(name: str | Path) -> ImportFormat:
    """Return the format of a file by its suffix."""
    for one in FORMATS.values():
        if str(name).lower().endswith(one.suffixes):
            return one
    known = ", ".join(suffix for one in FORMATS.values() for suffix in one.suffixes)
    raise InvalidRequest(f"{name} has a suffix that cannot be imported; expected one of {known}.")
