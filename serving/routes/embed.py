"""POST /api/v1/embed: files in, vectors out, each file for itself."""

from __future__ import annotations

import io
from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, File, Form, Request, UploadFile
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse, Response

from nnclr_hub.errors import ImageError, RequestTooLarge

from ..models import public_name
from ..problems import problem
from .state import AppEngines, AppSettings, served_engine

router = APIRouter(prefix="/api/v1", tags=["embed"])
NPY = "application/x-npy"


@router.post("/embed")
async def embed(
    request: Request,
    files: Annotated[list[UploadFile], File(description="pictures")],
    engines: AppEngines,
    settings: AppSettings,
    model: Annotated[str | None, Form()] = None,
) -> Response:
    """Vectors of pictures: 200 if any could be read, else 422. With Accept: application/x-npy all must be."""
    if len(files) > settings.max_images:
        raise RequestTooLarge(
            f"{len(files)} pictures are too many for one request: send at most {settings.max_images}."
        )
    engine = await run_in_threadpool(served_engine, engines, model)
    results = await engine.embed_each_async([await file.read() for file in files])
    broken = [
        {"index": i, "name": files[i].filename, "code": result.code, "detail": str(result)}
        for i, result in enumerate(results)
        if isinstance(result, ImageError)
    ]
    as_npy = NPY in request.headers.get("accept", "")
    if len(broken) == len(files) or (as_npy and broken):
        detail = f"{len(broken)} of {len(files)} pictures could not be read; the first: {broken[0]['detail']}"
        return problem(request.url.path, 422, "undecodable_image", detail, items=broken)
    if as_npy:
        array = io.BytesIO()
        np.save(array, np.stack([result for result in results if isinstance(result, np.ndarray)]))
        return Response(array.getvalue(), media_type=NPY)
    data: list[dict[str, Any]] = []
    for index, (file, result) in enumerate(zip(files, results, strict=True)):
        entry: dict[str, Any] = {"index": index, "name": file.filename}
        if isinstance(result, ImageError):
            entry["error"] = {"code": result.code, "detail": str(result)}
        else:
            entry["embedding"] = result.tolist()
        data.append(entry)
    return JSONResponse({"model": public_name(engine.name), "dim": engine.embed_dim, "data": data})
