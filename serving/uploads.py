"""Images out of requests, in whatever form they come.

multipart/form-data      files, beside further fields
application/json         data URIs or base64
image/*                  the body is one image
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
from fastapi import Depends, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, TypeAdapter, ValidationError
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException

from nnclr_hub.errors import ImageError, InvalidRequest, RequestTooLarge

from .aside import aside
from .edge.rate_limits import charge_images
from .edge.url_fetcher import Fetched, Fetcher
from .multipart import whole_form
from .payloads import decode_text, is_address
from .telemetry import note_images

T = TypeVar("T", bound=BaseModel)
A = TypeVar("A")
MOST_ERRORS = 20
MOST_LISTS = 200_000
FORM = "multipart/form-data"
JSON = "application/json"


@dataclass(frozen=True)
class Picture:
    """One image of a request: its bytes, or why there are none; `name` is that of its file."""

    data: bytes | ImageError
    name: str | None = None


@dataclass(frozen=True)
class Form:
    """A multipart body.

    files: (field, image), in order.
    texts: values of the other fields by name; also of parts that are files but no images.
    """

    files: list[tuple[str, Picture]] = field(default_factory=list)
    texts: dict[str, str] = field(default_factory=dict)

    def pictures(self, field: str, limit: int) -> list[Picture]:
        """The files of a field.

        Raises:
            InvalidRequest: there is none.
            RequestTooLarge: more than the limit.
        """
        found = [picture for name, picture in self.files if name == field]
        if not found:
            raise InvalidRequest(f"There is no file part named {field}: send at least one image as {field}.")
        check_count(len(found), limit)
        return found


def kind_of(request: Request) -> str:
    """The media type of the body, without parameters."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def unsupported(request: Request, *takes: str) -> HTTPException:
    """The refusal of a body of another kind."""
    given = f"{kind_of(request)!r:.100}" if kind_of(request) else "of no named kind"
    return HTTPException(415, f"the body is {given}; send {' or '.join(takes)}")


async def read_json(request: Request, model: type[T]) -> T:
    """The body as a model.

    The framework's own way would make an object of every single thing that is wrong with a body, and 2 MB hold
    enough of them to keep it busy for a quarter of a minute.

    Raises:
        RequestValidationError: it is not.
        HTTPException: it is no JSON by its Content-Type.
    """
    if kind_of(request) != JSON:
        raise unsupported(request, f"{JSON} by that Content-Type")
    body = await request.body()
    return await aside(len(body), parse, body, model, ("body",))


def json_of(model: type[T]) -> Any:
    """What gives a route the body as a model; `described.json_body` tells of it."""

    async def read(request: Request) -> T:
        return await read_json(request, model)

    return Depends(read)


async def read_form(request: Request, files: Sequence[str] = ("files",), texts: Sequence[str] = ()) -> Form:
    """The whole multipart body.

    Args:
        files: the fields that hold images.
        texts: fields that are text, even where a client sends them as files.

    Raises:
        HTTPException: it is not whole.
        InvalidRequest: it has another field, or text where an image belongs, so that nothing is silently ignored.
    """
    form = Form()
    # a part that is text may be as large as the body, which was limited before
    async with whole_form(request, request.app.state.settings.max_bytes) as parts:
        for name, part in parts.multi_items():
            if name not in (*files, *texts):
                raise InvalidRequest(f"The form has no field {name!r:.100}: it takes {', '.join((*files, *texts))}.")
            if isinstance(part, str) and name in files:
                raise InvalidRequest(f"The field {name} came as text: send the image itself, as a file part.")
            if isinstance(part, str):
                form.texts[name] = part
            elif name in texts:
                form.texts[name] = _text(await part.read(), name)
            else:
                form.files.append((name, Picture(await part.read(), _file_name(part))))
    return form


def parse(text: str | bytes, model: type[T], place: tuple[str, ...] = ()) -> T:
    """JSON as a model.

    Args:
        place: where in the request it stands.

    Raises:
        RequestValidationError: it is not.
    """
    return parse_as(text, TypeAdapter(model), place)


def parse_as(text: str | bytes, adapter: TypeAdapter[A], place: tuple[str, ...] = ()) -> A:
    """`parse`, for what is no model.

    Raises:
        RequestTooLarge: it holds more lists and objects than can be made without holding up everybody else: making
            seven million empty lists takes Python's collector five seconds, in which no other thread runs.
    """
    if _openings(text) > MOST_LISTS:
        raise RequestTooLarge(f"The JSON holds more than {MOST_LISTS} lists and objects: send it in several requests.")
    try:
        return adapter.validate_json(text)
    except ValidationError as error:
        if error.error_count() > MOST_ERRORS:
            told = {"type": "too_many", "loc": place, "msg": f"{error.error_count()} things are wrong with it"}
            raise RequestValidationError([told]) from error
        parts = error.errors(include_url=False, include_input=False)
        raise RequestValidationError([{**part, "loc": (*place, *part["loc"])} for part in parts]) from error


def _openings(text: str | bytes) -> int:
    """Lists and objects that JSON holds; those in words are no such, and looked for only where it matters.

    By whole arrays: a search for each string would be held up by millions of them, as the parser is by lists.
    """
    data = text.encode() if isinstance(text, str) else text
    opened = data.count(b"[") + data.count(b"{")
    if opened <= MOST_LISTS:
        return opened
    data = data.replace(rb"\\", b"").replace(rb"\"", b"")  # an escaped quote ends no string
    codes = np.frombuffer(data, np.uint8)
    in_words = np.logical_xor.accumulate(codes == ord('"'))
    return int(np.count_nonzero(((codes == ord("[")) | (codes == ord("{"))) & ~in_words))


async def fetch_each(texts: Iterable[str], fetcher: Fetcher | None) -> Fetched:
    """What is behind those texts that are web addresses, if the server fetches any."""
    return {} if fetcher is None else await fetcher.fetch_each(filter(is_address, texts))


async def decode_each(texts: Sequence[str], what: str, fetched: Fetched) -> list[Picture]:
    """Images that came as text; a text that is none is an error of its own."""

    def decode(index: int, text: str) -> Picture:
        try:
            return Picture(decode_text(text, f"{what}[{index}]", fetched))
        except InvalidRequest as error:
            return Picture(ImageError(str(error)))

    return await aside(sum(map(len, texts)), lambda: [decode(index, text) for index, text in enumerate(texts)])


def check_count(count: int, limit: int) -> None:
    """Notes how many images a request brought, and counts them against its key's rate.

    Raises:
        RequestTooLarge: more than it may.
        RateLimited: more than its key may send in a minute.
    """
    if count > limit:
        raise RequestTooLarge(f"{count} images are too many for one request: send at most {limit}.")
    charge_images(count)
    note_images(count)


def _text(data: bytes, name: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"The part {name} is no UTF-8 text.") from error


def _file_name(part: UploadFile) -> str | None:
    """The name that the client gave, without folders."""
    return (part.filename or "").replace("\\", "/").rpartition("/")[2] or None
