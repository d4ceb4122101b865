"""Parse the body of a multipart/form-data request (RFC 7578) that is in memory as a whole.

    parse_form("multipart/form-data; boundary=b", [body])     # [FormPart("files", "a.jpg", b"...")]

Images are needed as a whole anyway. Searching for the boundary is several times as fast as a parser for streams, which
calls Python for each piece of a header and writes each file to a temporary one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from python_multipart.multipart import parse_options_header

MAX_PARTS = 1000
MAX_HEAD = 16 * 1024  # bytes of the headers of one part
_END = b"--"


class MalformedForm(Exception):
    """Raised with the reason why a form cannot be read."""


class FormPart(NamedTuple):
    """One field of a form; `filename` is None for text."""

    name: str
    filename: str | None
    data: bytes


def parse_form(content_type: str, pieces: Sequence[bytes]) -> list[FormPart]:
    """Return the parts of a form in order.

    Args:
        pieces: of the body.

    Raises:
        MalformedForm: the body is truncated, is not a form, or has too many parts or headers.
    """
    boundary = parse_options_header(content_type)[1].get(b"boundary")
    if not boundary:
        raise MalformedForm("Content-Type has no boundary")
    body, delimiter = b"".join(pieces), b"--" + boundary
    position = len(body) - len(body.lstrip(b"\r\n"))
    if not body.startswith(delimiter, position):
        raise MalformedForm("it does not begin with its boundary")
    parts: list[FormPart] = []
    position += len(delimiter)
    while not body.startswith(_END, position):
        if not body.startswith(b"\r\n", position):
            raise _truncated() if len(body) - position < 2 else MalformedForm("a boundary is followed by other text")
        if len(parts) == MAX_PARTS:
            raise MalformedForm(f"it has more than {MAX_PARTS} parts")
        position += 2
        head_end = body.find(b"\r\n\r\n", position, position + MAX_HEAD)
        if head_end < 0:
            many = len(body) - position >= MAX_HEAD
            raise MalformedForm(f"a part has more than {MAX_HEAD} bytes of headers") if many else _truncated()
        start = head_end + 4
        end = body.find(b"\r\n" + delimiter, start)
        if end < 0:
            raise _truncated()
        parts.append(FormPart(*_names(body[position:head_end]), body[start:end]))
        position = end + 2 + len(delimiter)
    return parts


def _names(head: bytes) -> tuple[str, str | None]:
    """Return the name of the field and of its file in the headers of a part."""
    disposition = b""
    for line in head.split(b"\r\n"):
        name, colon, value = line.partition(b":")
        if not colon:
            raise MalformedForm("a header of a part has no colon")
        if name.strip().lower() == b"content-disposition":
            disposition = value.strip()
    options = parse_options_header(disposition)[1]
    if b"name" not in options:
        raise MalformedForm('a part has no Content-Disposition with a "name"')
    filename = options.get(b"filename")
    return _decoded(options[b"name"]), None if filename is None else _decoded(filename)


def _decoded(text: bytes) -> str:
    try:
        return text.decode()
    except UnicodeDecodeError:
        return text.decode("latin-1")


def _truncated() -> MalformedForm:
    return MalformedForm("it ends before its last boundary; nothing was stored, send it again")
