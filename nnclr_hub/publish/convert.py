"""Convert checkpoints of other projects to model folders; `publish.layouts` lists the projects.

    done = convert_checkpoint("dino_deitsmall16_pretrain.pth", "models/dino", license="apache-2.0")
    done.architecture, done.dropped

Every weight must have a place in the architecture, or the file is refused. A checkpoint does not record the
preprocessing, so ImageNet's usual one is assumed. A `.pth` or `.ckpt` file is a pickle, which can run code: torch's
`weights_only` reader returns tensors and plain containers only, and `argparse.Namespace`, in which DINO has settings.
"""

from __future__ import annotations

import argparse
import pickle
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from nnclr_hub.encoder.backbones import backbone_with_weights, default_side, sized
from nnclr_hub.encoder.preprocessing import Preprocessing
from nnclr_hub.errors import InvalidRequest, ModelFilesMissing, WeightsMismatch
from nnclr_hub.hub.layout import CONFIG, sha256_of
from nnclr_hub.publish.architectures import arguments_of, find_architecture, timm_names, with_counters
from nnclr_hub.publish.export import export_model
from nnclr_hub.publish.layouts import find_backbone, sections_of

NAMED = 3  # classes that an error message names


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
    found = find_backbone(sections_of(read_checkpoint(path), origin), origin, branch)
    state = timm_names(found.state)
    name, arguments = find_architecture(
        state, origin, architecture, arguments_of(found.layout, state) | {**(model_args or {})}
    )
    # the positions of a transformer fix the side of its input
    fixed = arguments.get("img_size", default_side(name)) if sized(name) else None
    if input_size and fixed and input_size != fixed:
        raise InvalidRequest(
            f"The positions in this file fix the input size to {fixed} pixels; leave out --input-size."
        )
    record = {"from": found.layout, "branch": found.branch, "file": origin, "sha256": sha256_of(path)}
    given = {"license": license, "data": data}
    export_model(
        backbone_with_weights(name, with_counters(state), origin, model_args=arguments),
        folder,
        architecture=name,
        model_args=arguments,
        preprocessing=Preprocessing(int(input_size or fixed or default_side(name))),
        provenance={"converted": record, **{key: value for key, value in given.items() if value is not None}},
    )
    return Converted(folder, found.layout, found.branch, name, len(state), arguments, found.dropped)


def read_checkpoint(path: Path) -> Any:
    """Return the contents of a .safetensors file or of one that torch.save wrote, with tensors on the CPU."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    if (path / CONFIG).is_file():
        raise InvalidRequest(f"{path} is already a model folder; load it directly.")
    if not path.is_file():
        raise ModelFilesMissing(f"{path} is not a file; expected a checkpoint: .pth, .ckpt or .safetensors.")
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        with torch.serialization.safe_globals([argparse.Namespace]), warnings.catch_warnings(action="ignore"):
            return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        if names := _not_allowed(path, error):
            more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
            raise InvalidRequest(
                f"{path} contains {', '.join(names[:NAMED])}{more}, and reading these would run code from the file. If "
                "you trust it, load it in its own project and save only its tensors, for example with "
                "torch.save(checkpoint['state_dict'], FILE)."
            ) from error
        failure: Exception = error
    except PermissionError:
        raise
    except (SafetensorError, RuntimeError, EOFError, OSError, ValueError, LookupError, AttributeError, TypeError) as e:
        failure = e
    # without torch's message, which describes options of torch.load instead of the file
    what = "is empty" if path.stat().st_size == 0 else "is not a checkpoint, or is damaged"
    raise WeightsMismatch(f"{path} {what}; download it again, or use another file.") from failure


def _not_allowed(path: Path, error: Exception) -> list[str]:
    """Return the classes and functions in the file that are not allowed."""
    try:
        with torch.serialization.safe_globals([argparse.Namespace]):
            found = torch.serialization.get_unsafe_globals_in_checkpoint(path)
    except (RuntimeError, ValueError, OSError, pickle.UnpicklingError):  # a file of torch before 1.6
        found = []
    return sorted(found) or re.findall(r"GLOBAL ([\w.]+)", str(error))[:1]
