"""Any network as an Encoder: a CLIP tower, DINOv2, torchvision, an ONNX session, your own function.

    encoder = wrap_encoder(model.visual, preprocess, "clip-vit-b32", 512)      # open_clip's transform
    encoder = wrap_encoder(network, Preprocessing(input_size=518), "dinov2", 384)
    encoder.embed(["cat.jpg"])

The result works wherever an Encoder does: index, search, serve, probe, re-embed. On the command line,
`--model python:FILE.py:NAME` takes NAME from a file of yours: an Encoder, or a function that returns one.
"""

from __future__ import annotations

import hashlib
import json
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from nnclr_hub.arguments import checked
from nnclr_hub.encoder.encoder import BATCH, Encoder
from nnclr_hub.encoder.fingerprint import hash_state
from nnclr_hub.encoder.preprocessing import EvalTransform, Preprocessing, Transform
from nnclr_hub.errors import InvalidRequest, NNCLRHubError, UnknownModel
from nnclr_hub.hub.sources import PYTHON
from nnclr_hub.images.channels import AnyImage
from nnclr_hub.images.decode import with_bands

PROBE = 96  # pixels of the image that a transform is tried on


class WrappedTransform(Transform):
    """A function from an RGB image to the network's input, in the place of `EvalTransform`.

    Its crops are (S, S, 3) float32 and normalized, so `preprocessing` describes the identity.

    Args:
        function: PIL RGB image -> (3, S, S) float tensor or array; as torchvision, timm and open_clip build them.

    Raises:
        InvalidRequest: it returns anything else.
    """

    def __init__(self, function: Callable[[Image.Image], Any]) -> None:
        self._function = function
        probe = self.crop(_probe_image())
        if probe.shape[0] != probe.shape[1] or probe.shape[2] != 3:
            raise InvalidRequest(f"The transform must return (3, S, S), got {probe.transpose(2, 0, 1).shape}.")
        self.preprocessing = Preprocessing(len(probe), 1.0, (0.0, 0.0, 0.0), (1 / 255,) * 3)
        # rounded, because versions of Pillow differ in the last digits
        self.identity = [len(probe), *(round(float(one), 2) for one in (*probe.mean((0, 1)), *probe.std((0, 1))))]

    def crop(self, image: AnyImage) -> np.ndarray:
        result = self._function(with_bands(image, 3))  # type: ignore[arg-type]
        result = result.numpy(force=True) if isinstance(result, Tensor) else np.asarray(result)
        if result.ndim != 3 or result.dtype.kind != "f":
            raise InvalidRequest(
                f"The transform must return (3, S, S) float, got shape {result.shape} of {result.dtype}."
            )
        return np.ascontiguousarray(result.transpose(1, 2, 0), np.float32)

    def resized(self, image: AnyImage, size: tuple[int, int]) -> np.ndarray:
        """Raise InvalidRequest: attention needs images of any size, and the function returns one size."""
        raise InvalidRequest("Attention maps need wrap_encoder(..., transform=Preprocessing(...)), not a function.")

    def normalize(self, crops: np.ndarray | Tensor) -> Tensor:
        return torch.as_tensor(crops).float().permute(0, 3, 1, 2)


class WrappedNetwork(nn.Module):
    """A module or function (B, 3, S, S) float32 -> (B, D) without timm's attributes; it has vectors only.

    Args:
        network: called with a tensor; may return a tensor or an array.
    """

    def __init__(self, network: nn.Module | Callable[[Tensor], Any], dim: int) -> None:
        super().__init__()
        self.network = network
        self.num_features = dim

    def forward(self, x: Tensor) -> Tensor:
        """Compute (B, D) float32."""
        found = self.network(x)
        if not isinstance(found, Tensor):
            found = torch.as_tensor(np.asarray(found, np.float32), device=x.device)
        if found.shape != (len(x), self.num_features):
            raise InvalidRequest(
                f"The network must return {(len(x), self.num_features)} for {len(x)} images, got {tuple(found.shape)}."
            )
        if not found.isfinite().all():
            raise InvalidRequest("The network returned NaN or infinity; check its weights and its input.")
        return found.float()


