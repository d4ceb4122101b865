"""The server's simplest peer: a FastAPI handler around timm's model and transform, in torch fp32.

python benchmarks/serving_plain.py MODEL PORT
"""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import timm
import timm.data
import torch
import uvicorn
from fastapi import FastAPI, UploadFile
from PIL import Image

from nnclr_hub.hub.sources import resolve


def timm_model(source: str) -> tuple[torch.nn.Module, Callable[[Image.Image], torch.Tensor]]:
    """Return timm's network and transform of a source: a published encoder, or random:NAME@SEED."""
    if source.startswith("random:"):
        network = timm.create_model(source.partition(":")[2].partition("@")[0], num_classes=0)
    else:
        network = timm.create_model(f"local-dir:{resolve(source).folder}", num_classes=0)
    transform = timm.data.create_transform(**timm.data.resolve_model_data_config(network), is_training=False)
    return network.eval(), transform  # type: ignore[return-value]


def main() -> None:
    source, port = sys.argv[1:]
    network, transform = timm_model(source)
    app = FastAPI()

    @app.get("/health")
    def health() -> str:
        return "ok"

    @app.post("/predict")
    @torch.inference_mode()
    def predict(files: UploadFile) -> dict[str, list[float]]:
        image = Image.open(io.BytesIO(files.file.read())).convert("RGB")
        vectors = torch.nn.functional.normalize(network(transform(image)[None]))
        return {"embedding": vectors[0].tolist()}

    uvicorn.run(app, host="127.0.0.1", port=int(port), log_level="warning")


if __name__ == "__main__":
    main()
