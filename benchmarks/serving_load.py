"""A load generator with low overhead: it sends requests over a number of connections or at a rate and prints JSON.

    python benchmarks/serving_load.py http://127.0.0.1:8000/api/v1/embed IMAGES --concurrency 32 --requests 640
    python benchmarks/serving_load.py http://127.0.0.1:8000/predict IMAGES --form json --rate 20 --requests 400

It builds all requests before the clock starts, so that the client takes little CPU time from the server.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import random
import statistics
import time
from pathlib import Path
from urllib.parse import urlsplit

import httptools
import uvloop

BOUNDARY = "nnclr-benchmark"


class Connection(asyncio.Protocol):
    """One request at a time."""

    def __init__(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._done: asyncio.Future[int] | None = None

    is_open = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: asyncio.Transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_message_complete(self) -> None:
        status = self._parser.get_status_code()
        self._parser = httptools.HttpResponseParser(self)
        assert self._done is not None
        self._done.set_result(status)

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_open = False
        if self._done is not None and not self._done.done():
            self._done.set_exception(exc or ConnectionResetError("closed by the server"))

    async def ask(self, request: bytes) -> int:
        """Send a request and return the status of the complete response."""
        self._done = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return await self._done


class Load:
    """Requests in turn, their latencies and statuses."""

    def __init__(self, url: str, requests: list[bytes]) -> None:
        parts = urlsplit(url)
        self._host, self._port = parts.hostname, parts.port
        self._requests = requests
        self._free: list[Connection] = []
        self.latencies: list[float] = []
        self.statuses: dict[int, int] = {}

    async def one(self, number: int, due: float | None = None) -> None:
        begun = time.perf_counter() if due is None else due
        connection = await self._connection()
        status = await connection.ask(self._requests[number % len(self._requests)])
        self.latencies.append(time.perf_counter() - begun)
        self.statuses[status] = self.statuses.get(status, 0) + 1
        self._free.append(connection)

    async def _connection(self) -> Connection:
        while self._free:
            connection = self._free.pop()
            if connection.is_open:  # the server closes connections that were idle for some seconds
                return connection
        return (await asyncio.get_running_loop().create_connection(Connection, self._host, self._port))[1]

    async def closed(self, count: int, concurrency: int) -> None:
        """Send the next request of each caller as soon as its response arrives."""
        numbers = iter(range(count))

        async def caller() -> None:
            for number in numbers:
                await self.one(number)

        await asyncio.gather(*(caller() for _ in range(concurrency)))

    async def opened(self, count: int, rate: float) -> None:
        """So many a second, whether earlier ones are answered or not."""
        moments = random.Random(0)
        due, tasks = time.perf_counter(), []
        for number in range(count):
            due += moments.expovariate(rate)
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            tasks.append(asyncio.create_task(self.one(number, due)))
        await asyncio.gather(*tasks)


def requests_of(url: str, images: list[bytes], each: int, form: str) -> list[bytes]:
    """HTTP requests with `each` images in every one, as many as there are images."""
    made = []
    for first in range(len(images)):
        chosen = [images[(first + i) % len(images)] for i in range(each)]
        if form == "multipart":
            parts = [
                f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="files"; filename="{i}.jpg"\r\n'
                "Content-Type: image/jpeg\r\n\r\n".encode()
                + data
                + b"\r\n"
                for i, data in enumerate(chosen)
            ]
            body, kind = b"".join(parts) + f"--{BOUNDARY}--\r\n".encode(), f"multipart/form-data; boundary={BOUNDARY}"
        elif form == "json":
            body, kind = json.dumps({"image": base64.b64encode(chosen[0]).decode()}).encode(), "application/json"
        else:
            body, kind = chosen[0], "application/json"  # the files are bodies already
        parts_of = urlsplit(url)
        head = f"POST {parts_of.path} HTTP/1.1\r\nHost: {parts_of.netloc}\r\nContent-Type: {kind}\r\n"
        made.append(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    return made


async def run(chosen: argparse.Namespace) -> dict[str, object]:
    images = [path.read_bytes() for path in sorted(Path(chosen.images).iterdir())]
    load = Load(chosen.url, requests_of(chosen.url, images, chosen.each, chosen.form))
    await load.closed(chosen.warm, min(chosen.warm, chosen.concurrency))
    load.latencies, load.statuses = [], {}
    begun, cpu = time.perf_counter(), time.process_time()
    if chosen.rate:
        await load.opened(chosen.requests, chosen.rate)
    else:
        await load.closed(chosen.requests, chosen.concurrency)
    seconds = time.perf_counter() - begun
    points = statistics.quantiles(load.latencies, n=1000, method="inclusive")
    return {
        "images_per_s": chosen.requests * chosen.each / seconds,
        "p50": points[499],
        "p95": points[949],
        "p99": points[989],
        "statuses": load.statuses,
        "client_cpu": (time.process_time() - cpu) / seconds,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("url")
    parser.add_argument("images", help="folder of the files to send")
    parser.add_argument("--form", choices=("multipart", "json", "body"), default="multipart")
    parser.add_argument("--each", type=int, default=1, help="images per request")
    parser.add_argument("--requests", type=int, default=320)
    parser.add_argument("--concurrency", type=int, default=32)
    parser.add_argument("--rate", type=float, help="requests per second, instead of a concurrency")
    parser.add_argument("--warm", type=int, default=32, help="requests before the measurement")
    print(json.dumps(uvloop.run(run(parser.parse_args()))))


if __name__ == "__main__":
    main()