@checked
def wrap_encoder(
    network: nn.Module | Callable[[Tensor], Any],
    transform: Preprocessing | Callable[[Image.Image], Any],
    name: str,
    dim: int,
    *,
    fingerprint: str | None = None,
    device: str | torch.device | None = None,
    batch_size: int = BATCH,
) -> Encoder:
    """Return an Encoder of any network.

    Args:
        network: a module, which is put in evaluation mode, or a function: (B, 3, S, S) float32 -> (B, D).
        transform: a function: PIL RGB image -> (3, S, S) float; or a `Preprocessing`, with which networks that follow
            timm's interface (`forward_features`, `num_features`) also have feature maps and attention.
        name: name of the encoder, for people.
        dim: D, the length of a vector.
        fingerprint: identity of the vectors; a collection refuses vectors of another one. Default: a hash of the
            weights and the input. A function has no weights to hash, so its name and dim are used: give a changed
            function another name.
        device: for a module; None: the GPU if there is one. A function runs where it wants to and gets a CPU tensor.

    Raises:
        InvalidRequest: the network or the transform returns something else, or name or dim is invalid.
    """
    if not name or dim < 1:
        raise InvalidRequest(f"wrap_encoder needs a name and a dim of 1 or more, got {name!r} and {dim}.")
    is_module = isinstance(network, nn.Module)
    prepared = EvalTransform(transform) if isinstance(transform, Preprocessing) else WrappedTransform(transform)
    backbone: nn.Module = WrappedNetwork(network, dim)
    if isinstance(network, nn.Module) and hasattr(network, "forward_features"):  # timm's interface
        backbone = network if getattr(network, "num_features", None) == dim else backbone
    encoder = Encoder(
        backbone,
        prepared,
        name=name,
        device=device if is_module else "cpu",
        batch_size=batch_size,
        fingerprint=fingerprint or _identity(network, prepared, name, dim),
    )
    encoder.embed([_probe_image()])  # a network that does not fit fails here, not in the first request
    return encoder


def _identity(network: nn.Module | Callable[[Tensor], Any], transform: Transform, name: str, dim: int) -> str:
    steps = transform.identity if isinstance(transform, WrappedTransform) else transform.preprocessing.steps
    digest = hashlib.sha256(json.dumps([type(network).__name__, dim, steps], sort_keys=True).encode())
    if isinstance(network, nn.Module):
        hash_state(digest, network)
    else:
        digest.update(name.encode())
    return digest.hexdigest()[:32]


def _probe_image() -> Image.Image:
    ramp = np.linspace(0, 255, PROBE).astype(np.uint8)
    return Image.fromarray(np.stack(np.broadcast_arrays(ramp[None], ramp[:, None], ramp[::-1][None]), axis=-1))


def load_from_file(source: str) -> Encoder:
    """Return the encoder of `python:FILE.py:NAME`: run the file, and take NAME from it."""
    file, _, attribute = source.removeprefix(PYTHON).rpartition(":")
    path = Path(file).expanduser()
    if not path.is_file() or not attribute.isidentifier():
        raise UnknownModel(f"{source!r} does not name an encoder; write python:FILE.py:NAME with an existing file.")
    try:
        names = runpy.run_path(str(path))
        if attribute not in names:
            raise UnknownModel(
                f"{path} does not define {attribute!r}; name an encoder, or a function that returns one."
            )
        found = names[attribute]
        if callable(found) and not isinstance(found, Encoder):
            found = found()
    except NNCLRHubError:
        raise
    except Exception as error:
        raise InvalidRequest(f"{path} failed with {type(error).__name__}: {error}") from error
    if not isinstance(found, Encoder):
        raise InvalidRequest(f"{attribute} of {path} must be an Encoder or a function that returns one.")
    found.name = f"{PYTHON}{path.resolve()}:{attribute}"
    return found
