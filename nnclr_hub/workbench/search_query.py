"""SearchQuery: one search, as every entry point takes it.

    query = SearchQuery.of(image="cat.jpg", box=(40, 60, 200, 220), k=5)
    query = SearchQuery([Example(id="a"), Example(image="dog.jpg")], negative=[Example(id="b")], offset=20)
    bench.search("photos", query)

The command line, `Workbench`, `Client`, REST and the apps run a search in the same steps:

    images = query.images()                     # what must be embedded, boxes cut out
    vectors = embedder.embed_each(images)       # in this thread, or awaited
    matches = query.resolve(vectors).run(collection)

Many searches of one collection have an answer each, which is its matches or its error:

    images = [attempt(query.images) for query in queries]
    resolved = resolve_each(queries, images, vectors)           # the vectors of all images together
    for position, answer in run_in_turn(collection, resolved):  # as soon as each is known, in any order
        ...

Its JSON form is the body of POST /api/v1/collections/{name}/search. This module imports neither torch nor a web
framework, so the client and a command line with a mistake in it do not wait for them.
"""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

import numpy as np

from nnclr_hub.errors import ImageError, InvalidRequest, ItemNotFound, NNCLRHubError
from nnclr_hub.store import checks
from nnclr_hub.store.base import Collection, Match, SearchOptions, Where
from nnclr_hub.store.cancellation import check_cancelled
from nnclr_hub.store.queries import best_per_group, search_like
from nnclr_hub.store.where import parse
from nnclr_hub.workbench.payload import decode_base64, decode_vector, encode_image, encode_vector
from nnclr_hub.workbench.requests import Request, option

if TYPE_CHECKING:
    from nnclr_hub.encoder.embedder import ImageLike
    from nnclr_hub.images.channels import AnyImage
    from nnclr_hub.images.reading import ImageReading

T = TypeVar("T")
Box = tuple[float, float, float, float]
Answer = list[Match] | NNCLRHubError
# errors that concern one query and leave the others alone
QUERY_ERRORS = (InvalidRequest, ImageError, ItemNotFound)
TOGETHER = 1000  # matches of the queries that run as one batch: all of them are in memory at the same time
_SHORT_FORM = ("id", "image", "vector", "box")


@dataclass(frozen=True, eq=False)
class Example:
    """An image to be near to, or away from: exactly one of id, vector and image.

    id: id of an item of the collection.
    vector: (D,) float32; lists of numbers are converted.
    image: a path, the bytes of a file, a PIL image, or (H, W, 3) uint8.
    box: x0, y0, x1, y1 in pixels of the upright image; only with an image.
    """

    id: str | None = None
    vector: np.ndarray | None = None
    image: ImageLike | None = None
    box: Box | None = None

    def __post_init__(self) -> None:
        if sum(value is not None for value in (self.id, self.vector, self.image)) != 1:
            raise InvalidRequest("An example needs exactly one of id, image and vector.")
        if self.id is not None:
            checks.check_name(self.id, "Item id")
        row = self.vector
        if row is not None and not (isinstance(row, np.ndarray) and row.dtype == np.float32 and row.ndim == 1):
            object.__setattr__(self, "vector", decode_vector(row))
        if self.box is not None:
            if self.image is None:
                raise InvalidRequest("A box belongs to an image; give the image that it is on.")
            object.__setattr__(self, "box", _check_box(self.box))

    @classmethod
    def of(cls, value: Example | str | Path | bytes | np.ndarray) -> Example:
        """Return an example as it is, or make one from an item's id, a Path or bytes of an image, or a vector."""
        if isinstance(value, Example):
            return value
        if isinstance(value, Path | bytes):
            return cls(image=value)
        return cls(id=value) if isinstance(value, str) else cls(vector=value)

    def embeddable(self, reading: ImageReading | None = None) -> ImageLike:
        """Return the image, or the part of it in the box, read as an encoder does.

        Raises:
            ImageError: if there is a box and the image cannot be read.
            InvalidRequest: if the box is not inside the image.
        """
        assert self.image is not None
        if self.box is None:
            return self.image  # decoded by the embedder, in its own threads
        from nnclr_hub.encoder.preprocessing import as_source
        from nnclr_hub.images.decode import decode_any
        from nnclr_hub.images.reading import PLAIN

        return crop_to_box(decode_any(as_source(self.image), reading or PLAIN), self.box)

    def to_json(self, encode: Callable[[ImageLike], str | None] = encode_image) -> dict[str, Any]:
        """Return the JSON form; see `SearchQuery.to_json`."""
        values = {
            "id": self.id,
            "vector": None if self.vector is None else encode_vector(self.vector),
            "image": None if self.image is None else encode(self.image),
            "box": None if self.box is None else list(self.box),
        }
        return {name: value for name, value in values.items() if value is not None}

    @classmethod
    def from_json(cls, body: Mapping[str, Any], decode: Callable[[str], bytes] | None = None) -> Self:
        """Read the JSON form; see `SearchQuery.from_json`."""
        unknown = sorted(body.keys() - set(_SHORT_FORM))
        if unknown:
            raise InvalidRequest(f"An example has no field {unknown[0]!r}; it takes {', '.join(_SHORT_FORM)}.")
        image = body.get("image")
        if isinstance(image, str):
            image = decode(image) if decode is not None else decode_base64(image, "image")
        return cls(id=body.get("id"), vector=body.get("vector"), image=image, box=body.get("box"))


