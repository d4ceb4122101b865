"""Multipart bodies, whole or not at all.

async with whole_form(request, largest=20_000_000) as parts: ...
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager

from fastapi import Request
from starlette.datastructures import FormData
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException, MultiPartParser


class _WholeParser(MultiPartParser):
    """The framework's, which takes a body that breaks off for one that ended."""

    ended = False

    def on_end(self) -> None:
        self.ended = True

    async def until_ended(self, body: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
        """The pieces of the body; raises MultiPartException behind the last one if the form goes on."""
        async for piece in body:
            yield piece
        if not self.ended:
            raise MultiPartException("it breaks off before its last boundary, and nothing was taken; send it whole")


@asynccontextmanager
async def whole_form(request: Request, largest: int) -> AsyncIterator[FormData]:
    """The parts of a body, whose files are closed behind the block.

    Args:
        largest: bytes of a part that is no file.

    Raises:
        HTTPException: it is broken, or breaks off: what came by then would else be stored, and nobody miss the rest.
    """
    async with aclosing(request.stream()) as body:
        parser = _WholeParser(request.headers, body, max_part_size=largest)
        parser.stream = parser.until_ended(body)
        try:
            form = await parser.parse()
        except MultiPartException as error:
            raise HTTPException(400, f"the form cannot be read: {error.message}") from error
    try:
        yield form
    finally:
        await form.close()
