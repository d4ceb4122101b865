"""The server next to the library's own bulk embedding, a plain FastAPI handler, and a bare search of the store.

    python benchmarks/serving.py                                                # ResNet-50 at 224, everything
    python benchmarks/serving.py --model random:test_resnet --requests 64 --turns 1 --items 2000

Ratios are the result. All sides take turns in this run, and a side that is not measured is suspended. The client is a
separate process on the same cores, which builds its requests before the clock starts. Images are 64 crops of 480 x 360
from scikit-image's photos. Measured are

    images/s, one a request at concurrency 32, over Encoder.embed on the same images           at least 0.9
    images/s, 64 a request at concurrency 2, over the same                                     at least 0.95
    images/s over a FastAPI handler with timm in torch fp32                                    at least 1.3
    p50 of a search by a vector over REST less p50 of the bare call of the store               at most 3 ms

    python benchmarks/serving.py --other ../old --model local-dir:SMALL --requests 640 --turns 10

compares another checkout, whose environment is its .venv, with this one instead: the CPU time of the server and its
decoding processes for an image of 128 x 128 pixels, one a request, less that of the network alone at the same mean
batch. That is HTTP, decoding, and what hands an image over. A small network shows it best.
"""

import argparse
import asyncio
import base64
import io
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
from PIL import Image
from report import Report, cpu_seconds, make_images, seconds, spread
from server_process import ServerProcess
from store_data import Clusters
from waiting import free_port

from nnclr_hub import CollectionSpec, Item, load_encoder, open_store

TINY = "random:test_resnet@0"  # where the model does not matter
DIM, QUERIES, BOUNDARY = 256, 300, "nnclr-benchmark"


def main() -> None:
    if sys.argv[1:2] == ["--side"]:
        return {"bulk": bulk, "plain": plain, "load": load, "network": network}[sys.argv[2]](*sys.argv[3:])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="random:resnet50@0")
    parser.add_argument("--requests", type=int, default=640, help="images a turn of each side")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--items", type=int, default=100_000, help="items of the search")
    parser.add_argument("--other", type=Path, help="another checkout; compare only the CPU time of one image with it")
    parser.add_argument("--json", type=Path, help="file for the results")
    chosen = parser.parse_args()
    report = Report(chosen.json)
    report.begin(model=chosen.model, requests=chosen.requests, turns=chosen.turns, items=chosen.items)
    with tempfile.TemporaryDirectory() as scratch:
        if chosen.other:
            return compare(report, chosen, Path(scratch))
        embed(report, chosen, Path(scratch))
        search(report, chosen, Path(scratch))


