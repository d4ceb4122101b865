"""Readiness, models, embeddings and attention maps."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import numpy as np

from nnclr_hub.client.answers import error_of, failures, make_error
from nnclr_hub.client.images import as_images, bounded
from nnclr_hub.client.steps import Answer, Call, File, Pause, Steps, for_each, in_thread, perform, to_json
from nnclr_hub.errors import (
    ImageError,
    ImageTooLarge,
    InvalidRequest,
    NNCLRHubError,
    RequestTooLarge,
    ServerUnreachable,
)
from nnclr_hub.workbench.payload import decode_vector, image_file

if TYPE_CHECKING:
    from nnclr_hub.client.images import ImageLike
    from nnclr_hub.encoder.attention import AttentionMap, Query

AT_ONCE = 2  # requests per call: the server decodes one while it embeds the other
Result = np.ndarray | ImageError


@dataclass(frozen=True)
class ServedModel:
    """A model of a server.

    name: its name in requests.
    embed_dim: D; 0 if unknown, as in a list of models that are not loaded.
    fingerprint: hash of weights and preprocessing; "" if unknown.
    """

    name: str
    embed_dim: int = 0
    fingerprint: str = ""


def ready(*, wait: float = 0.0) -> Steps[bool]:
    """Return whether the server is up, its model loaded and its collections open.

    Args:
        wait: seconds to wait for that.

    Raises:
        ServerUnreachable: if nothing answers, even at the end of `wait`.
    """
    end = time.monotonic() + wait
    call = Call("GET", "/readyz", _is_ready, takes=lambda answer: answer.status in (200, 503), once=True)
    while True:
        try:
            yes = yield from perform(call)
        except ServerUnreachable:
            if time.monotonic() >= end:
                raise
            yes = False
        if yes or time.monotonic() >= end:
            return yes
        yield Pause(0.2)


def list_models() -> Steps[list[ServedModel]]:
    """Return the models that requests may name, the default first."""
    return perform(Call("GET", "/v1/models", lambda answer: [_model(one) for one in answer.json()["data"]]))


def served_model(name: str) -> Steps[ServedModel]:
    """Return one model; the server loads it if necessary.

    Raises:
        UnknownModel: if the server has no model of that name.
    """
    return perform(Call("GET", f"/v1/models/{quote(name)}", lambda answer: _model(answer.json())))


def embed_each(images: Iterable[ImageLike], *, model: str | None = None) -> Steps[list[Result]]:
    """Return one entry per image: its (D,) float32 unit vector, or its ImageError; any number of images.

    Args:
        images: paths, files' bytes, PIL images or (H, W, 3) uint8.
        model: a name of `list_models`; None: the server's default.
    """
    sources = as_images(images)
    results: list[Result | None] = []

    def files() -> Iterator[tuple[int, tuple[str, bytes]]]:
        for i, image in enumerate(sources):
            results.append(None)
            try:
                yield i, image_file(image)
            except ImageError as error:
                results[i] = error

    def send(batch: list[tuple[int, tuple[str, bytes]]]) -> Steps[None]:
        try:
            answers = yield from perform(_embedding([file for _, file in batch], model))
        except RequestTooLarge as error:
            if len(batch) == 1:
                results[batch[0][0]] = ImageTooLarge(str(error))
                return
            yield from send(batch[: len(batch) // 2])
            yield from send(batch[len(batch) // 2 :])
            return
        for (i, _), answer in zip(batch, answers, strict=True):
            results[i] = answer

    yield from for_each(bounded(files(), lambda one: len(one[1][1])), send, AT_ONCE)
    return [result for result in results if result is not None]


def embed(images: Iterable[ImageLike], *, model: str | None = None) -> Steps[np.ndarray]:
    """Return (N, D) float32 unit rows.

    Raises:
        ImageError: for the first image that cannot be read; names it.
    """
    sources = as_images(images)
    results = yield from embed_each(sources, model=model)
    for index, result in enumerate(results):
        if isinstance(result, ImageError):
            raise result.for_image(sources[index], index) from result
    if results:
        return np.stack([result for result in results if isinstance(result, np.ndarray)])
    name = model if model is not None else (yield from list_models())[0].name
    return np.zeros((0, (yield from served_model(name)).embed_dim), np.float32)


def attention(
    image: ImageLike,
    query: Query | None = None,
    target: ImageLike | list[Any] | tuple[Any, ...] | None = None,
    similarity: str = "dot",
    head: int | None = None,
    threshold: float | None = None,
    max_side: int | None = None,
    *,
    model: str | None = None,
    collection: str | None = None,
) -> Steps[AttentionMap | list[AttentionMap]]:
    """Return the attention map of an image, with the arguments and results of `Encoder.attention`.

    Args:
        max_side: limit of the long side of the network's input, in pixels; None: 1024, or the server's limit.
        model: a name of `list_models`; None: the server's default, or the collection's own.

    Returns:
        The map of the image, or of the one target; a list for a list of targets.

    Raises:
        ImageError: if an image cannot be read.
        InvalidRequest: if the network does not support the options, or the query is not on the image.
        UnknownModel: the server does not have the model.
        CollectionNotFound: the collection does not exist.
        FingerprintMismatch: the collection is bound to another model.
    """
    several = isinstance(target, list | tuple)
    targets: list[Any] = [] if target is None else list(target) if several else [target]
    if several and not targets:
        raise InvalidRequest("The list of target images is empty; leave target out, or give an image.")
    about = {"similarity": similarity, "head": head, "threshold": threshold, "max_side": max_side}
    about |= {"model": model, "collection": collection, **_query_fields(query)}
    files = yield from in_thread(lambda: [image_file(one) for one in (image, *targets)])
    parts: list[File] = [("target" if i else "image", file) for i, file in enumerate(files)]
    fields = {"query": to_json({name: value for name, value in about.items() if value is not None})}
    call = Call("POST", "/api/v1/attention", lambda answer: answer.json()["maps"], files=parts, fields=fields)
    answers = yield from perform(call)
    shown = [data for _, data in files[1:] or files]
    maps = yield from in_thread(lambda: [_map(one, data) for one, data in zip(answers, shown, strict=True)])
    return maps if several else maps[0]


def image_error(error: NNCLRHubError) -> ImageError:
    """Return the error of one image as an ImageError, whatever its code is."""
    return error if isinstance(error, ImageError) else ImageError(str(error))


def reports_each(count: int) -> Callable[[Answer], bool]:
    """Return a predicate: whether an answer has a result or an error for each of `count` parts."""
    return lambda answer: answer.status < 300 or len(failures(answer)) == count


def _embedding(files: list[tuple[str, bytes]], model: str | None) -> Call[list[Result]]:
    def read(answer: Answer) -> list[Result]:
        if answer.status >= 300:
            errors = failures(answer)
            return [image_error(errors.get(i, error_of(answer))) for i in range(len(files))]
        return [_result(entry) for entry in answer.json()["data"]]

    parts = [("files", file) for file in files]
    fields = {} if model is None else {"model": model}
    short = {"encoding_format": "base64"}  # a list of numbers takes 20 times as long to read
    return Call("POST", "/api/v1/embed", read, short, files=parts, fields=fields, takes=reports_each(len(files)))


def _result(entry: dict[str, Any]) -> Result:
    if "error" in entry:
        return image_error(make_error(entry["error"]["code"], entry["error"]["detail"]))
    return decode_vector(entry["embedding"], "embedding")


def _is_ready(answer: Answer) -> bool:
    return answer.json()["status"] == "ready" and answer.status == 200


def _model(entry: dict[str, Any]) -> ServedModel:
    return ServedModel(entry["id"], entry.get("dim") or 0, entry.get("fingerprint") or "")


def _query_fields(query: Query | None) -> dict[str, Any]:
    """Return the query in the form of the REST body."""
    if query is None:
        return {}
    from nnclr_hub.encoder.attention import Box, Point

    if not isinstance(query, Point | Box):
        raise InvalidRequest(f"query must be Point(x, y), Box(x0, y0, x1, y1) or None, got {query!r}.")
    return {"point" if isinstance(query, Point) else "box": [float(value) for value in astuple(query)]}


def _map(body: dict[str, Any], data: bytes) -> AttentionMap:
    """Return the map in a response, with the image, which the response does not contain."""
    from nnclr_hub.encoder.attention.geometry import Axis, Grid
    from nnclr_hub.encoder.attention.maps import AttentionMap
    from nnclr_hub.images.decode import decode_image

    values = np.array(body["values"], np.float32)
    across, down = (
        Axis(values.shape[1 - i], body["first"][i], body["stride"][i], body["input_size"][i], body["size"][i])
        for i in (0, 1)
    )
    low, high = body["limits"]
    return AttentionMap(values, body["kind"], Grid(down, across), (low, high), decode_image(data))
