"""What a network returns: the length of its vectors, its pooling and its feature map.

backbone = create_backbone("resnet50")
vector_length(backbone)                         # 2048
feature_map(backbone, x)                        # (B, h, w, 2048)
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from nnclr_hub.errors import InvalidRequest


def vector_length(backbone: nn.Module) -> int:
    """Return D of the network's vectors (B, D).

    For a network with a hidden layer after its pool, such as MobileNetV3, this is the width of that layer, not the
    depth of the feature map.
    """
    hidden = getattr(backbone, "head_hidden_size", None)
    return int(hidden or backbone.num_features)  # type: ignore[arg-type]


def pooling(backbone: nn.Module) -> str:
    """Return how the network pools: "avg", "token", ..."""
    pool = getattr(backbone, "global_pool", "avg")
    return pool if isinstance(pool, str) else str(getattr(pool, "pool_type", "avg"))


def feature_map(backbone: nn.Module, x: Tensor) -> Tensor:
    """Return the last stage before pooling: (B, 3, H, W) -> (B, h, w, D).

    For a ResNet, this is the output of stage 4 after its ReLU. For a vision transformer, it is the patch tokens after
    the last norm, without [CLS] and other prefix tokens. A norm that follows the pool is applied to each cell, so that
    the cells are in the same space as the pooled vector. For a map of one cell, both are equal.

    Raises:
        InvalidRequest: the network has neither kind of features.
    """
    if not hasattr(backbone, "forward_features"):
        raise InvalidRequest("This network does not have a feature map; it returns vectors only.")
    features = _norm_after_pool(backbone)(backbone.forward_features(x))  # type: ignore[operator]
    if features.ndim == 4:
        # timm marks its channels-last networks with output_fmt
        return features if str(getattr(backbone, "output_fmt", "NCHW")) == "NHWC" else features.permute(0, 2, 3, 1)
    if features.ndim == 3 and hasattr(backbone, "patch_embed"):
        patches = features[:, int(getattr(backbone, "num_prefix_tokens", 0)) :]
        patch: Any = backbone.patch_embed.patch_size  # type: ignore[union-attr]
        return patches.unflatten(1, (x.shape[2] // patch[0], x.shape[3] // patch[1]))
    raise InvalidRequest(
        f"{type(backbone).__name__} does not have a feature map; its features have shape {tuple(features.shape)}."
    )


def _norm_after_pool(backbone: nn.Module) -> nn.Module:
    """Return the norm that follows the pool, or the identity.

    timm calls it fc_norm in transformers that pool by the mean, and head.norm in ConvNeXt and similar networks.
    InceptionNeXt has a norm of a hidden layer under the same name. Its length differs, so it is skipped.
    """
    norm = getattr(backbone, "fc_norm", None) or getattr(getattr(backbone, "head", None), "norm", None)
    weight = getattr(norm, "weight", None)
    return nn.Identity() if norm is None or (weight is not None and len(weight) != backbone.num_features) else norm
