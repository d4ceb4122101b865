"""The network of a source, made ready to be trained on labels, and given out again as a model folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from nnclr_hub.encoder.backbones import create_backbone, is_convolutional, load_state, sized
from nnclr_hub.encoder.encoder import Encoder
from nnclr_hub.encoder.preprocess import Preprocessing
from nnclr_hub.errors import InvalidRequest
from nnclr_hub.publish.export import export_model


@dataclass(frozen=True)
class Network:
    """An encoder's backbone with all that an export needs.

    backbone: fresh for each training, so the encoder itself stays as it is.
    architecture, model_args: what builds it.
    preprocessing: of the images it takes.
    """

    backbone: nn.Module
    architecture: str
    model_args: Mapping[str, Any]
    preprocessing: Preprocessing

    @property
    def convolutional(self) -> bool:
        """A ResNet, not a vision transformer."""
        return is_convolutional(self.backbone)

    def encoder(self, name: str, device: torch.device) -> Encoder:
        """The network as it is now."""
        return Encoder(self.backbone, self.preprocessing, name=name, device=device)

    def export(self, folder: Path, provenance: Mapping[str, Any]) -> Path:
        """Writes a model folder."""
        return export_model(
            self.backbone,
            folder,
            architecture=self.architecture,
            model_args=self.model_args,
            preprocessing=self.preprocessing,
            provenance=provenance,
        )


def network_of(encoder: Encoder, *, image_size: int = 0, drop_path: float = 0.0) -> Network:
    """A copy of an encoder's network, for another input size if so wanted.

    Args:
        encoder: any.
        image_size: side in pixels; 0: its own. A vision transformer's positions are resampled.
        drop_path: stochastic depth.

    Raises:
        InvalidRequest: a network that takes no such size or no stochastic depth.
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
                raise InvalidRequest(f"{architecture} takes {preprocessing.input_size} pixels and no other size.")
            backbone.set_input_size(img_size=(image_size, image_size))  # type: ignore[operator]
            arguments["img_size"] = image_size
        preprocessing = replace(preprocessing, input_size=image_size)
    return Network(backbone, architecture, arguments, preprocessing)
