"""A long run at saturation: is every request answered once, is the memory flat, is the server ready at the end?

More callers than the server has capacity for send embeddings, searches, uploads, vectors and deletions without a pause.
5% of the images are damaged, and callers cancel 8% of the requests. A caller has its ids and knows what the collection
must hold of them; a canceled write may or may not have happened, so its ids become unsure. At the end the server must
be ready, hold exactly what it acknowledged, and stop cleanly after SIGTERM.
"""

from __future__ import annotations

import asyncio
import io
import json
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from PIL import Image
from server_process import ServerProcess

from nnclr_hub import Client

SETTLED = 0.4  # share of the run after which memory has to be flat: pools, caches and the index have grown by then
MAY_GROW = 0.05  # of it, over the rest of the run
MAY_OPEN = 20  # more files or threads, likewise; a single sample varies by more with the number of connections
COLLECTION = "/api/v1/collections/soak"
IDS = 60  # that a caller uses at a time
# statuses that a loaded server may return; any other fails the soak
EXPECTED = {200, 204, 404, 415, 422, 429, 503, 504}
CORRUPT, CANCELLED, HURRIED = 0.05, 0.04, 0.04


@dataclass
class Heard:
    """Outcomes of the requests, and sentences about wrong responses."""

    outcomes: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    @property
    def requests(self) -> int:
        return self.outcomes.total()


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
        chance = self._rng.random()
        asking = asyncio.ensure_future(self._http.request(method, path, **body))
        try:
            if chance < CANCELLED:  # cancelled before the response: the connection is closed
                await asyncio.wait([asking], timeout=self._rng.uniform(0, 0.05))
            elif chance < CANCELLED + HURRIED:
                await asyncio.wait([asking], timeout=0.2)
            if chance < CANCELLED + HURRIED and not asking.done():
                asking.cancel()
                self._heard.outcomes["cancelled" if chance < CANCELLED else "timed out"] += 1
                self._retire(ids)
                return None
            response = await asking
        except httpx.HTTPError as error:
            self._heard.outcomes[type(error).__name__] += 1
            self._heard.wrong.append(f"{kind}: {type(error).__name__} {error}")
            self._retire(ids)
            return None
        self._heard.outcomes[str(response.status_code)] += 1
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


@dataclass(frozen=True)
class Sample:
    """The server's process at one time: seconds since the start, resident MB, open files, threads.

    files: without the connections that callers still hold open. httpcore keeps some of canceled requests, so their
        number grows. A connection that only the server holds counts.
    """

    at: float
    rss: float
    files: int
    threads: int


@dataclass(frozen=True)
class Soak:
    """Result of a run."""

    heard: Heard
    samples: Sequence[Sample]
    wrong: Sequence[str]
    seconds: float

    def settled(self) -> list[Sample]:
        """Return the samples of the part in which nothing may grow."""
        return [one for one in self.samples if one.at >= SETTLED * self.seconds]

    def halves(self, name: str) -> tuple[float, float]:
        """Return the medians of a field of the samples, in the first and the second half of that part."""
        values = [getattr(one, name) for one in self.settled()]
        half = len(values) // 2
        return float(np.median(values[:half])), float(np.median(values[half:]))

    @property
    def growth(self) -> float:
        """How much larger the memory is in the second half than in the first, as a share."""
        first, second = self.halves("rss")
        return second / first - 1


def sample(server: ServerProcess, began: float) -> Sample:
    """Read /proc."""
    process = Path(f"/proc/{server.pid}")
    status = dict(line.split(":", 1) for line in (process / "status").read_text().splitlines())
    files = sum(1 for _ in (process / "fd").iterdir()) - held_by_callers(server.port)
    return Sample(time.monotonic() - began, int(status["VmRSS"].split()[0]) / 1000, files, int(status["Threads"]))


