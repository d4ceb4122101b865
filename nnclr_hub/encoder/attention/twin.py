"""A twin of a network: the same weights, with settings and hooks of its own.

Other threads may be running the network, so nothing of it may be switched. A twin is a shallow copy of the modules
on the way to what is changed; every weight is the network's own tensor.
"""

from __future__ import annotations

import copy
from typing import TypeVar, cast

from timm.layers.format import Format
from timm.models.vision_transformer import VisionTransformer
from torch import nn

Module = TypeVar("Module", bound=nn.Module)


def twin(module: Module) -> Module:
    """A module of the same children and parameters, whose attributes, children and hooks can be set apart from it."""
    other = copy.copy(module)
    # nn.Module keeps these in dictionaries, which a shallow copy would share
    other.__dict__.update({name: copy.copy(value) for name, value in vars(module).items() if isinstance(value, dict)})
    return other


def any_size(backbone: VisionTransformer) -> VisionTransformer:
    """A twin that takes images of any number of whole patches; timm resamples the position embeddings on the way.

    It is what timm builds under `dynamic_img_size=True`.
    """
    other = twin(backbone)
    other.patch_embed = twin(cast(nn.Module, other.patch_embed))
    vars(other)["dynamic_img_size"] = True  # these are Final to torch.jit
    vars(other.patch_embed).update(strict_img_size=False, flatten=False, output_fmt=Format.NHWC)
    return other


def last_attention(backbone: VisionTransformer) -> nn.Module:
    """The attention of the last block, made a twin of its own; `backbone` must be one already."""
    blocks, block = twin(backbone.blocks), twin(backbone.blocks[-1])
    block.attn = twin(cast(nn.Module, block.attn))
    blocks[-1] = block
    backbone.blocks = blocks
    return block.attn
