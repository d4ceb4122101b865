"""Outputs: what a network makes of images, and how long it is.

backbone = create_backbone("resnet50")
vector_length(backbone)                         # 2048
feature_map(backbone, x)                        # (B, h, w, 2048)
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from nnclr_hub.errors import InvalidRequest


def vector_length(backbone: nn.Module) -> int:
    """D of the network's vectors (B, D).

    Of a network that ends in a hidden layer behind its pool, as MobileNetV3 does, it is that layer's, and not
    the depth of its feature map.
    """
    behind = getattr(backbone, "head_hidden_size", None)
    return int(behind or backbone.num_features)  # type: ignore[arg-type]


def pooling(backbone: nn.Module) -> str:
    """How the network pools: "avg", "token", ..."""
    pool = getattr(backbone, "global_pool", "avg")
    return pool if isinstance(pool, str) else str(getattr(pool, "pool_type", "avg"))


def feature_map(backbone: nn.Module, x: Tensor) -> Tensor:
    """The last stage before pooling: (B, 3, H, W) -> (B, h, w, D).

    A ResNet's is the output of stage 4 after its ReLU, a vision transformer's the patch tokens after
    the last norm, without [CLS] and other prefix tokens. A norm that comes behind the pool is taken of each
    cell, so that cells lie where the pooled vector does; of a map of one cell, both are equal.

    Raises:
        InvalidRequest: the network's features are neither.
    """
    features = _norm_behind_pool(backbone)(backbone.forward_features(x))  # type: ignore[operator]
    if features.ndim == 4:
        # timm's networks with a channels-last layout say so in output_fmt
        return features if str(getattr(backbone, "output_fmt", "NCHW")) == "NHWC" else features.permute(0, 2, 3, 1)
    if features.ndim == 3 and hasattr(backbone, "patch_embed"):
        patches = features[:, int(getattr(backbone, "num_prefix_tokens", 0)) :]
        patch: Any = backbone.patch_embed.patch_size  # type: ignore[union-attr]
        return patches.unflatten(1, (x.shape[2] // patch[0], x.shape[3] // patch[1]))
    raise InvalidRequest(f"{type(backbone).__name__} has no feature map: its features are {tuple(features.shape)}.")


def _norm_behind_pool(backbone: nn.Module) -> nn.Module:
    """timm's name for it in transformers that pool by the mean, and that in ConvNeXt and its kin.

    InceptionNeXt has that of a hidden layer under the same name: of another length, it is none that cells go through.
    """
    norm = getattr(backbone, "fc_norm", None) or getattr(getattr(backbone, "head", None), "norm", None)
    weight = getattr(norm, "weight", None)
    return nn.Identity() if norm is None or (weight is not None and len(weight) != backbone.num_features) else norm
