"""The load of the soak: callers that embed, search, store and delete, and record the responses.

Each caller has its ids and knows what the collection must hold of them. Some requests are damaged or cancelled. A
cancelled write may or may not have happened, so its ids become unsure.
"""

from __future__ import annotations

import asyncio
import io
import json
import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import httpx
import numpy as np
from PIL import Image

COLLECTION = "/api/v1/collections/soak"
IDS = 60  # that a caller uses at a time
# statuses that a loaded server may return; any other fails the soak
EXPECTED = {200, 204, 404, 415, 422, 429, 503, 504}
CORRUPT, CANCELLED, HURRIED = 0.05, 0.04, 0.04


@dataclass
class Heard:
    """Outcomes of the requests.

    outcomes: number by (kind, outcome). seconds: of the successful ones by kind. wrong: sentences about wrong
    responses."""

    outcomes: Counter[tuple[str, str]] = field(default_factory=Counter)
    seconds: dict[str, list[float]] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)

    @property
    def requests(self) -> int:
        return self.outcomes.total()

    def note(self, kind: str, outcome: str, seconds: float) -> None:
        """Count one request."""
        self.outcomes[kind, outcome] += 1
        if outcome in ("200", "204"):
            self.seconds.setdefault(kind, []).append(seconds)


@dataclass
class Ledger:
    """Expected content of the collection. there: by id; unsure: ids of writes without an acknowledgement."""

    there: set[str] = field(default_factory=set)
    unsure: set[str] = field(default_factory=set)

    def differences(self, held: set[str]) -> list[str]:
        """Return sentences about missing and unexpected items of a listing."""
        missing, extra = self.there - held, held - self.there - self.unsure
        found = [f"{len(missing)} acknowledged items are missing, such as {min(missing)}"] if missing else []
        return found + ([f"{len(extra)} items nobody acknowledged, such as {min(extra)}"] if extra else [])


def make_images(count: int, seed: int = 0) -> list[bytes]:
    """Return JPEGs of smooth noise, 64 to 320 pixels per side."""
    rng, files = np.random.default_rng(seed), []
    for _ in range(count):
        sides = rng.integers(64, 320, 2)
        coarse = Image.fromarray(rng.integers(0, 255, (6, 6, 3), dtype=np.uint8))
        file = io.BytesIO()
        coarse.resize((int(sides[0]), int(sides[1])), Image.Resampling.BICUBIC).save(file, "JPEG", quality=85)
        files.append(file.getvalue())
    return files


