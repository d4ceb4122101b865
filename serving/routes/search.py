"""POST /api/v1/collections/{name}/search, as JSON or multipart, and /search/batch.

A search has one hand-off to a thread, in which it runs and its answer is encoded. Images are embedded before, and
awaited. A second thread comes before it for the first search by an image of a collection, whose model it loads, for a
box, which it cuts out, and for much base64, which it decodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any, cast

from fastapi import Request
from fastapi.responses import Response
from pydantic import BaseModel, ConfigDict, Field

from nnclr_hub.errors import (
    AnswerTooLarge,
    CollectionNotFound,
    FingerprintMismatch,
    InvalidFilter,
    InvalidRequest,
    ItemNotFound,
    NNCLRHubError,
    RequestTooLarge,
)
from nnclr_hub.store.base import Match
from nnclr_hub.store.checks import MAX_EXAMPLES, MAX_SEARCH_EFFORT, MAX_SEARCH_K
from nnclr_hub.workbench import SearchQuery
from nnclr_hub.workbench.privacy import public_metadata, without_paths
from nnclr_hub.workbench.search_query import attempt, resolve_each, run_in_turn

from ..answers import PartsResponse, encoded
from ..keys import READ
from ..limits import in_thread_while_connected, while_connected
from ..models import Model
from ..problems import UNREADABLE
from ..request_bodies import check_count, decode_text, fetch_each, is_form, json_of, read_form, read_json
from ..telemetry import measured
from ..url_fetcher import Fetched
from .bodies import (
    FIRST_WRONG,
    Box,
    ImageText,
    Integer,
    ItemError,
    Metadata,
    MetadataKey,
    Name,
    Strict,
    Vector,
    Where,
    form_body,
    one_of,
)
from .collections import TYPE
from .dependencies import Parts, Router, parts_of

MAX_QUERIES = 64
MAX_BATCH_EXAMPLES = 10_000
MAX_MODELS = 1000  # collections whose model is remembered
SMALL = 32 << 10  # characters of base64; decoding them takes as long as a hand-off to a thread


def _range(low: int, high: int) -> dict[str, Any]:
    return {"minimum": low, "maximum": high}


class Example(Strict):
    """Exactly one of id, image and vector. A box needs an image."""

    model_config = ConfigDict(json_schema_extra=one_of("id", "image", "vector"))

    id: Name | None = Field(None, description="id of an item of the collection")
    image: ImageText | None = None
    vector: Vector | None = None
    box: Box | None = None


class SearchRequest(Example):
    """Exactly one of id, image, vector and positive."""

    model_config = ConfigDict(json_schema_extra=one_of("id", "image", "vector", "positive"))

    positive: (
        Annotated[list[Example], FIRST_WRONG, Field(max_length=MAX_EXAMPLES, json_schema_extra={"minItems": 1})] | None
    ) = Field(None, description="examples to be near; at most 1000 together with the negative ones")
    negative: Annotated[list[Example], FIRST_WRONG] = Field(
        [], max_length=MAX_EXAMPLES, description="examples to be far from"
    )
    group_by: MetadataKey | None = Field(
        None, description="metadata key; return the nearest item of each of its values"
    )
    # these limits are only described here: `SearchQuery` checks them, so that a batch answers the other queries
    k: Integer = Field(10, description="number of matches", json_schema_extra=_range(1, MAX_SEARCH_K))
    offset: Integer = Field(
        0,
        description="number of the best matches to skip; k + offset is at most 1000",
        json_schema_extra=_range(0, MAX_SEARCH_K - 1),
    )
    where: Where | None = None
    exact: bool = Field(False, description="compare with every item instead of using the index")
    score_threshold: float | None = Field(None, description="lowest score of a match; leave out the others")
    with_vector: bool = Field(False, description="return the vectors of the matches")
    effort: Annotated[Integer, Field(json_schema_extra=_range(1, MAX_SEARCH_EFFORT))] | None = Field(
        None, description="efSearch or nprobe of an approximate index; null: the tuned value"
    )
    with_percentile: bool = Field(
        False, description="return for each match the share of random pairs of the collection that score lower"
    )

    @property
    def images(self) -> list[Example]:
        """The examples that have an image."""
        examples = [*([self] if self.positive is None else self.positive), *self.negative]
        return [example for example in examples if example.image is not None]

    def body(self) -> dict[str, Any]:
        """Return the fields for `SearchQuery.from_json`."""
        positive = None if self.positive is None else list(map(dict, self.positive))
        return {**dict(self), "positive": positive, "negative": list(map(dict, self.negative))}


class SearchBatchRequest(Strict):
    queries: Annotated[list[SearchRequest], FIRST_WRONG] = Field(
        min_length=1, json_schema_extra={"maxItems": MAX_QUERIES}
    )


class MatchResponse(BaseModel):
    id: str
    score: float
    metadata: Metadata
    vector: list[float] | None = None
    percentile: float | None = Field(
        None, description="0 to 1; missing unless requested, and for a collection of fewer than 10 items"
    )


class SearchResponse(BaseModel):
    matches: list[MatchResponse]


class SearchBatchEntry(BaseModel):
    """Matches or an error."""

    matches: list[MatchResponse] | None = None
    error: ItemError | None = None


class SearchBatchResponse(BaseModel):
    results: list[SearchBatchEntry]


router = Router(prefix="/api/v1/collections/{name}", tags=["search"])
_ERRORS = (TYPE, CollectionNotFound, FingerprintMismatch, AnswerTooLarge)
_FORM = form_body({"image": "one", "query": "JSON with the other fields"}, required=["image"], json=SearchRequest)
_ONE_ERRORS = (*_ERRORS, ItemNotFound, InvalidFilter, *UNREADABLE)


@router.on("POST", "/search", READ, *_ONE_ERRORS, response_model=SearchResponse, openapi_extra=_FORM)
async def search(name: str, request: Request) -> Response:
    """Find the nearest items to an id, an image, a box on an image, a vector or several examples; best first."""
    [answer] = await _search_each(request, name, [await _read(request)])
    if isinstance(answer, NNCLRHubError):
        raise answer
    return PartsResponse(answer)


@router.on("POST", "/search/batch", READ, *_ERRORS, response_model=SearchBatchResponse)
async def search_batch(
    name: str, request: Request, body: Annotated[SearchBatchRequest, json_of(SearchBatchRequest)]
) -> Response:
    """Run up to 64 searches with up to 10,000 examples; the response has matches or an error for each."""
    if len(body.queries) > MAX_QUERIES:
        raise RequestTooLarge(f"queries must have at most {MAX_QUERIES} entries, got {len(body.queries)}.")
    examples = sum(len(query.positive or (query,)) + len(query.negative) for query in body.queries)
    if examples > MAX_BATCH_EXAMPLES:
        raise RequestTooLarge(f"A batch takes at most {MAX_BATCH_EXAMPLES:,} examples, got {examples:,}; split it.")
    parts: list[bytes] = []
    for answer in await _search_each(request, name, body.queries):
        parts.append(b"," if parts else b'{"results":[')
        if isinstance(answer, NNCLRHubError):
            parts.append(encoded({"error": {"code": answer.code, "detail": without_paths(str(answer))}}))
        else:
            parts += answer
    return PartsResponse([*parts, b"]}"])


async def _read(request: Request) -> SearchRequest:
    """Read the query; in a multipart request the image is a file part."""
    if not is_form(request):
        return await read_json(request, SearchRequest)
    form = await read_form(request, files=("image",), texts=("query",))
    [image] = form.images("image", 1)
    query = await form.query(SearchRequest)
    if query.image is not None:
        raise InvalidRequest("The image is given twice: as a file, and in the query.")
    query.image = cast(str, image.data)  # bytes, which `SearchQuery.from_json` takes, too
    return query


_Found = list[list[bytes] | NNCLRHubError]  # for each query, the matches as parts of JSON, or its error


async def _search_each(request: Request, name: str, queries: Sequence[SearchRequest]) -> _Found:
    """Return the matches of each query, or its error.

    Raises:
        CollectionNotFound, FingerprintMismatch, RequestTooLarge, Overloaded, NotReady, DeadlineExceeded.
        ClientDisconnect: the client has disconnected.
    """
    here = parts_of(request)
    images = [example for query in queries for example in query.images]
    check_count(len(images), here.settings.max_images)
    fetched = await fetch_each((one.image for one in images if isinstance(one.image, str)), here.fetcher)
    search = _Search(here, name, queries, fetched)
    has_boxes = any(one.box is not None for one in images)
    small = sum(len(one.image) for one in images if isinstance(one.image, str)) <= SMALL

    async def embed_and_run(model: Model) -> _Found | None:
        vectors = await while_connected(request, model.embed_each_async(search.all_images))
        return await in_thread_while_connected(request, partial(search.run, vectors, model), here.search_threads)

    # The model that the collection was bound to at its last search embeds the images. `run` finds out whether it still
    # is, so no thread has to look before.
    model = here.search_models.get(name)
    if images and small and not has_boxes and model and here.engines.loaded(model.source) is model:
        search.parse()
        if (found := await embed_and_run(model)) is not None:
            return found

    def prepare() -> Model | _Found:
        search.parse()
        model = search.model() if search.all_images else None
        return cast(_Found, search.run((), None)) if model is None else model

    # to cut out a box, the image is decoded here: up to 120 MB each, so few at once
    threads = here.box_threads if has_boxes else here.search_threads
    prepared = await in_thread_while_connected(request, prepare, threads)
    if not isinstance(prepared, Model):
        return prepared
    if len(here.search_models) >= MAX_MODELS:
        here.search_models.clear()
    here.search_models[name] = prepared
    found = await embed_and_run(prepared)
    if found is None:
        raise FingerprintMismatch(f"Collection {name!r} was replaced during the search; repeat the request.")
    return found


class _Search:
    """The queries of one request on their way from JSON to matches.

    all_images: of all queries.
    """

    def __init__(self, here: Parts, name: str, requests: Sequence[SearchRequest], fetched: Fetched) -> None:
        self._here, self._name, self._requests = here, name, requests
        self._decode = partial(decode_text, what="image", fetched=fetched)
        self._encoder = here.answers.open(len(requests))
        self.all_images: list[Any] = []

    def parse(self) -> None:
        """Check the queries, decode base64, and cut out boxes."""
        self._queries = [attempt(partial(SearchQuery.from_json, one.body(), self._decode)) for one in self._requests]
        self._images = [one if isinstance(one, NNCLRHubError) else attempt(one.images) for one in self._queries]
        self.all_images = [image for own in self._images if not isinstance(own, NNCLRHubError) for image in own]

    def model(self) -> Model:
        """Return the model that the collection is bound to. Blocks while it loads."""
        bench = self._here.workbench
        return cast(Model, bench.embedder_of(bench.collection(self._name)))

    def run(self, vectors: Sequence[Any], model: Model | None) -> _Found | None:
        """Return the matches of each query, or its error; None if the collection is bound to another model.

        Args:
            vectors: of all images, made by this model.
        """
        collection = self._here.workbench.collection(self._name)
        if model is not None and model.fingerprint != collection.spec.fingerprint and self.model() is not model:
            return None
        found: dict[int, list[bytes] | NNCLRHubError] = {}
        with measured("search"):
            for i, answer in run_in_turn(collection, resolve_each(self._queries, self._images, vectors)):
                if isinstance(answer, NNCLRHubError):
                    found[i] = answer
                else:
                    found[i] = [b'{"matches":', *self._encoder.list(map(_match, answer)), b"}"]
        return [found[i] for i in range(len(self._queries))]


def _match(match: Match) -> dict[str, Any]:
    metadata = public_metadata(match.metadata)
    answer = {"id": match.id, "score": match.score, "metadata": metadata, "vector": match.vector}
    return answer if match.percentile is None else {**answer, "percentile": match.percentile}
