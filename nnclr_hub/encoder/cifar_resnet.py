"""ResNets for images of 32 pixels, which timm does not have: a 3 x 3 stem of stride 1 without pooling.

They are registered with timm as `nnclr_resnet18_cifar` and `nnclr_resnet50_cifar`. Their model folders load wherever
this module is imported (`import nnclr_hub.encoder.cifar_resnet`). timm and transformers alone do not know the
architecture.
"""

from __future__ import annotations

from typing import Any

from timm.models import build_model_with_cfg, generate_default_cfgs, register_model
from timm.models.resnet import BasicBlock, Bottleneck, ResNet
from torch import nn


class CIFARResNet(ResNet):
    """timm's ResNet with the stem of CIFAR experiments ("Deep Residual Learning", section 4.2)."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        stem = self.conv1
        assert isinstance(stem, nn.Conv2d)
        self.conv1 = nn.Conv2d(stem.in_channels, stem.out_channels, 3, stride=1, padding=1, bias=False)
        nn.init.kaiming_normal_(self.conv1.weight, mode="fan_out", nonlinearity="relu")
        self.maxpool = nn.Identity()
        for stage in self.feature_info:
            stage["reduction"] = max(1, int(stage["reduction"]) // 4)


default_cfgs = generate_default_cfgs(
    {
        f"nnclr_{name}_cifar": {
            "url": "",
            "num_classes": 1000,
            "input_size": (3, 32, 32),
            "pool_size": (4, 4),
            "crop_pct": 1.0,
            "interpolation": "bicubic",
            "mean": (0.485, 0.456, 0.406),
            "std": (0.229, 0.224, 0.225),
            "first_conv": "conv1",
            "classifier": "fc",
        }
        for name in ("resnet18", "resnet50")
    }
)


@register_model
def nnclr_resnet18_cifar(pretrained: bool = False, **kwargs: Any) -> ResNet:
    """Build a ResNet-18 with a CIFAR stem: 11.2 M parameters, (B, 3, 32, 32) -> (B, 512)."""
    arguments = {"block": BasicBlock, "layers": (2, 2, 2, 2), **kwargs}
    return build_model_with_cfg(CIFARResNet, "nnclr_resnet18_cifar", pretrained, **arguments)


@register_model
def nnclr_resnet50_cifar(pretrained: bool = False, **kwargs: Any) -> ResNet:
    """Build a ResNet-50 with a CIFAR stem: 23.5 M parameters, (B, 3, 32, 32) -> (B, 2048)."""
    arguments = {"block": Bottleneck, "layers": (3, 4, 6, 3), **kwargs}
    return build_model_with_cfg(CIFARResNet, "nnclr_resnet50_cifar", pretrained, **arguments)
