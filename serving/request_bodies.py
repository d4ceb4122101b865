"""What requests contain: query parameters, JSON as models, multipart forms, and the images in them.

multipart/form-data      files next to other fields
application/json         images as data URIs or base64, or as web addresses where the server fetches them
image/*                  the body is one image
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any, ParamSpec, TypeVar

import numpy as np
from anyio import CapacityLimiter, to_thread
from anyio.lowlevel import RunVar
from fastapi import Request
from fastapi.exceptions import RequestValidationError
from pydantic import TypeAdapter, ValidationError

from nnclr_hub.errors import ImageError, InvalidRequest, RequestTooLarge
from nnclr_hub.workbench.payload import decode_base64

from .multipart import MalformedForm, parse_form
from .problems import Refused
from .telemetry import note_images
from .url_fetcher import Fetched, Fetcher

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
LARGE = 256 << 10  # bytes; handling fewer is faster than handing them to a thread
MAX_ERRORS = 20  # most errors of one body that are listed
MAX_LISTS = 200_000
MAX_VALUES = 1_250_000  # numbers and strings in JSON; parsing more keeps all other threads waiting for over 0.1 s
_large_work: RunVar[CapacityLimiter] = RunVar("large_work")  # one for each event loop
BOM = b"\xef\xbb\xbf"  # which PowerShell and .NET write before UTF-8
FORM = "multipart/form-data"
JSON = "application/json"


async def in_thread_if_large(size: int, work: Callable[P, R], *arguments: P.args, **named: P.kwargs) -> R:
    """Return the result of `work`; run it in a thread if it handles more than `LARGE` bytes.

    One such thread works at a time. They all hold the interpreter's lock, for which the event loop would have to wait
    as long as there are threads.

    Args:
        size: bytes to work on.
    """
    if size <= LARGE:
        return work(*arguments, **named)
    try:
        alone = _large_work.get()
    except LookupError:
        alone = CapacityLimiter(1)
        _large_work.set(alone)
    return await to_thread.run_sync(partial(work, *arguments, **named), limiter=alone)


def media_type(request: Request) -> str:
    """Return the media type of the body, without parameters."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def is_form(request: Request) -> bool:
    """Return whether the body is a multipart form, and not JSON; raise Refused if it is neither."""
    kind = media_type(request)
    if kind not in (FORM, JSON):
        raise unsupported(request, FORM, JSON)
    return kind == FORM


def unsupported(request: Request, *supported: str) -> Refused:
    """Return the error for a body of another media type."""
    given = f"{media_type(request)!r:.100}" if media_type(request) else "missing"
    return Refused("unsupported_media_type", f"Content-Type is {given}; send {' or '.join(supported)}.")


# ---- JSON


async def read_json(request: Request, kind: type[T]) -> T:
    """Read the body as JSON of a type.

    Raises:
        RequestValidationError: the body does not fit the type.
        Refused: the Content-Type is not JSON.
    """
    if media_type(request) != JSON:
        raise unsupported(request, JSON)
    body = await request.body()
    return await in_thread_if_large(len(body), parse, body, kind, ("body",))


def parse(text: str | bytes, kind: type[T], place: tuple[str, ...] = ()) -> T:
    """Parse JSON as a type.

    FastAPI's own parsing makes an object for every error in a body. 2 MB can hold enough errors to keep it busy for
    15 seconds, so this function stops earlier.

    Args:
        place: where in the request the text is.

    Raises:
        RequestValidationError: it does not fit the type.
        RequestTooLarge: the text has more than `MAX_LISTS` lists and objects, or `MAX_VALUES` values. Python's garbage
            collector stops all threads for 5 seconds while 7 million empty lists are made.
    """
    data = (text.encode() if isinstance(text, str) else text).removeprefix(BOM)
    for what, opening, most in (("lists and objects", b"[{", MAX_LISTS), ("values", b",", MAX_VALUES)):
        if _count(data, opening, most) > most:
            raise RequestTooLarge(
                f"The JSON has more than {most:,} {what}; send vectors as base64, or split it into several requests."
            )
    try:
        return _adapter(kind).validate_json(data)
    except ValidationError as error:
        if error.error_count() > MAX_ERRORS:
            many = {"type": "too_many", "loc": place, "msg": f"it has {error.error_count()} errors"}
            raise RequestValidationError([many]) from error
        parts = error.errors(include_url=False, include_input=False)
        raise RequestValidationError([{**part, "loc": (*place, *part["loc"])} for part in parts]) from error


_adapter: Callable[[Any], TypeAdapter[Any]] = cache(TypeAdapter)


