"""LitServe as the server's peer: JSON with base64 in, JSON with numbers out.

    python benchmarks/serving_litserve.py same MODEL PORT       # with this library's decoding and forward pass
    python benchmarks/serving_litserve.py usual MODEL PORT      # as in its examples: timm, torch fp32

The classes are at module level because LitServe's workers are other processes, which must import them.
"""

from __future__ import annotations

import base64
import io
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import litserve
import numpy as np
import torch
from PIL import Image
from serving_plain import timm_model

from nnclr_hub import load_encoder

BATCH, WAIT_S = 32, 0.002  # as the server's own settings


class Same(litserve.LitAPI):
    """LitServe with our decoding and forward pass: only the server differs."""

    model = ""

    def setup(self, device: str) -> None:
        self.encoder = load_encoder(self.model, backend="auto")

    def decode_request(self, request: dict[str, str]) -> np.ndarray:
        return self.encoder.prepare(base64.b64decode(request["image"]))

    def batch(self, inputs: list[np.ndarray]) -> np.ndarray:
        return np.stack(inputs)

    def predict(self, x: np.ndarray) -> np.ndarray:
        return self.encoder.forward_crops(x)

    def unbatch(self, output: np.ndarray) -> list[np.ndarray]:
        return list(output)

    def encode_response(self, output: np.ndarray) -> dict[str, list[float]]:
        return {"embedding": output.tolist()}


class Usual(litserve.LitAPI):
    """timm's model and transform, torch fp32."""

    model = ""

    def setup(self, device: str) -> None:
        self.network, self.transform = timm_model(self.model)
        self.network.to(device)

    def decode_request(self, request: dict[str, str]) -> torch.Tensor:
        image = Image.open(io.BytesIO(base64.b64decode(request["image"]))).convert("RGB")
        return self.transform(image)  # type: ignore[return-value]

    def batch(self, inputs: list[torch.Tensor]) -> torch.Tensor:
        return torch.stack(inputs)

    @torch.inference_mode()
    def predict(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.normalize(self.network(x))

    def unbatch(self, output: torch.Tensor) -> list[torch.Tensor]:
        return list(output)

    def encode_response(self, output: torch.Tensor) -> dict[str, list[float]]:
        return {"embedding": output.tolist()}


def main() -> None:
    kind, model, port = sys.argv[1:]
    api = {"same": Same, "usual": Usual}[kind](max_batch_size=BATCH, batch_timeout=WAIT_S)
    api.model = model
    # its faster transport for the peer that is to be beaten on serving alone; the other stays as a user starts it
    server = litserve.LitServer(api, accelerator="cpu", fast_queue=kind == "same")
    server.run(host="127.0.0.1", port=int(port), generate_client_file=False, log_level="warning")


if __name__ == "__main__":
    main()