def embed(report: Report, chosen: argparse.Namespace, folder: Path) -> None:
    images, port = make_images(folder / "images", 64, (480, 360)), free_port()
    ratios: dict[str, list[float]] = {"one a request over bulk": [], "64 a request over bulk": [], "over FastAPI": []}
    server = ServerProcess(folder / "store", model=chosen.model)
    with server, side("bulk", chosen.model, images) as bulk, side("plain", chosen.model, port) as handler:
        assert bulk.stdout is not None
        assert bulk.stdin is not None
        bulk.stdout.readline()
        url, plain_url = f"{server.url}/api/v1/embed", f"http://127.0.0.1:{port}/predict"
        measure(plain_url, images, requests=2, concurrency=1, patience=120)  # waits until it serves
        for pid in (server.pid, bulk.pid, handler.pid):
            os.kill(pid, signal.SIGSTOP)
        for _ in range(chosen.turns):
            with awake(bulk.pid):
                bulk.stdin.write(f"{chosen.requests}\n")
                bulk.stdin.flush()
                alone = float(bulk.stdout.readline())
            with awake(server.pid):
                one = measure(url, images, requests=chosen.requests, concurrency=32)["images_per_s"]
                many = measure(url, images, each=64, requests=max(2, chosen.requests // 64), concurrency=2)
            with awake(handler.pid):
                other = measure(plain_url, images, requests=chosen.requests, concurrency=32)["images_per_s"]
            for name, ratio in zip(ratios, (one / alone, many["images_per_s"] / alone, one / other), strict=True):
                ratios[name].append(ratio)
            report.say("turn", [alone, one, other], f"images/s: bulk {alone:.4g}, ours {one:.4g}, FastAPI {other:.4g}")
        for pid in (server.pid, bulk.pid, handler.pid):
            os.kill(pid, signal.SIGCONT)
    for name, values in ratios.items():
        report.say(name, values, f"images/s, {name}: {spread(values)}")


def search(report: Report, chosen: argparse.Namespace, folder: Path) -> None:
    """Measure a search by vector over REST and in the store, one at a time, on the same store and queries."""
    place, bodies, clusters = folder / "search", folder / "bodies", Clusters(chosen.items, DIM)
    queries = clusters.queries(QUERIES)
    with open_store(str(place)) as store:
        collection = store.create("photos", CollectionSpec(DIM))
        for rows in clusters.chunks():
            collection.upsert([Item(*row) for row in zip(rows.ids(), rows.vectors, rows.metadata(), strict=True)])
        collection.compact()
    bodies.mkdir()
    for number, query in enumerate(queries):
        vector = base64.b64encode(query.astype("<f4").tobytes()).decode()
        (bodies / f"{number:04}.json").write_text(json.dumps({"vector": vector, "k": 10}))
    over, bare = [], []
    with ServerProcess(place, model=TINY) as server, open_store(str(place), read_only=True) as store:
        collection, url = store.get("photos"), f"{server.url}/api/v1/collections/photos/search"
        for _ in range(chosen.turns):
            there = measure(url, bodies, requests=QUERIES, concurrency=1)["p50"]
            times = [seconds(collection.search, query, 10) for query in queries]
            bare.append(1000 * statistics.median(times))
            over.append(1000 * there - bare[-1])
    report.say("search", {"over_ms": over, "bare_ms": bare}, f"REST adds {spread(over)} ms to p50 {spread(bare)} ms")


def compare(report: Report, chosen: argparse.Namespace, folder: Path) -> None:
    """Measure the CPU time of one image beyond the network, in turns with another checkout."""
    images, sizes = make_images(folder / "images", 64, (128, 128)), (1, 2, 4, 8, 16, 32)
    os.environ["OMP_NUM_THREADS"] = "1"
    roots = {"other": chosen.other.resolve(), "this": Path(__file__).resolve().parents[1]}
    command = [sys.executable, __file__, "--side", "network", chosen.model, *map(str, sizes)]
    alone = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    servers = {name: Checkout(root, folder / name, model=chosen.model) for name, root in roots.items()}
    costs: dict[tuple[int, str], list[float]] = {}
    with servers["other"], servers["this"]:
        for server in servers.values():
            measure(f"{server.url}/api/v1/embed", images, requests=300, concurrency=32)
        for turn in range(chosen.turns):
            order = sorted(servers, reverse=turn % 2 == 1)
            for connections, name in ((number, name) for number in (1, 32) for name in order):
                server = servers[name]
                before = tree_seconds(server.pid), *passes(server.url)
                measure(f"{server.url}/api/v1/embed", images, requests=chosen.requests, concurrency=connections)
                spent, count, batches = np.subtract((tree_seconds(server.pid), *passes(server.url)), before)
                beyond = 1000 * spent / count - np.interp(count / batches, sizes, alone)
                costs.setdefault((connections, name), []).append(float(beyond))
    for connections in (1, 32):
        ours, theirs = costs[connections, "this"], costs[connections, "other"]
        both = f"{statistics.median(ours):.2f} and {statistics.median(theirs):.2f} ms"
        ratios = [one / other for one, other in zip(ours, theirs, strict=True)]
        report.say(f"{connections} at once", [ours, theirs], f"{connections} at once: {both}, ratio {spread(ratios)}")


# ------------------------------------------------------------------------------ processes


class Checkout(ServerProcess):
    """A server with the code and the environment of another checkout."""

    def __init__(self, root: Path, store: Path, **options: Any) -> None:
        run = f"import sys; sys.path[0] = {str(root)!r}; from nnclr_hub.cli import main; main()"
        super().__init__(store, program=("-c", run), **options)
        self._command[0] = str(root / ".venv/bin/python")


def tree_seconds(pid: int) -> float:
    """Return the CPU seconds of a process and its children."""
    threads = list(Path(f"/proc/{pid}/task").iterdir())
    own = sum(int((one / "schedstat").read_text().split()[0]) for one in threads) / 1e9
    return own + sum(tree_seconds(int(child)) for one in threads for child in (one / "children").read_text().split())


def passes(url: str) -> list[float]:
    """Return how many images and batches the network has had."""
    lines = urllib.request.urlopen(f"{url}/metrics").read().decode().splitlines()
    names = [f"nnclr_batch_images_{kind}{{" for kind in ("sum", "count")]
    return [sum(float(line.split()[-1]) for line in lines if line.startswith(name)) for name in names]


def network(model: str, *sizes: str) -> None:
    """Print the CPU milliseconds of the network for an image, by size of the batch."""
    encoder = load_encoder(model, backend=os.environ.get("NNCLR_BACKEND", "auto"))
    side, found = encoder.transform.preprocessing.input_size, []
    for size in map(int, sizes):
        crops = np.random.default_rng(0).integers(0, 256, (size, side, side, 3), np.uint8)
        times = [cpu_seconds(encoder.forward_crops, crops) for _ in range(60)]
        found.append(1000 * statistics.median(times) / size)
    print(json.dumps(found))


@contextmanager
def side(name: str, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, __file__, "--side", name, *map(str, arguments)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@contextmanager
def awake(pid: int) -> Iterator[None]:
    """Let a suspended process run; the decoding processes of a server have nothing to do without it."""
    os.kill(pid, signal.SIGCONT)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGSTOP)


def measure(url: str, files: Path, *, requests: int, concurrency: int, each: int = 1, patience: float = 0) -> dict:
    """Return what `load` measures in its own process; retry until `patience` if nothing listens yet."""
    command = [sys.executable, __file__, "--side", "load", url, str(files), str(requests), str(concurrency), str(each)]
    end = time.monotonic() + patience
    while (done := subprocess.run(command, capture_output=True, text=True)).returncode and time.monotonic() < end:
        time.sleep(0.5)
    if done.returncode:
        raise SystemExit(f"{url}: {done.stderr}")
    return json.loads(done.stdout)


def bulk(model: str, images: str) -> None:
    """Embed as many images as each line of standard input says, and print images/s."""
    encoder = load_encoder(model, backend="auto")
    files = [path.read_bytes() for path in sorted(Path(images).iterdir())]
    encoder.embed(files[:2])  # type: ignore[arg-type]
    print("ready", flush=True)
    for line in sys.stdin:
        some = (files * (int(line) // len(files) + 1))[: int(line)]
        print(len(some) / seconds(encoder.embed, some), flush=True)


def plain(model: str, port: str) -> None:
    """Serve timm's network and transform by a FastAPI handler, in torch fp32."""
    import torch
    import uvicorn
    from fastapi import FastAPI, UploadFile

    encoder, app = load_encoder(model, backend="torch", device="cpu"), FastAPI()
    network = encoder.backbone.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]

    @app.post("/predict")
    @torch.inference_mode()
    def predict(files: UploadFile) -> dict[str, list[float]]:
        image = Image.open(io.BytesIO(files.file.read())).convert("RGB")
        return {"embedding": torch.nn.functional.normalize(network(encoder.transform(image)[None]))[0].tolist()}

    uvicorn.run(app, host="127.0.0.1", port=int(port), log_level="warning")


def load(url: str, files: str, requests: str, concurrency: str, each: str) -> None:
    """Send requests over `concurrency` connections and print images/s and the median latency."""
    import httptools
    import uvloop

    parts, blobs = urlsplit(url), [path.read_bytes() for path in sorted(Path(files).iterdir())]
    messages = [message(parts.path, parts.netloc, blobs, first, int(each)) for first in range(len(blobs))]
    latencies: list[float] = []

    class Answer:
        complete = False

        def on_message_complete(self) -> None:
            self.complete = True

    async def caller(numbers: Iterator[int]) -> None:
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port, limit=2**24)
        for number in numbers:
            begun, answer = time.perf_counter(), Answer()
            parser = httptools.HttpResponseParser(answer)
            writer.write(messages[number % len(messages)])
            while not answer.complete:
                parser.feed_data(await reader.read(2**20) or exit("closed by the server"))
            latencies.append(time.perf_counter() - begun)
            if parser.get_status_code() != 200:
                exit(f"status {parser.get_status_code()}")
        writer.close()

    async def run() -> None:
        numbers = iter(range(int(requests)))
        await asyncio.gather(*(caller(numbers) for _ in range(int(concurrency))))

    taken = seconds(uvloop.run, run())
    print(json.dumps({"images_per_s": int(requests) * int(each) / taken, "p50": statistics.median(latencies)}))


def message(path: str, host: str, blobs: list[bytes], first: int, each: int) -> bytes:
    """Return a request: JSON as it is, or a form with `each` images."""
    if blobs[0].startswith(b"{"):
        body, kind = blobs[first], "application/json"
    else:
        head = 'Content-Disposition: form-data; name="files"; filename="a.jpg"\r\nContent-Type: image/jpeg\r\n\r\n'
        parts = (blobs[(first + number) % len(blobs)] for number in range(each))
        body = b"".join(f"--{BOUNDARY}\r\n{head}".encode() + part + b"\r\n" for part in parts)
        body, kind = body + f"--{BOUNDARY}--\r\n".encode(), f"multipart/form-data; boundary={BOUNDARY}"
    lines = f"POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
    return lines.encode() + body


if __name__ == "__main__":
    main()
