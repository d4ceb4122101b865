"""The network of a source, copied for training on labels and exported again as a model folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from nnclr_hub.encoder.backbones import create_backbone, is_convolutional, load_state, sized
from nnclr_hub.encoder.encoder import Encoder
from nnclr_hub.encoder.preprocessing import Preprocessing
from nnclr_hub.errors import InvalidRequest
from nnclr_hub.publish.export import export_model


@dataclass(frozen=True)
class Network:
    """An encoder's backbone with everything that an export needs.

    backbone: a copy for each training, so the encoder itself does not change.
    architecture, model_args: build it.
    preprocessing: of its input images.
    """

    backbone: nn.Module
    architecture: str
    model_args: Mapping[str, Any]
    preprocessing: Preprocessing

    @property
    def convolutional(self) -> bool:
        """Whether it is a convolutional network, not a vision transformer."""
        return is_convolutional(self.backbone)

    def encoder(self, name: str, device: torch.device) -> Encoder:
        """Return the network in its present state as an encoder."""
        return Encoder(self.backbone, self.preprocessing, name=name, device=device)

    def export(self, folder: Path, provenance: Mapping[str, Any]) -> Path:
        """Write a model folder."""
        return export_model(
            self.backbone,
            folder,
            architecture=self.architecture,
            model_args=self.model_args,
            preprocessing=self.preprocessing,
            provenance=provenance,
        )


def network_of(encoder: Encoder, *, image_size: int = 0, drop_path: float = 0.0) -> Network:
    """Copy an encoder's network, optionally for another input size.

    Args:
        encoder: any.
        image_size: side in pixels; 0: its input size. A vision transformer's positions are resampled.
        drop_path: stochastic depth.

    Raises:
        InvalidRequest: a network that does not support this size or stochastic depth.
    """
    preprocessing = encoder.transform.preprocessing
    if encoder.config is not None:
        architecture, arguments = encoder.config.architecture, dict(encoder.config.model_args)
    else:
        architecture, arguments = str(encoder.backbone.pretrained_cfg["architecture"]), {}  # type: ignore[index]
    extra = {"drop_path_rate": drop_path} if drop_path else {}
    with torch.random.fork_rng(devices=[]):
        backbone = create_backbone(architecture, model_args={**arguments, **extra})
    load_state(backbone, encoder.backbone.state_dict(), encoder.name)
    if image_size and image_size != preprocessing.input_size:
        if sized(architecture):
            if not hasattr(backbone, "set_input_size"):
                size = preprocessing.input_size
                raise InvalidRequest(f"{architecture} supports only an input of {size} pixels; got {image_size}.")
            backbone.set_input_size(img_size=(image_size, image_size))  # type: ignore[operator]
            arguments["img_size"] = image_size
        preprocessing = replace(preprocessing, input_size=image_size)
    return Network(backbone, architecture, arguments, preprocessing)
