"""An app with a count of what it did, behind `Idempotency`."""

import asyncio

import httpx
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from serving.idempotency import Idempotency
from serving.replies import Replies
from serving.routes import ROUTERS
from serving.security.access import AccessRules


class World:
    """An app that counts what it does, behind the layer."""

    def __init__(self, records, most: int = 100, most_bytes: int = 10**9) -> None:
        self.done: list[bytes] = []
        self.marks: list[str] = []
        self.status = 200
        self.answer = b"it is done"
        self.gate: asyncio.Event | None = None
        self.begun = asyncio.Event()
        app = Starlette(routes=[Route("/{path:path}", self._do, methods=["GET", "POST", "PUT"])])
        self.app = Idempotency(app, Replies(records, most, most_bytes), AccessRules(ROUTERS))

    async def _do(self, request: Request) -> Response:
        self.done.append(await request.body())
        self.marks.append(getattr(request.state, "idempotent_request", ""))
        self.begun.set()
        if self.gate is not None:
            await self.gate.wait()
        headers = {"X-Number": str(len(self.done)), "Location": "/api/v1/jobs/7", "X-Request-ID": "first"}
        return PlainTextResponse(self.answer, self.status, headers)

    async def send(self, key="k", content=b"body", path="/api/v1/x", method="POST", **headers) -> httpx.Response:
        headers = {name.replace("_", "-"): value for name, value in headers.items()}
        if key is not None:
            headers["Idempotency-Key"] = key
        async with httpx.AsyncClient(transport=httpx.ASGITransport(self.app), base_url="http://x") as client:
            return await client.request(method, path, content=content, headers=headers)


def run(coroutine):
    return asyncio.run(coroutine)