@dataclass(frozen=True, eq=False)
class SearchQuery(Request):
    """One search: examples, filters and limits. Making an invalid query raises InvalidRequest.

    positive: examples to be near to; at least one. Plain ids, vectors, and images as Path or bytes are accepted too.
    negative: examples to be away from; at most 1000 together with the positive ones.
    k: how many items to return, 1 to 1000.
    offset: how many of the best to skip; k + offset is at most 1000.
    where: filter on metadata, see `store.where`.
    exact: compare with every item instead of using the approximate index.
    score_threshold: leave out matches that score lower.
    with_vector: matches carry their vectors.
    effort: efSearch or nprobe of an approximate index, 1 to 10,000; None: the tuned value.
    with_percentile: matches carry the share of random pairs of the collection that score lower.
    group_by: metadata key; return the best item of each of its values. Only with a single example.

    Items that are examples by id are never among the matches; with `group_by`, neither is their group's best item.
    """

    positive: Sequence[Example]
    negative: Sequence[Example] = ()
    k: int = option("", 10, ge=1, le=checks.MAX_SEARCH_K)
    offset: int = option("", 0, ge=0, le=checks.MAX_SEARCH_K - 1)
    where: Where | None = None
    exact: bool = False
    score_threshold: float | None = None
    with_vector: bool = False
    effort: int | None = option("", None, ge=1, le=checks.MAX_SEARCH_EFFORT)
    with_percentile: bool = False
    group_by: str | None = None

    def __post_init__(self) -> None:
        for side in ("positive", "negative"):
            value = getattr(self, side)
            if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
                raise InvalidRequest(f"{side} must be a list of examples, got {value!r:.80}.")
            object.__setattr__(self, side, tuple(map(Example.of, value)))
        self.validate()

    @classmethod
    def of(
        cls,
        *,
        id: str | None = None,
        vector: np.ndarray | Sequence[float] | None = None,
        image: ImageLike | None = None,
        box: Box | None = None,
        positive: Sequence[Example] = (),
        **options: Any,
    ) -> Self:
        """Make a query from one example, given by its fields, or from `positive`.

        Args:
            options: the other fields of a query.

        Raises:
            InvalidRequest: unless exactly one of id, vector, image and positive is given.
        """
        single: dict[str, Any] = {"id": id, "vector": vector, "image": image, "box": box}
        single = {name: value for name, value in single.items() if value is not None}
        _check_one_form(single, positive or None)
        return cls(positive=positive or [Example(**single)], **options)

    def validate(self) -> None:
        """Check everything that can be checked without the collection.

        Raises:
            InvalidRequest, InvalidFilter: what is wrong.
        """
        if self.where is not None:
            parse(self.where)
        super().validate()
        if not self.positive:
            raise InvalidRequest("A search needs at least one positive example.")
        _check_count(len(self.examples))
        if self.k + self.offset > checks.MAX_SEARCH_K:
            raise InvalidRequest(
                f"k + offset must be at most {checks.MAX_SEARCH_K}, got {self.k} + {self.offset}; "
                "narrow the search with where."
            )
        if self.group_by == "":
            raise InvalidRequest("group_by must be a metadata key, got ''.")
        if self.group_by is not None and len(self.examples) > 1:
            raise InvalidRequest("group_by takes a single example; remove group_by or the other examples.")

    @property
    def examples(self) -> tuple[Example, ...]:
        """The positive examples, then the negative ones."""
        return (*self.positive, *self.negative)

    # ---- from images to matches

    def images(self, reading: ImageReading | None = None) -> list[ImageLike]:
        """Return the images that must be embedded, in the order of `examples`; see `Example.embeddable`."""
        return [example.embeddable(reading) for example in self.examples if example.image is not None]

    def resolve(self, vectors: Iterable[np.ndarray | ImageError]) -> Self:
        """Return the same query with a vector in place of each image.

        Args:
            vectors: (D,) float32 for each of `images()`, or why the image cannot be read; the first error is raised.
        """
        remaining = iter(vectors)

        def resolved(example: Example) -> Example:
            if example.image is None:
                return example
            vector = next(remaining)
            if isinstance(vector, ImageError):
                raise vector
            return Example(vector=vector)

        found = copy.copy(self)  # everything else has been checked
        for side in ("positive", "negative"):
            object.__setattr__(found, side, tuple(map(resolved, getattr(self, side))))
        return found

    @property
    def plain_vector(self) -> np.ndarray | None:
        """The vector of a query that is a single vector without groups, which the store answers directly."""
        if len(self.examples) > 1 or self.group_by is not None:
            return None
        return self.positive[0].vector

    def run(self, collection: Collection) -> list[Match]:
        """Return the matches of a query without images, best first.

        Raises:
            InvalidRequest: if an image has not been resolved, or a vector does not fit the collection.
            ItemNotFound: if an example's id is not in the collection.
        """
        wanted = self.k + self.offset
        if (vector := self.plain_vector) is not None:
            [found] = collection.search_each([vector], wanted, self.options())
        elif self.group_by is not None:
            found = self._best_per_group(collection, self.group_by, wanted)
        else:
            positive, negative = map(_ids_and_vectors, (self.positive, self.negative))
            found = search_like(collection, positive, negative, wanted, self.options())
        return self.shown(found)

    def shown(self, found: list[Match]) -> list[Match]:
        """Return what a query shows of the best k + offset matches."""
        return found[self.offset :]

    def _best_per_group(self, collection: Collection, key: str, wanted: int) -> list[Match]:
        [example] = _ids_and_vectors(self.positive)
        if not isinstance(example, str):
            return best_per_group(collection, example, key, wanted, self.options())
        [item] = collection.get([example]) or [None]
        if item is None:
            raise ItemNotFound(f"Collection {collection.name!r} has no item {example!r}; use ids of search results.")
        # the item itself is the best of its group, so one more group is needed
        matches = best_per_group(collection, item.vector, key, wanted + 1, self.options())
        return [match for match in matches if match.id != example][:wanted]

    def options(self) -> SearchOptions:
        """Return the arguments of `Collection.search` other than the vector and k."""
        return SearchOptions(**{one.name: getattr(self, one.name) for one in fields(SearchOptions)})

    # ---- JSON

    def to_json(self, encode: Callable[[ImageLike], str | None] = encode_image) -> dict[str, Any]:
        """Return the body of a REST search; fields with their default value are left out, except k.

        Args:
            encode: makes text of an image. Where it returns None, the image is left out: it is sent as a file.

        Raises:
            ImageError: if an image file cannot be opened.
        """
        positive, negative = ([one.to_json(encode) for one in side] for side in (self.positive, self.negative))
        body: dict[str, Any] = positive[0] if len(positive) == 1 else {"positive": positive}
        if negative:
            body["negative"] = negative
        for field in fields(self)[2:]:
            value = getattr(self, field.name)
            if field.name == "k" or value != field.default:
                body[field.name] = dict(value) if field.name == "where" else value
        return body

    @classmethod
    def from_json(cls, body: Mapping[str, Any], decode: Callable[[str], bytes] | None = None) -> Self:
        """Read the body of a REST search.

        Args:
            body: the first example by its fields (id, image, vector, box), or `positive`; and the options. Missing
                fields and null mean the default. An image may be bytes already.
            decode: makes bytes of the text of an image; None: base64 or a data URI.

        Raises:
            InvalidRequest: if a field is unknown or its value is not valid.
        """
        unknown = sorted(body.keys() - {field.name for field in fields(cls)} - set(_SHORT_FORM))
        if unknown:
            raise InvalidRequest(f"A search has no field {unknown[0]!r}; see the API documentation for its fields.")
        options = {name: value for name, value in body.items() if value is not None}
        single = {name: options.pop(name) for name in _SHORT_FORM if name in options}
        _check_one_form(single, options.get("positive"))
        sides = {"positive": options.pop("positive", [single]), "negative": options.pop("negative", ())}
        for side, members in sides.items():
            if not isinstance(members, list | tuple) or not all(isinstance(one, Mapping) for one in members):
                raise InvalidRequest(f"{side} must be a list of examples, got {members!r:.80}.")
        _check_count(sum(map(len, sides.values())))  # before they are made, which takes long
        examples = {side: [Example.from_json(one, decode) for one in members] for side, members in sides.items()}
        return cls(**examples, **options)


