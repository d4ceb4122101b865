"""Readiness, models and embeddings."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import numpy as np

from nnclr_hub.client.answers import error_of, failures, make_error
from nnclr_hub.client.pictures import MOST, MOST_BYTES, as_images, read_image
from nnclr_hub.client.steps import Answer, Call, Pause, Steps, ask, spread
from nnclr_hub.client.vectors import read_vector
from nnclr_hub.errors import ImageError, ImageTooLarge, NNCLRHubError, RequestTooLarge, ServerUnreachable
from nnclr_hub.read_ahead import batches

if TYPE_CHECKING:
    from nnclr_hub.client.pictures import ImageLike

AT_ONCE = 2  # requests of one call: while the server decodes the one, it runs the other
Result = np.ndarray | ImageError


@dataclass(frozen=True)
class ServedModel:
    """A model that a server has.

    name: what requests call it.
    embed_dim: D; 0 where it is not told, as in a list of models that may not be loaded.
    fingerprint: hash of weights and preprocessing; "" where it is not told.
    """

    name: str
    embed_dim: int = 0
    fingerprint: str = ""


def ready(*, wait: float = 0.0) -> Steps[bool]:
    """Whether the server is up, its model warm and its collections open.

    Args:
        wait: seconds to wait for that.

    Raises:
        ServerUnreachable: nothing answers there, also not at the end of `wait`.
    """
    end = time.monotonic() + wait
    call = Call("GET", "/readyz", _ready, takes=lambda answer: answer.status in (200, 503), once=True)
    while True:
        try:
            yes = yield from ask(call)
        except ServerUnreachable:
            if time.monotonic() >= end:
                raise
            yes = False
        if yes or time.monotonic() >= end:
            return yes
        yield Pause(0.2)


def list_models() -> Steps[list[ServedModel]]:
    """The models that requests may name, the default first."""
    return ask(Call("GET", "/v1/models", lambda answer: [_model(one) for one in answer.json()["data"]]))


def served_model(name: str) -> Steps[ServedModel]:
    """One model, loaded by the server if it was not.

    Raises:
        UnknownModel: the server has none of that name.
    """
    return ask(Call("GET", f"/v1/models/{quote(name)}", lambda answer: _model(answer.json())))


def embed_each(images: Iterable[ImageLike], *, model: str | None = None) -> Steps[list[Result]]:
    """One entry an image: its (D,) float32 unit vector, or its ImageError; any number of images.

    Args:
        images: paths, files' bytes, PIL images or (H, W, 3) uint8.
        model: a name of `list_models`; None: the server's default.
    """
    pictures = as_images(images)
    results: list[Result | None] = []

    def files() -> Iterator[tuple[int, tuple[str, bytes]]]:
        for i, image in enumerate(pictures):
            results.append(None)
            try:
                yield i, read_image(image)
            except ImageError as error:
                results[i] = error

    def send(batch: list[tuple[int, tuple[str, bytes]]]) -> Steps[None]:
        try:
            answers = yield from ask(_embedding([file for _, file in batch], model))
        except RequestTooLarge as error:
            if len(batch) == 1:
                results[batch[0][0]] = ImageTooLarge(str(error))
                return
            yield from send(batch[: len(batch) // 2])
            yield from send(batch[len(batch) // 2 :])
            return
        for (i, _), answer in zip(batch, answers, strict=True):
            results[i] = answer

    yield from spread(batches(files(), MOST, lambda one: len(one[1][1]), MOST_BYTES), send, AT_ONCE)
    return [result for result in results if result is not None]


def embed(images: Iterable[ImageLike], *, model: str | None = None) -> Steps[np.ndarray]:
    """(N, D) float32 unit rows.

    Raises:
        ImageError: the first image that could not be read; its message names the image.
    """
    pictures = as_images(images)
    results = yield from embed_each(pictures, model=model)
    for index, result in enumerate(results):
        if isinstance(result, ImageError):
            raise result.for_image(pictures[index], index) from result
    if results:
        return np.stack([result for result in results if isinstance(result, np.ndarray)])
    name = model if model is not None else (yield from list_models())[0].name
    return np.zeros((0, (yield from served_model(name)).embed_dim), np.float32)


def image_error(error: NNCLRHubError) -> ImageError:
    """What is wrong with one image, as an ImageError whatever the server calls it."""
    return error if isinstance(error, ImageError) else ImageError(str(error))


def told_by_part(count: int) -> Callable[[Answer], bool]:
    """Whether an answer says of each of `count` parts what became of it, good or bad."""
    return lambda answer: answer.status < 300 or len(failures(answer)) == count


def _embedding(files: list[tuple[str, bytes]], model: str | None) -> Call[list[Result]]:
    def read(answer: Answer) -> list[Result]:
        if answer.status >= 300:
            told = failures(answer)
            return [image_error(told.get(i, error_of(answer))) for i in range(len(files))]
        return [_result(entry) for entry in answer.json()["data"]]

    parts = [("files", file) for file in files]
    fields = {} if model is None else {"model": model}
    short = {"encoding_format": "base64"}  # a list of numbers takes the client 20 times as long to read
    return Call("POST", "/api/v1/embed", read, short, files=parts, fields=fields, takes=told_by_part(len(files)))


def _result(entry: dict[str, Any]) -> Result:
    if "error" in entry:
        return image_error(make_error(entry["error"]["code"], entry["error"]["detail"]))
    return read_vector(entry["embedding"])


def _ready(answer: Answer) -> bool:
    return answer.json()["status"] == "ready" and answer.status == 200


def _model(entry: dict[str, Any]) -> ServedModel:
    return ServedModel(entry["id"], entry.get("dim") or 0, entry.get("fingerprint") or "")