def held_by_callers(port: int) -> int:
    """Return the number of connections to a port of this machine whose other end is established."""
    rows = (line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:])
    return sum(remote.endswith(f":{port:04X}") and state == "01" for _, _, remote, state, *_ in rows)


async def load(
    server: ServerProcess, seconds: float, requests: int, callers: int, dim: int
) -> tuple[Heard, list[Sample], Ledger]:
    """Run callers for a time and a number of requests; return responses, samples and the expected content."""
    heard, samples, began = Heard(), [], time.monotonic()

    def enough() -> bool:
        return time.monotonic() - began >= seconds and heard.requests >= requests

    images = make_images(64)
    # A connection that the server closes as idle, while it is being used again, would look like a lost request. Nothing
    # limits their number, because httpcore counts some whose request was cancelled for ever.
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=callers, keepalive_expiry=1.0)
    async with httpx.AsyncClient(base_url=server.url, timeout=120, limits=limits) as http:
        crowd = [Caller(i, http, dim, images, heard) for i in range(callers)]
        running = [asyncio.create_task(caller.run(enough)) for caller in crowd]
        while not all(task.done() for task in running):
            samples.append(sample(server, began))
            await asyncio.wait(running, timeout=min(1.0, seconds / 40))
        for task in running:
            task.result()
    ledger = Ledger()
    for caller in crowd:
        ledger.there |= caller.ledger.there
        ledger.unsure |= caller.ledger.unsure
    return heard, samples, ledger


def soak(folder: Path, seconds: float, *, requests: int = 0, callers: int = 48) -> Soak:
    """Run from an empty store to the server's end; longer than `seconds` if `requests` take longer."""
    # room for a quarter of the callers' images, so that it is refused what it cannot take
    with ServerProcess(folder / "store", capacity=max(4, callers // 4), deadline_s=20) as server:
        with httpx.Client(base_url=server.url, timeout=60) as http:
            dim = http.put(COLLECTION, json={}).json()["dim"]
            heard, samples, ledger = asyncio.run(load(server, seconds, requests, callers, dim))
            wrong = list(heard.wrong)
            # broken-off writes that the server had taken in are still being done
            time.sleep(2)
            ready = http.get("/readyz")
            wrong += [] if ready.status_code == 200 else [f"not ready at the end: {ready.text}"]
            with Client(server.url) as client:
                ids = [item.id for page in client.collection("soak").pages(with_vector=False) for item in page]
            twice = [id for id, count in Counter(ids).items() if count > 1]
            wrong += [f"listed twice: {twice[:5]}"] if twice else []
            wrong += ledger.differences(set(ids))
            count = http.get(COLLECTION).json()["count"]
            wrong += [] if count == len(ids) else [f"it counts {count} items and lists {len(ids)}"]
        code = server.terminate()
        wrong += [] if code == 0 else [f"SIGTERM ended it with {code}"]
        wrong += ["its log holds a traceback"] if "Traceback" in server.log.read_text() else []
    return Soak(heard, samples, wrong, max(seconds, samples[-1].at))


def judge_memory(done: Soak) -> list[str]:
    """Return sentences if the process grew after it had settled."""
    wrong = [] if done.growth <= MAY_GROW else [f"memory grew by {done.growth:.1%} after it had settled"]
    for name in ("files", "threads"):
        first, second = done.halves(name)
        wrong += [f"open {name} went from {first:.0f} to {second:.0f}"] if second > first + MAY_OPEN else []
    return wrong


def summary(done: Soak) -> str:
    """Return the outcomes, and what the process used in both halves after it had settled."""
    lines = [f"{done.heard.requests} requests in {done.seconds:.0f} s: {dict(done.heard.outcomes)}"]
    for name in ("rss", "files", "threads"):
        first, second = done.halves(name)
        lines.append(
            f"{name}: {first:.0f}, then {second:.0f}, at most {max(getattr(one, name) for one in done.samples):.0f}"
        )
    return "\n".join(lines)
