"""Checkpoints of other projects as model folders: MoCo v3, DINO, lightly, solo-learn, torchvision's and timm's names.

    done = convert_checkpoint("dino_deitsmall16_pretrain.pth", "models/dino", license="apache-2.0")
    done.architecture, done.dropped

Every weight finds its place or the file is refused. What the file cannot say, the preprocessing above all, is
assumed to be the usual one and can be given.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nnclr_hub.encoder.backbones import create_backbone, default_side, load_state, sized
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
    """What a checkpoint was found to be.

    folder: the model folder that was written.
    layout: the project whose layout it has.
    branch: which of its networks was taken.
    architecture: timm's name.
    model_args: arguments beside timm's defaults.
    kept: number of tensors that were taken.
    dropped: what was not, with the number of tensors; 0 for settings and the like.
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
        path: a .pth, .ckpt or .safetensors.
        folder: where to; a new one, or one of ours that is replaced.
        branch: which network, where there are several; default the project's own choice.
        architecture: timm's name, where the weights alone do not tell.
        model_args: its arguments, such as {"num_heads": 12}.
        input_size: side of the input in pixels; default the architecture's.
        license: of the weights, for the card.
        data: the training images and their terms, for the card.

    Raises:
        ModelFilesMissing: no such file.
        InvalidRequest: a layout that is unknown, refused or ambiguous; a pickle with a class that is not let in.
        WeightsMismatch: weights of another architecture, not finite, or a damaged file.
    """
    path, folder = Path(path), Path(folder)
    origin = path.name
    found = find_backbone(contents_of(read_checkpoint(path), origin), origin, branch)
    state = timm_names(found.state)
    given_arguments = {**arguments_of(found.layout, state), **(model_args or {})}
    name, arguments = find_architecture(state, origin, architecture, given_arguments)
    side = _side(name, arguments, input_size)
    backbone = create_backbone(name, model_args=arguments)
    load_state(backbone, with_counters(state, name, arguments), origin)
    told = {"from": found.layout, "branch": found.branch, "file": origin, "sha256": sha256_of(path)}
    given = {"license": license, "data": data}
    export_model(
        backbone,
        folder,
        architecture=name,
        model_args=arguments,
        preprocessing=Preprocessing(side),
        provenance={"converted": told, **{key: value for key, value in given.items() if value is not None}},
    )
    return Converted(folder, found.layout, found.branch, name, len(state), arguments, found.dropped)


def _side(name: str, arguments: Mapping[str, Any], wanted: int | None) -> int:
    """Return the input's side in pixels; a transformer's is that of its positions."""
    fixed = arguments.get("img_size", default_side(name)) if sized(name) else None
    if wanted and fixed and wanted != fixed:
        raise InvalidRequest(
            f"The positions in this file fix the input size to {fixed} pixels; leave out --input-size."
        )
    return int(wanted or fixed or default_side(name))
