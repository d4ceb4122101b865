"""Responses with vectors: fast JSON, NumPy files, or raw bytes; and the choice between them.

VectorResponse({"embedding": vector})           # vector: (D,) float32, written with the digits of float32
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
    """JSON whose content may hold NumPy arrays in place of lists of numbers."""

    def render(self, content: Any) -> bytes:
        try:
            return orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY)
        except orjson.JSONEncodeError:  # metadata may hold integers beyond 64 bits
            return json.dumps(content, ensure_ascii=False, separators=(",", ":"), default=np.ndarray.tolist).encode()


def wanted(request: Request, *kinds: str) -> str:
    """Return the media type among JSON and `kinds` that the Accept header prefers; JSON if it accepts none.

    An exact type has precedence over `type/*`, and that over `*/*` (RFC 9110, section 12.5.1). Of equal qualities, the
    first named type wins, then JSON.
    """
    ranges: dict[str, float] = {}
    for part in request.headers.get("accept", "").lower().split(","):
        name, *parameters = (piece.strip() for piece in part.split(";"))
        ranges.setdefault(name, _quality(parameters))
    order = [*(name for name in ranges if name in kinds or name == JSON), JSON, *kinds]

    def quality(kind: str) -> float:
        return next((ranges[one] for one in (kind, f"{kind.partition('/')[0]}/*", "*/*") if one in ranges), 0.0)

    best = max(order, key=quality)  # the first of equals
    return best if quality(best) > 0 else JSON


def _quality(parameters: list[str]) -> float:
    """Return the quality value in [0, 1]; 1 if it is missing or malformed."""
    text = next((one[2:] for one in parameters if one.startswith("q=")), "1")
    return float(text) if re.fullmatch(r"0(\.\d*)?|1(\.0*)?", text) else 1.0


def array_response(vectors: np.ndarray, kind: str, dtype: DType = "float32") -> Response:
    """Return vectors (N, D) as a NumPy file, or as raw little-endian numbers with the shape in a header."""
    rows = np.ascontiguousarray(vectors, {"float32": "<f4", "float16": "<f2"}[dtype])
    headers = {"X-Shape": ",".join(map(str, rows.shape)), "X-DType": dtype, "Vary": "Accept"}
    if kind == BYTES:
        return Response(rows.tobytes(), media_type=BYTES, headers=headers)
    file = io.BytesIO()
    np.save(file, rows)
    return Response(file.getvalue(), media_type=NPY, headers=headers)
