"""How fast a folder goes to a server: `index_folder` against the loop of requests that one would write.

    python benchmarks/uploads.py --images 400 --rounds 3

Both send the same files to the same server, into collections of their own, in turns; the loop posts one image after
another over one connection, and the same with 16 images a request.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import numpy as np
from PIL import Image

if __name__ == "__main__":  # the checkout, wherever it is called from
    sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.server_process import ServerProcess
from nnclr_hub import Client
from nnclr_hub.client.pictures import bounded


def make_folder(folder: Path, count: int) -> list[Path]:
    """JPEGs of 640 x 480, about 50 KB each."""
    rng, paths = np.random.default_rng(0), []
    folder.mkdir()
    for i in range(count):
        coarse = Image.fromarray(rng.integers(0, 255, (30, 40, 3), dtype=np.uint8))
        file = io.BytesIO()
        coarse.resize((640, 480), Image.Resampling.BICUBIC).save(file, "JPEG", quality=90)
        paths.append(folder / f"{i:05}.jpg")
        paths[-1].write_bytes(file.getvalue())
    return paths


def loop(http: httpx.Client, name: str, paths: list[Path], size: int) -> None:
    """One request after another with `size` images each."""
    for batch in bounded(paths, lambda path: 0, most=size):
        files = [("files", (path.name, path.read_bytes())) for path in batch]
        items = json.dumps([{"id": path.stem} for path in batch])
        http.post(f"/api/v1/collections/{name}/items", files=files, data={"items": items}).raise_for_status()


def main() -> None:
    """Runs all forms in turns and prints medians and ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pictures", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--model", help="source of the encoder; the best starter by default")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        paths = make_folder(Path(scratch) / "pictures", chosen.pictures)
        with (
            ServerProcess(Path(scratch) / "store", model=chosen.model) as server,
            Client(server.url) as client,
            httpx.Client(base_url=server.url, timeout=120) as http,
        ):
            forms: dict[str, Callable[[str], object]] = {
                "a loop, one picture a request": lambda name: loop(http, name, paths, 1),
                "a loop, 16 pictures a request": lambda name: loop(http, name, paths, 16),
                "index_folder": lambda name: client.collection(name).index_folder(
                    paths[0].parent, workers=chosen.workers
                ),
            }
            seconds: dict[str, list[float]] = {form: [] for form in forms}
            for turn in range(chosen.rounds):
                for i, (form, send) in enumerate(forms.items()):
                    name = f"c{turn}-{i}"
                    client.collections.create(name)
                    begun = time.perf_counter()
                    send(name)
                    seconds[form].append(time.perf_counter() - begun)
                    assert client.collection(name).count() == len(paths)
                    client.collections.drop(name)
    base = statistics.median(next(iter(seconds.values())))
    shape = f"{os.cpu_count()} cores, {chosen.workers} workers, {chosen.rounds} rounds"
    print(f"{chosen.pictures} JPEGs of 640 x 480, {shape}")
    for form, taken in seconds.items():
        median = statistics.median(taken)
        print(f"{form:32} {chosen.pictures / median:7.0f} images/s   {base / median:5.2f} x the first")


if __name__ == "__main__":
    main()