class Caller:
    """One of many callers that send requests without a pause."""

    def __init__(self, number: int, http: httpx.AsyncClient, dim: int, images: list[bytes], heard: Heard) -> None:
        self.ledger = Ledger()
        self._number, self._http, self._dim, self._images, self._heard = number, http, dim, images, heard
        self._rng = random.Random(number)
        self._made = 0
        self._ids = [self._new_id() for _ in range(IDS)]

    async def run(self, enough: Callable[[], bool]) -> None:
        """Send requests until `enough` returns true."""
        kinds = (
            self._embed,
            self._embed,
            self._search_image,
            self._search_vector,
            self._upload,
            self._put,
            self._delete,
        )
        while not enough():
            busy = await self._rng.choice((*kinds, self._delete))()
            if busy:
                await asyncio.sleep(self._rng.uniform(0.02, 0.1))

    # ---- requests

    async def _embed(self) -> bool:
        files = self._files(self._rng.choice((1, 1, 1, 4)))
        response = await self._ask("embed", "POST", "/api/v1/embed", files=files)
        if response is not None and response.status_code == 200:
            names = [entry["name"] for entry in response.json()["data"]]
            self._check(names == [name for _, (name, _) in files], f"the response of another request: {names}")
        return _is_busy(response)

    async def _search_image(self) -> bool:
        files = {"image": self._images[0], "query": (None, json.dumps({"k": 5}))}
        return _is_busy(await self._ask("search by image", "POST", f"{COLLECTION}/search", files=files))

    async def _search_vector(self) -> bool:
        body = {"vector": [self._rng.gauss(0, 1) for _ in range(self._dim)], "k": 5}
        response = await self._ask("search by vector", "POST", f"{COLLECTION}/search", json=body)
        if response is not None and response.status_code == 200:
            ids = [match["id"] for match in response.json()["matches"]]
            self._check(len(ids) == len(set(ids)), f"a match occurs twice: {ids}")
        return _is_busy(response)

    async def _upload(self) -> bool:
        ids = self._rng.sample(self._ids, 2)
        files = self._files(2)
        about = json.dumps([{"id": id, "metadata": {"caller": self._number}} for id in ids])
        response = await self._ask("upload", "POST", f"{COLLECTION}/items", ids, files=files, data={"items": about})
        if response is not None and response.status_code == 200:
            results = response.json()["results"]
            stored = [entry["id"] for entry in results if "error" not in entry or entry["error"] is None]
            self._check(set(stored) <= set(ids), f"the response of another request: {stored}")
            self.ledger.there |= set(stored)
        return _is_busy(response)

    async def _put(self) -> bool:
        ids = self._rng.sample(self._ids, 4)
        vectors = np.random.default_rng(self._rng.randrange(2**32)).normal(size=(4, self._dim))
        body = [{"id": id, "vector": vector.tolist()} for id, vector in zip(ids, vectors, strict=True)]
        response = await self._ask("put", "PUT", f"{COLLECTION}/items", ids, json=body)
        if response is not None and response.status_code == 200:
            self.ledger.there |= set(ids)
        return _is_busy(response)

    async def _delete(self) -> bool:
        id = self._rng.choice(self._ids)
        response = await self._ask("delete", "DELETE", f"{COLLECTION}/items/{id}", [id])
        if response is not None and response.status_code in (204, 404):
            held = id in self.ledger.there
            self._check(held == (response.status_code == 204), f"deleting {id}: {response.status_code}, held: {held}")
            self.ledger.there.discard(id)
        return _is_busy(response)

    # ---- sending

    async def _ask(self, kind: str, method: str, path: str, ids: list[str] | None = None, **body: Any) -> Any:
        """Send a request and return the response, or None if it was cancelled; record the outcome and unsure ids."""
        begun, chance = time.monotonic(), self._rng.random()
        asking = asyncio.ensure_future(self._http.request(method, path, **body))
        try:
            if chance < CANCELLED:  # cancelled before the response: the connection is closed
                await asyncio.wait([asking], timeout=self._rng.uniform(0, 0.05))
            elif chance < CANCELLED + HURRIED:
                await asyncio.wait([asking], timeout=0.2)
            if chance < CANCELLED + HURRIED and not asking.done():
                asking.cancel()
                self._heard.note(kind, "cancelled" if chance < CANCELLED else "timed out", 0.0)
                self._retire(ids)
                return None
            response = await asking
        except httpx.HTTPError as error:
            self._heard.note(kind, type(error).__name__, 0.0)
            self._heard.wrong.append(f"{kind}: {type(error).__name__} {error}")
            self._retire(ids)
            return None
        self._heard.note(kind, str(response.status_code), time.monotonic() - begun)
        self._check(response.status_code in EXPECTED, f"{kind}: {response.status_code} {response.text[:200]}")
        if response.status_code in (500, 503, 504):
            self._retire(ids)
        return response

    def _files(self, count: int) -> list[tuple[str, tuple[str, bytes]]]:
        """Return images, a twentieth of them damaged: truncated, or noise."""
        files = []
        for i in range(count):
            data = self._rng.choice(self._images)
            if self._rng.random() < CORRUPT:
                data = self._rng.choice((data[: len(data) // 2], self._rng.randbytes(500)))
            files.append(("files", (f"{self._number}-{self._heard.requests}-{i}.jpg", data)))
        return files

    def _retire(self, ids: list[str] | None) -> None:
        for id in ids or ():
            self.ledger.there.discard(id)
            self.ledger.unsure.add(id)
            self._ids[self._ids.index(id)] = self._new_id()

    def _new_id(self) -> str:
        self._made += 1
        return f"c{self._number}-{self._made}"

    def _check(self, holds: bool, sentence: str) -> None:
        if not holds:
            self._heard.wrong.append(sentence)


def _is_busy(response: httpx.Response | None) -> bool:
    return response is not None and response.status_code == 429
