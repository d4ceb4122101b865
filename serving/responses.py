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
    """The one of JSON and further kinds that the Accept header likes best; JSON where it names none of them.

    Of those that it likes alike (RFC 9110, 12.5.1) the first that it names.
    """
    best, weight = JSON, 0.0
    for part in request.headers.get("accept", "").lower().split(","):
        kind, *parameters = (piece.strip() for piece in part.split(";"))
        quality = _quality(parameters)
        found = next((one for one in (JSON, *kinds) if kind == one or kind == f"{one.partition('/')[0]}/*"), None)
        if found is not None and quality > weight:
            best, weight = found, quality
    return best


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
