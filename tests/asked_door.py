"""The door asked as a server would ask it, with nothing behind it but an app that says 200."""

import asyncio

from serving.routes import ROUTERS
from serving.security.access import AccessRules
from serving.security.door import Door
from serving.settings import Settings

READER, WRITER = "reader-0123456789abcdef", "writer-0123456789abcdef"


class Asked:
    """What the door answered; status 200 is the app behind it."""

    def __init__(self, sent: list[dict], scope: dict) -> None:
        self.status: int = sent[0]["status"]
        self.headers = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
        self.body = b"".join(message.get("body", b"") for message in sent[1:])
        self.scope = scope


async def asking(door: Door, path: str, method: str, headers: list[tuple[str, str]], client: str) -> Asked:
    sent: list[dict] = []

    async def send(message):
        sent.append(message)

    async def receive():
        return {"type": "http.request", "body": b""}

    pairs = [(name.lower().encode(), value.encode("latin-1")) for name, value in headers]
    scope = {"type": "http", "path": path, "method": method, "headers": pairs, "query_string": b""}
    scope |= {"client": (client, 1), "scheme": "http"}
    await door(scope, receive, send)
    return Asked(sent, scope)


def door_of(settings: Settings) -> Door:
    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    return Door(app, AccessRules(ROUTERS), settings)


def ask(door: Door | Settings, path: str, method: str = "GET", client: str = "192.0.2.1", **headers: str) -> Asked:
    door = door_of(door) if isinstance(door, Settings) else door
    pairs = [(name.replace("_", "-"), value) for name, value in {"host": "127.0.0.1", **headers}.items()]
    return asyncio.run(asking(door, path, method, pairs, client))


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}
