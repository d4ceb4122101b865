"""Convert checkpoints of other projects to model folders; `publish.layouts` lists the projects.

    done = convert_checkpoint("dino_deitsmall16_pretrain.pth", "models/dino", license="apache-2.0")
    done.architecture, done.dropped

Every weight must have a place in the architecture, or the file is refused. A checkpoint does not record the
preprocessing, so ImageNet's usual one is assumed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nnclr_hub.encoder.backbones import backbone_with_weights, default_side, sized
from nnclr_hub.encoder.preprocessing import Preprocessing
from nnclr_hub.errors import InvalidRequest
from nnclr_hub.hub.layout import sha256_of
from nnclr_hub.publish.architectures import arguments_of, find_architecture, timm_names, with_counters
from nnclr_hub.publish.checkpoints import read_checkpoint
from nnclr_hub.publish.contents import contents_of
from nnclr_hub.publish.export import export_model
from nnclr_hub.publish.layouts import find_backbone


@dataclass(frozen=True)
class Converted:
    """The result of a conversion.

    folder: the model folder.
    layout: the project whose layout the checkpoint has.
    branch: the network that was converted.
    architecture: its timm name.
    kept: number of tensors in the model folder.
    model_args: arguments that differ from timm's defaults.
    dropped: the other parts of the checkpoint, with their number of tensors; 0 for settings.
    """

    folder: Path
    layout: str
    branch: str
    architecture: str
    kept: int
    model_args: Mapping[str, Any] = field(default_factory=dict)
    dropped: Mapping[str, int] = field(default_factory=dict)


def convert_checkpoint(
    path: str | Path,
    folder: str | Path,
    *,
    branch: str | None = None,
    architecture: str | None = None,
    model_args: Mapping[str, Any] | None = None,
    input_size: int | None = None,
    license: str | None = None,
    data: str | None = None,
) -> Converted:
    """Write a model folder with the backbone of a checkpoint.

    Args:
        path: a .pth, .ckpt or .safetensors file.
        folder: the target; a new folder, or a model folder to replace.
        branch: the network to convert, if there are several; default: the one that the project itself uses.
        architecture: the timm name, if the weights do not determine it.
        model_args: arguments of the architecture, such as {"num_heads": 12}.
        input_size: side of the input in pixels; default: that of the architecture.
        license: of the weights, for the card.
        data: the training images and their terms, for the card.

    Raises:
        ModelFilesMissing: the file does not exist.
        InvalidRequest: the layout is unknown, unsupported or ambiguous, or a pickle has a class that is not allowed.
        WeightsMismatch: the weights are not finite or have another architecture, or the file is damaged.
    """
    path, folder = Path(path), Path(folder)
    origin = path.name
    found = find_backbone(contents_of(read_checkpoint(path), origin), origin, branch)
    state = timm_names(found.state)
    given_arguments = {**arguments_of(found.layout, state), **(model_args or {})}
    name, arguments = find_architecture(state, origin, architecture, given_arguments)
    side = _side(name, arguments, input_size)
    backbone = backbone_with_weights(name, with_counters(state), origin, model_args=arguments)
    record = {"from": found.layout, "branch": found.branch, "file": origin, "sha256": sha256_of(path)}
    given = {"license": license, "data": data}
    export_model(
        backbone,
        folder,
        architecture=name,
        model_args=arguments,
        preprocessing=Preprocessing(side),
        provenance={"converted": record, **{key: value for key, value in given.items() if value is not None}},
    )
    return Converted(folder, found.layout, found.branch, name, len(state), arguments, found.dropped)


def _side(name: str, arguments: Mapping[str, Any], wanted: int | None) -> int:
    """Return the side of the input in pixels; the positions of a transformer fix it."""
    fixed = arguments.get("img_size", default_side(name)) if sized(name) else None
    if wanted and fixed and wanted != fixed:
        raise InvalidRequest(
            f"The positions in this file fix the input size to {fixed} pixels; leave out --input-size."
        )
    return int(wanted or fixed or default_side(name))