def _check_count(examples: int) -> None:
    if examples > checks.MAX_EXAMPLES:
        raise InvalidRequest(f"A search takes at most {checks.MAX_EXAMPLES} examples, got {examples}; give fewer.")


def crop_to_box(image: AnyImage, box: Box) -> AnyImage:
    """Return the part of an upright image inside a box, to whole pixels.

    Raises:
        InvalidRequest: if part of the box is outside the image, as for the box of an attention map.
    """
    from nnclr_hub.encoder.attention.query import Box as BoxQuery
    from nnclr_hub.encoder.attention.query import require_inside

    require_inside(BoxQuery(*box), image.size)
    x0, y0, x1, y1 = box
    return image.crop((math.floor(x0), math.floor(y0), math.ceil(x1), math.ceil(y1)))


def _check_one_form(single: Mapping[str, Any], positive: Sequence[Any] | None) -> None:
    if positive is not None and single.keys() == {"box"}:
        raise InvalidRequest("A box belongs to an image; put it into the example that has the image.")
    if (positive is None) == (not single):
        raise InvalidRequest("A search takes exactly one of id, image, vector and positive.")


def _ids_and_vectors(examples: Sequence[Example]) -> list[str | np.ndarray]:
    if any(example.image is not None for example in examples):
        raise InvalidRequest("The query has images; embed images() and call resolve(vectors) before run().")
    return [example.id if example.id is not None else np.asarray(example.vector) for example in examples]


