"""Parse the body of a multipart/form-data request (RFC 7578) that is in memory as a whole.

    parse_form("multipart/form-data; boundary=b", [body])     # [FormPart("files", "a.jpg", b"...")]

Images are needed as a whole anyway. Searching for the boundary is several times as fast as a parser for streams, which
calls Python for each piece of a header and writes each file to a temporary one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from email.header import decode_header, make_header
from typing import NamedTuple
from urllib.parse import unquote_to_bytes

from python_multipart.multipart import parse_options_header

MAX_PARTS = 1000
MAX_HEAD = 16 * 1024  # bytes of the headers of one part
_END = b"--"
_PARAMETER = re.compile(rb"; ?([a-z]+)=(?:\"([^\"\\]*)\"|([\w'()+,./:=?-]+))", re.IGNORECASE)
_SIMPLE = re.compile(rb"[a-z/-]+(?:%s)+" % _PARAMETER.pattern, re.IGNORECASE)
_QUOTED = re.compile(rb'"(?:[^"\\]|\\.)*"')
_EXTENDED = re.compile(rb";\s*filename\*\s*=\s*([\w-]+)'[^']*'([^;\s]*)", re.IGNORECASE)
_ANY_EXTENDED = re.compile(rb";\s*filename\*", re.IGNORECASE)
_ENCODED_WORDS = re.compile(rb"(=\?[\w-]+\?[bq]\?[!->@-~]*\?=\s*)+", re.IGNORECASE)


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
        pieces: parts of the body, in order.

    Raises:
        MalformedForm: the body is truncated, is not a form, or has too many parts or headers.
    """
    boundary = _options(content_type.encode("latin-1")).get(b"boundary")
    if not boundary:
        raise MalformedForm("Content-Type has no boundary")
    body, delimiter = b"".join(pieces), b"--" + boundary
    position = 0 if body.startswith(delimiter) else body.find(b"\r\n" + delimiter) + 2  # after a preamble
    if not body.startswith(delimiter, position):
        raise MalformedForm("it does not contain its boundary")
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
    options = _options(disposition)
    if b"name" not in options:
        raise MalformedForm('a part has no Content-Disposition with a "name"')
    return _decoded(options[b"name"]), _file_name(disposition, options.get(b"filename"))


def _options(header: bytes) -> dict[bytes, bytes]:
    """Return the parameters of a header. Nearly all headers are simple, and read several times as fast."""
    if _SIMPLE.fullmatch(header):
        return {name.lower(): quoted or bare for name, quoted, bare in _PARAMETER.findall(header)}
    return parse_options_header(header)[1]


def _file_name(disposition: bytes, plain: bytes | None) -> str | None:
    """Return the name of a file: of `filename*` (RFC 5987) if it can be decoded, else of `filename`.

    Some clients send only the first; .NET's sends both, the second as an encoded word of a mail (RFC 2047).
    """
    unquoted = _QUOTED.sub(b'""', disposition) if b"*" in disposition else b""
    if (extended := _EXTENDED.search(unquoted)) is not None:
        with suppress(LookupError, UnicodeDecodeError):
            return unquote_to_bytes(extended[2]).decode(extended[1].decode())
    # also the parts of a name (RFC 2231): filename*0*=, filename*1*=
    if plain is None and _ANY_EXTENDED.search(unquoted):
        raise MalformedForm("a filename* cannot be decoded; encode it in UTF-8 and in one part, or send a filename")
    if plain is not None and _ENCODED_WORDS.fullmatch(plain):
        with suppress(LookupError, ValueError):
            return str(make_header(decode_header(plain.decode())))
    return None if plain is None else _decoded(plain)


def _decoded(text: bytes) -> str:
    try:
        return text.decode()
    except UnicodeDecodeError:
        return text.decode("latin-1")


def _truncated() -> MalformedForm:
    return MalformedForm("it ends before its last boundary; nothing was stored, send it again")
