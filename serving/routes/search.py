"""POST /api/v1/collections/{name}/search, as JSON or multipart, and /search/batch.

A search has one hand-off to a thread, in which it runs and its answer is encoded. Images are embedded before, and
awaited. A second thread comes before it for the first search by an image of a collection, whose model it loads, for a
box, which it cuts out, and for much base64, which it decodes.

The schemas are made from `SearchQuery`, which also checks them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any, cast

from anyio import to_thread
from fastapi import Request
from fastapi.responses import Response
from pydantic import BaseModel, ConfigDict, Field

from nnclr_hub.errors import FingerprintMismatch, InvalidRequest, NNCLRHubError, RequestTooLarge
from nnclr_hub.store.base import Match
from nnclr_hub.store.checks import MAX_EXAMPLES
from nnclr_hub.workbench import SearchQuery
from nnclr_hub.workbench import search_query as queries
from nnclr_hub.workbench.privacy import without_paths
from nnclr_hub.workbench.search_query import attempt, resolve_each, run_in_turn

from ..access import READ
from ..answers import PartsResponse, encoded, public_metadata
from ..engine import Engine
from ..problems import UNREADABLE
from ..request_bodies import check_count, decode_text, fetch_each, is_form, read_form, read_json
from ..telemetry import measured
from ..url_fetcher import Fetched
from .router import Parts, Router
from .schemas import (
    FIRST_WRONG,
    ItemError,
    Metadata,
    Strict,
    described,
    form_body,
    one_of,
    optional,
    schema_of,
)

MAX_QUERIES = 64
MAX_BATCH_EXAMPLES = 10_000
MAX_MODELS = 1000  # collections whose model is remembered
SMALL = 32 << 10  # characters of base64; decoding them takes as long as a hand-off to a thread


class Example(schema_of(queries.Example)):
    """Exactly one of id, image and vector. A box needs an image."""

    model_config = ConfigDict(json_schema_extra=one_of("id", "image", "vector"))


# a limit of `SearchQuery`, checked here too, because making many examples takes long
_EXAMPLES: Any = Annotated[list[Example], FIRST_WRONG, Field(max_length=MAX_EXAMPLES)]
_FIELDS = schema_of(
    SearchQuery,
    Example,
    positive=(optional(Annotated[_EXAMPLES, described(minItems=1)]), None),
    negative=_EXAMPLES,
)


class SearchRequest(_FIELDS):
    """Exactly one of id, image, vector and positive."""

    model_config = ConfigDict(json_schema_extra=one_of("id", "image", "vector", "positive"))


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
_ERRORS = "collection_not_found fingerprint_mismatch answer_too_large"


@router.on(
    *("POST", "/search", READ, f"{_ERRORS} item_not_found invalid_filter {UNREADABLE}"),
    response_model=SearchResponse,
    openapi_extra=form_body({"image": "one", "query": "JSON with the other fields"}, ["image"], SearchRequest),
)
async def search(name: str, request: Request) -> Response:
    """Find the nearest items to an id, an image, a box on an image, a vector or several examples; best first."""
    if is_form(request):
        form = await read_form(request, files=("image",), texts=("query",))
        [image] = form.images("image", 1)
        query = await form.query(SearchRequest)
        if query.image is not None:
            raise InvalidRequest("The image is given twice: as a file, and in the query.")
        query.image = image.data  # bytes, which `SearchQuery.from_json` takes, too
    else:
        query = await read_json(request, SearchRequest)
    [answer] = await _search_each(request, name, [query])
    if isinstance(answer, NNCLRHubError):
        raise answer
    return PartsResponse(answer)


@router.on("POST", "/search/batch", READ, _ERRORS, response_model=SearchBatchResponse)
async def search_batch(name: str, request: Request, body: SearchBatchRequest) -> Response:
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


_Found = list[list[bytes] | NNCLRHubError]  # for each query, the matches as parts of JSON, or its error


async def _search_each(request: Request, name: str, queries: Sequence[SearchRequest]) -> _Found:
    """Return the matches of each query, or its error.

    Raises:
        CollectionNotFound, FingerprintMismatch, RequestTooLarge, Overloaded, NotReady, DeadlineExceeded.
    """
    here: Parts = request.app.state  # a dependency takes as long as parsing a small request
    examples = [one for query in queries for one in (*(query.positive or (query,)), *query.negative)]
    images = [one for one in examples if one.image is not None]
    texts = [one.image for one in images if isinstance(one.image, str)]
    check_count(len(texts), here.settings.max_images)  # an uploaded file has been counted
    search = _Search(here, name, queries, await fetch_each(texts, here.fetcher))
    has_boxes = any(one.box is not None for one in images)

    async def embed_and_run(model: Engine) -> _Found | None:
        vectors = await model.embed_each_async(search.all_images)
        return await to_thread.run_sync(search.run, vectors, model, limiter=here.search_threads)

    # The model that the collection was bound to at its last search embeds the images. `run` finds out whether it still
    # is, so no thread has to look before.
    model, small = here.search_models.get(name), sum(map(len, texts)) <= SMALL
    if images and small and not has_boxes and model:
        search.parse()
        if (found := await embed_and_run(model)) is not None:
            return found

    def prepare() -> Engine | _Found:
        search.parse()
        return search.model() if search.all_images else cast(_Found, search.run((), None))

    # to cut out a box, the image is decoded here: up to 120 MB each, so few at once
    threads = here.box_threads if has_boxes else here.search_threads
    prepared = await to_thread.run_sync(prepare, limiter=threads)
    if not isinstance(prepared, Engine):
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

    all_images: images of all queries.
    """

    def __init__(self, here: Parts, name: str, requests: Sequence[SearchRequest], fetched: Fetched) -> None:
        self._here, self._name, self._requests = here, name, requests
        self._decode = partial(decode_text, what="image", fetched=fetched)
        self._encoder = here.answers.open(len(requests))
        self.all_images: list[Any] = []

    def parse(self) -> None:
        """Check the queries, decode base64, and cut out boxes."""

        def body(query: SearchRequest) -> dict[str, Any]:
            positive = None if query.positive is None else list(map(dict, query.positive))
            return {**dict(query), "positive": positive, "negative": list(map(dict, query.negative))}

        self._queries = [attempt(partial(SearchQuery.from_json, body(one), self._decode)) for one in self._requests]
        self._images = [one if isinstance(one, NNCLRHubError) else attempt(one.images) for one in self._queries]
        self.all_images = [image for own in self._images if not isinstance(own, NNCLRHubError) for image in own]

    def model(self) -> Engine:
        """Return the model that the collection is bound to. Blocks while it loads."""
        bench = self._here.workbench
        return cast(Engine, bench.embedder_of(bench.collection(self._name)))

    def run(self, vectors: Sequence[Any], model: Engine | None) -> _Found | None:
        """Return the matches of each query, or its error; None if the collection is bound to another model.

        Args:
            vectors: vectors of all images, made by this model.
        """
        collection = self._here.workbench.store.get(self._name)
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