def _check_box(box: Any) -> Box:
    try:
        x0, y0, x1, y1 = map(float, box)
    except (TypeError, ValueError) as error:
        raise InvalidRequest(f"A box must be four numbers x0, y0, x1, y1, got {box!r:.80}.") from error
    if not all(map(math.isfinite, (x0, y0, x1, y1))):
        raise InvalidRequest(f"A box must be four finite numbers, got {box!r:.80}.")
    if not (x0 < x1 and y0 < y1):
        raise InvalidRequest(f"The box {box!r:.80} has no area; give x0, y0, x1, y1 with x0 < x1 and y0 < y1.")
    return x0, y0, x1, y1


# ---- many searches


def attempt(work: Callable[[], T]) -> T | NNCLRHubError:
    """Return what `work` returns, or its error if it concerns one query only."""
    try:
        return work()
    except QUERY_ERRORS as error:
        return error


def resolve_each(
    queries: Sequence[SearchQuery | NNCLRHubError],
    images: Sequence[Sequence[Any] | NNCLRHubError],
    vectors: Iterable[np.ndarray | ImageError],
) -> list[SearchQuery | NNCLRHubError]:
    """Return the queries with vectors in place of images, or the error of each.

    Args:
        images: the `images()` of each query, or the error that they raised.
        vectors: one for each image of all queries, in order.
    """
    remaining = iter(vectors)
    resolved: list[SearchQuery | NNCLRHubError] = []
    for query, own in zip(queries, images, strict=True):
        if isinstance(query, NNCLRHubError) or isinstance(own, NNCLRHubError):
            resolved.append(query if isinstance(query, NNCLRHubError) else own)  # type: ignore[arg-type]
        else:
            rows = [next(remaining) for _ in own]
            resolved.append(attempt(lambda query=query, rows=rows: query.resolve(rows)))
    return resolved


def run_each(collection: Collection, queries: Sequence[SearchQuery | NNCLRHubError]) -> list[Answer]:
    """Run queries without images; return the answer of each."""
    found = dict(run_in_turn(collection, queries))
    return [found[i] for i in range(len(queries))]


def run_in_turn(collection: Collection, queries: Sequence[SearchQuery | NNCLRHubError]) -> Iterator[tuple[int, Answer]]:
    """Run queries without images; yield the position and the answer of each, in any order.

    Queries that are one vector each and share their options run in batches. Between two batches the search can be
    cancelled, see `store.cancellation`.
    """
    groups: dict[str, list[tuple[int, SearchQuery, np.ndarray]]] = {}
    for i, query in enumerate(queries if len(queries) > 1 else ()):
        vector = None if isinstance(query, NNCLRHubError) else query.plain_vector
        if isinstance(query, SearchQuery) and vector is not None and vector.shape == (collection.spec.dim,):
            options = json.dumps([query.k, query.offset, vars(query.options())], sort_keys=True, default=repr)
            groups.setdefault(options, []).append((i, query, vector))
    answered: set[int] = set()
    for group in groups.values():
        first = group[0][1]
        size = max(1, TOGETHER // (first.k + first.offset))
        for some in (group[start : start + size] for start in range(0, len(group), size)):
            check_cancelled()
            if len(some) == 1:
                continue
            vectors = np.stack([vector for _, _, vector in some])
            search = (collection.search_each, vectors, first.k + first.offset, first.options())
            together = attempt(lambda search=search: search[0](*search[1:]))
            if not isinstance(together, NNCLRHubError):  # otherwise each runs alone, to find the one that fails
                for (i, query, _), matches in zip(some, together, strict=True):
                    answered.add(i)
                    yield i, query.shown(matches)
    for i, query in enumerate(queries):
        if i not in answered:
            check_cancelled()
            yield i, query if isinstance(query, NNCLRHubError) else attempt(lambda query=query: query.run(collection))