def _count(data: bytes, characters: bytes, most: int) -> int:
    """Return how many of these characters JSON has. They are left out in strings if there are more than `most`.

    Strings are found with whole-array operations: a regular expression would be slow for millions of short strings.
    """
    everywhere = sum(data.count(one) for one in characters)
    if everywhere <= most:
        return everywhere
    data = data.replace(rb"\\", b"").replace(rb"\"", b"")  # an escaped quote does not end a string
    codes = np.frombuffer(data, np.uint8)
    in_strings = np.logical_xor.accumulate(codes == ord('"'))
    return int(np.count_nonzero(np.isin(codes, list(characters)) & ~in_strings))


# ---- forms


@dataclass(frozen=True)
class UploadedImage:
    """One image of a request: its bytes, or why there are none; `name` is the name of its file."""

    data: bytes | ImageError
    name: str | None = None


@dataclass(frozen=True)
class Form:
    """A multipart body: (field, image) of its files in order, and the text fields by name."""

    files: list[tuple[str, UploadedImage]] = field(default_factory=list)
    texts: dict[str, str] = field(default_factory=dict)

    def images(self, field: str, limit: int) -> list[UploadedImage]:
        """Return the files of a field.

        Raises:
            InvalidRequest: there are none.
            RequestTooLarge: there are more than the limit.
        """
        found = [image for name, image in self.files if name == field]
        if not found:
            raise InvalidRequest(f"The form has no file part {field!r}; send at least one image as {field}.")
        check_count(len(found), limit)
        return found

    async def query(self, model: type[T]) -> T:
        """Return the text field `query`, which is JSON, as a model."""
        text = self.texts.get("query") or "{}"
        return await in_thread_if_large(len(text), parse, text, model, ("query",))


async def read_form(request: Request, files: Sequence[str] = ("files",), texts: Sequence[str] = ()) -> Form:
    """Read the whole multipart body.

    Args:
        files: the fields that hold images.
        texts: fields that are text, even where a client sends them as files.

    Raises:
        Refused: the body is malformed or truncated.
        InvalidRequest: the form has another field, or text where an image is expected. Nothing is silently ignored.
    """
    pieces = [piece async for piece in request.stream()]  # `request.body` would keep them in memory
    try:
        parts = await in_thread_if_large(sum(map(len, pieces)), parse_form, request.headers["content-type"], pieces)
    except MalformedForm as error:
        raise Refused("malformed", f"The form cannot be read: {error}.") from error
    form = Form()
    for name, filename, data in parts:
        if name in texts:
            try:
                form.texts[name] = data.decode()
            except UnicodeDecodeError as error:
                raise InvalidRequest(f"The part {name} must be UTF-8 text.") from error
        elif name not in files:
            raise InvalidRequest(f"The form has no field {name!r:.100}; its fields are {', '.join((*files, *texts))}.")
        elif filename is None:
            raise InvalidRequest(f"The field {name} is text; send the image as a file part.")
        else:
            without_folders = filename.replace("\\", "/").rpartition("/")[2]
            form.files.append((name, UploadedImage(data, without_folders or None)))
    return form


# ---- images


def decode_text(text: str, what: str, fetched: Fetched | None = None) -> bytes:
    """Return the bytes of a data URI or base64, or those fetched from a web address.

    Args:
        what: name of the field, for the error message.
        fetched: the bytes of each web address, or why there are none.

    Raises:
        InvalidRequest: the text is not valid, or the address could not be fetched.
    """
    if not _is_address(text):
        return decode_base64(text, what)
    found = (fetched or {}).get(text, "is a web address, which this server does not fetch; send the image itself.")
    if isinstance(found, str):
        raise InvalidRequest(f"{what} {found}")
    return found


def _is_address(text: str) -> bool:
    """Return whether an image is given by its web address."""
    return text[:8].lower().startswith(("http://", "https://"))


async def fetch_each(texts: Iterable[str], fetcher: Fetcher | None) -> Fetched:
    """Fetch the texts that are web addresses, if the server fetches any."""
    return {} if fetcher is None else await fetcher.fetch_each(filter(_is_address, texts))


async def decode_each(texts: Sequence[str], what: str, limit: int, fetcher: Fetcher | None) -> list[UploadedImage]:
    """Decode or fetch images that were sent as text; a text that is not valid becomes the error of that image only.

    Raises:
        RequestTooLarge: there are more than the limit.
    """
    check_count(len(texts), limit)
    fetched = await fetch_each(texts, fetcher)

    def decode(index: int, text: str) -> UploadedImage:
        try:
            return UploadedImage(decode_text(text, f"{what}[{index}]", fetched))
        except InvalidRequest as error:
            return UploadedImage(ImageError(str(error)))

    size = sum(map(len, texts))
    return await in_thread_if_large(size, lambda: [decode(index, text) for index, text in enumerate(texts)])


def check_count(count: int, limit: int) -> None:
    """Record how many images a request has.

    Raises:
        RequestTooLarge: more than `limit`.
    """
    if count > limit:
        raise RequestTooLarge(f"{count} images exceed the limit of {limit} per request; split the request.")
    note_images(count)
