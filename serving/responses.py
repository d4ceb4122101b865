"""Answers that carry vectors: JSON as fast as it can be written, arrays, or bare bytes.

VectorResponse({"embedding": vector})           # vector: (D,) float32, written with the digits that float32 has
array_response(vectors, "application/x-npy")    # (N, D)
"""

from __future__ import annotations

import io
import json
import re
from typing import Any, Literal

import numpy as np
import orjson
from fastapi import Request
from fastapi.responses import JSONResponse, Response

NPY = "application/x-npy"
BYTES = "application/octet-stream"
JSON = "application/json"
PNG = "image/png"
DType = Literal["float32", "float16"]


class VectorResponse(JSONResponse):
    """JSON in which numpy arrays may stand for lists of numbers."""

    def render(self, content: Any) -> bytes:
        try:
            return orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY)
        except orjson.JSONEncodeError:  # metadata may hold integers beyond 64 bits
            return json.dumps(content, ensure_ascii=False, separators=(",", ":"), default=np.ndarray.tolist).encode()


def wanted(request: Request, *kinds: str) -> str:
    """The one of JSON and further kinds that the Accept header likes best; JSON where it likes none of them.

    What is said of a kind itself goes before what is said of all of its type, and that before `*/*` (RFC 9110, 12.5.1);
    of those that it likes alike the first that it names, and JSON of those that it does not name.
    """
    ranges: dict[str, float] = {}
    for part in request.headers.get("accept", "").lower().split(","):
        name, *parameters = (piece.strip() for piece in part.split(";"))
        ranges.setdefault(name, _quality(parameters))
    order = [*(name for name in ranges if name in kinds or name == JSON), JSON, *kinds]

    def liked(kind: str) -> float:
        return next((ranges[one] for one in (kind, f"{kind.partition('/')[0]}/*", "*/*") if one in ranges), 0.0)

    best = max(order, key=liked)  # the first of equals
    return best if liked(best) > 0 else JSON


def _quality(parameters: list[str]) -> float:
    """The weight that a kind has, in [0, 1]; what is no number counts as none given."""
    told = next((one[2:] for one in parameters if one.startswith("q=")), "1")
    return float(told) if re.fullmatch(r"0(\.\d*)?|1(\.0*)?", told) else 1.0


def array_response(vectors: np.ndarray, kind: str, dtype: DType = "float32") -> Response:
    """Vectors (N, D) as numpy's file, or as bare little-endian numbers row by row whose shape is in a header."""
    rows = np.ascontiguousarray(vectors, {"float32": "<f4", "float16": "<f2"}[dtype])
    headers = {"X-Shape": ",".join(map(str, rows.shape)), "X-DType": dtype, "Vary": "Accept"}
    if kind == BYTES:
        return Response(rows.tobytes(), media_type=BYTES, headers=headers)
    file = io.BytesIO()
    np.save(file, rows)
    return Response(file.getvalue(), media_type=NPY, headers=headers)
