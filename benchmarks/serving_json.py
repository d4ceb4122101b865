"""How fast vectors become JSON: this server's response class over the framework's own, and over its response model.

    python benchmarks/serving_json.py

64 vectors of 2048 float32, as /api/v1/embed answers with. Each way is timed in turn, the best of several rounds.
"""

from __future__ import annotations

import json
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
from fastapi.responses import JSONResponse
from pydantic import TypeAdapter

from serving.responses import VectorResponse
from serving.schemas import EmbedResponse

ROUNDS = 7


def body(vectors: np.ndarray, as_list: bool) -> dict:
    """An answer of /api/v1/embed."""
    rows = [{"index": i, "name": f"{i}.jpg", "embedding": v.tolist() if as_list else v} for i, v in enumerate(vectors)]
    return {"model": "m", "dim": vectors.shape[1], "data": rows}


def main() -> None:
    vectors = np.random.default_rng(0).normal(size=(64, 2048)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    adapter = TypeAdapter(EmbedResponse)
    ways: dict[str, Callable[[], bytes]] = {
        "JSONResponse": lambda: bytes(JSONResponse(body(vectors, True)).body),
        "response model": lambda: adapter.dump_json(adapter.validate_python(body(vectors, True))),
        "VectorResponse": lambda: bytes(VectorResponse(body(vectors, False)).body),
    }
    best = dict.fromkeys(ways, float("inf"))
    for _ in range(ROUNDS):
        for name, write in ways.items():
            begun = time.perf_counter()
            text = write()
            best[name] = min(best[name], time.perf_counter() - begun)
            got = np.float32([row["embedding"] for row in json.loads(text)["data"]])
            assert np.array_equal(got, vectors), name
    print(f"python benchmarks/serving_json.py   {platform.processor() or platform.machine()}")
    for name, seconds in best.items():
        size = len(ways[name]())
        ratio = best["JSONResponse"] / seconds
        print(f"{name:16} {1000 * seconds:8.2f} ms {size:10,} bytes   {ratio:6.1f} x JSONResponse")


if __name__ == "__main__":
    main()
