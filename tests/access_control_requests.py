"""Requests to access control and the limits of bodies, with nothing behind them but an app that answers 200."""

import asyncio

from serving.access import AccessControl, AccessRules
from serving.limits import RequestLimits
from serving.routes import ROUTERS
from serving.settings import Settings

READER, WRITER = "reader-0123456789abcdef", "writer-0123456789abcdef"


class Answer:
    """A response; status 200 comes from the app behind the layers."""

    def __init__(self, sent: list[dict], scope: dict) -> None:
        self.status: int = sent[0]["status"]
        self.headers = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
        self.body = b"".join(message.get("body", b"") for message in sent[1:])
        self.scope = scope


async def send_request(
    control: AccessControl,
    path: str,
    method: str,
    headers: list[tuple[str, str]],
    client: str,
    body: bytes = b"",
    scheme: str = "http",
) -> Answer:
    sent: list[dict] = []

    async def send(message):
        sent.append(message)

    async def receive():
        return {"type": "http.request", "body": body}

    pairs = [(name.lower().encode(), value.encode("latin-1")) for name, value in headers]
    scope = {"type": "http", "path": path, "method": method, "headers": pairs, "query_string": b""}
    scope |= {"client": (client, 1), "scheme": scheme}
    await control(scope, receive, send)
    return Answer(sent, scope)


def control_of(settings: Settings) -> AccessControl:
    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    return AccessControl(RequestLimits(app, settings), AccessRules(ROUTERS), settings)


def ask(
    control: AccessControl | Settings, path: str, method: str = "GET", client: str = "192.0.2.1", **headers: str
) -> Answer:
    control = control_of(control) if isinstance(control, Settings) else control
    pairs = [(name.replace("_", "-"), value) for name, value in {"host": "127.0.0.1", **headers}.items()]
    return asyncio.run(send_request(control, path, method, pairs, client))


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}
