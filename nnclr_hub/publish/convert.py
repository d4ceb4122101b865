"""Convert checkpoints of other projects to model folders; LAYOUTS lists the projects.

    done = convert_checkpoint("dino_deitsmall16_pretrain.pth", "models/dino", license="apache-2.0")
    done.architecture, done.dropped

The keys of a file determine its layout. If it contains several networks, a branch selects one: `online`, `momentum`,
`teacher`, `student`, or the name of its part. The other parts are dropped and reported. A known layout without support
is refused by name, and a file that matches two layouts is refused as ambiguous.

The names and shapes of its weights determine the architecture: every weight must have a place in it. A checkpoint does
not record the preprocessing, so ImageNet's usual one is assumed. A `.pth` or `.ckpt` file is a pickle, which can run
code: torch's `weights_only` reader returns tensors and plain containers only, and `argparse.Namespace`, in which DINO
has settings.
"""

from __future__ import annotations

import argparse
import math
import pickle
import re
import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from nnclr_hub.arguments import checked
from nnclr_hub.encoder.backbones import backbone_with_weights, create_backbone, default_side, sized, uninitialized
from nnclr_hub.encoder.preprocessing import Preprocessing
from nnclr_hub.errors import InvalidRequest, ModelFilesMissing, WeightsMismatch
from nnclr_hub.hub.layout import CONFIG, sha256_of
from nnclr_hub.publish.export import export_model

State = dict[str, Tensor]
NAMED = 3  # classes or names in a message
CONTAINERS = ("state_dict", "teacher", "student", "model")
CLASSIFIERS = ("fc", "head", "heads")
STEMS = {"conv1.weight", "patch_embed.proj.weight", "conv_proj.weight", "0.weight"}


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


@checked
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
        license: license of the weights, for the card.
        data: the training images and their terms, for the card.

    Raises:
        ModelFilesMissing: the file does not exist.
        InvalidRequest: the layout is unknown, unsupported or ambiguous, or a pickle has a class that is not allowed.
        WeightsMismatch: the weights are not finite or have another architecture, or the file is damaged.
    """
    path, folder = Path(path), Path(folder)
    origin = path.name
    layout, branch, found, dropped = _backbone(_Checkpoint(_read(path), origin), branch)
    state, wanted = _timm_names(found), dict(model_args or {})
    token = state.get("cls_token")
    if layout == "MoCo v3" and token is not None and token.shape[-1] == SMALL:
        wanted = {"num_heads": 12, **wanted}  # which its code defines
    name, arguments = _architecture(state, origin, architecture, wanted)
    # the positions of a transformer fix the side of its input
    fixed = arguments.get("img_size", default_side(name)) if sized(name) else None
    if input_size and fixed and input_size != fixed:
        raise InvalidRequest(
            f"The positions in this file fix the input size to {fixed} pixels; leave out --input-size."
        )
    # batch counters, which very old files lack and evaluation never reads
    norms = [key.removesuffix("running_mean") for key in state if key.endswith(".running_mean")]
    counters = {f"{norm}num_batches_tracked": torch.zeros((), dtype=torch.int64) for norm in norms}
    record = {"from": layout, "branch": branch, "file": origin, "sha256": sha256_of(path)}
    given = {"license": license, "data": data}
    export_model(
        backbone_with_weights(name, {**counters, **state}, origin, model_args=arguments),
        folder,
        architecture=name,
        model_args=arguments,
        preprocessing=Preprocessing(int(input_size or fixed or default_side(name))),
        provenance={"converted": record, **{key: value for key, value in given.items() if value is not None}},
    )
    return Converted(folder, layout, branch, name, len(state), arguments, dropped)


def _read(path: Path) -> Any:
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
    except PermissionError:
        raise
    except (SafetensorError, pickle.UnpicklingError, *_DAMAGE) as error:
        if isinstance(error, pickle.UnpicklingError) and (names := _not_allowed(path, error)):
            more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
            raise InvalidRequest(
                f"{path} contains {', '.join(names[:NAMED])}{more}, and reading these would run code from the file. If "
                "you trust it, load it in its own project and save only its tensors, for example with "
                "torch.save(checkpoint['state_dict'], FILE)."
            ) from error
        # without torch's message, which describes options of torch.load instead of the file
        what = "is empty" if path.stat().st_size == 0 else "is not a checkpoint, or is damaged"
        raise WeightsMismatch(f"{path} {what}; download it again, or use another file.") from error


_DAMAGE = (RuntimeError, EOFError, OSError, ValueError, LookupError, AttributeError, TypeError)


def _not_allowed(path: Path, error: Exception) -> list[str]:
    """Return the classes and functions in the file that are not allowed."""
    try:
        with torch.serialization.safe_globals([argparse.Namespace]):
            found = torch.serialization.get_unsafe_globals_in_checkpoint(path)
    except (RuntimeError, ValueError, OSError, pickle.UnpicklingError):  # a file of torch before 1.6
        found = []
    return sorted(found) or re.findall(r"GLOBAL ([\w.]+)", str(error))[:1]


# ---- layouts: which keys are the backbone ----------------------------------------------------------------------------


class _Checkpoint:
    """The tensors of a checkpoint by container, without the prefixes of wrappers; "" is the top level.

    keys: keys of the outermost dictionary that are not tensors, with the number of tensors in each value.
    main: the first container with tensors, which contains the weights unless a layout says otherwise.

    Raises:
        InvalidRequest: there are no tensors, or several containers hold networks.
    """

    def __init__(self, content: Any, origin: str) -> None:
        if not isinstance(content, Mapping):
            raise InvalidRequest(
                f"{origin} contains a {type(content).__name__} instead of a dictionary of tensors; use another file."
            )
        held = {name: content[name] for name in CONTAINERS if isinstance(content.get(name), Mapping)} | {"": content}
        self.origin = origin
        self.states = {name: _unwrapped(state, origin) for name, one in held.items() if (state := _tensors(one))}
        self.main = next(iter(self.states), "")
        others = {str(key): value for key, value in content.items() if not isinstance(value, Tensor)}
        self.keys = {key: len(_tensors(one)) if isinstance(one, Mapping) else 0 for key, one in others.items()}
        if not self.states and "classy_state_dict" not in self.keys:
            raise InvalidRequest(
                f"{origin} has no tensors under {', '.join(CONTAINERS)} or at the top level; use another file."
            )
        networks = [name or "the top level" for name, state in self.states.items() if _convolutions(state)]
        if len(networks) > 1 and set(networks) != {"teacher", "student"}:
            raise InvalidRequest(
                f"{origin} contains networks under {' and '.join(networks)}; save only the one to convert."
            )

    def groups(self, section: str | None = None) -> set[str]:
        """Return the first parts of the names in a section; None: the main one."""
        return {key.partition(".")[0] for key in self.states.get(self.main if section is None else section, ())}

    def below(self, section: str, prefix: str) -> State:
        """Return the tensors under a prefix, without it."""
        state = self.states.get(section, {})
        return {key.removeprefix(prefix): value for key, value in state.items() if key.startswith(prefix)}


def _tensors(value: Mapping[Any, Any]) -> State:
    # quantized and sparse tensors need other code
    return {
        str(key): tensor
        for key, tensor in value.items()
        if isinstance(tensor, Tensor) and tensor.layout is torch.strided and not (tensor.is_meta or tensor.is_quantized)
    }


def _convolutions(state: State) -> set[str]:
    # a backbone has convolutions, and a head does not
    return {key.partition(".")[0] for key, value in state.items() if value.ndim == 4}


def _unwrapped(state: State, origin: str) -> State:
    """Return the tensors without the prefixes that torch.compile and data parallel training add."""
    names = {key: ".".join(part for part in key.split(".") if part != "_orig_mod") for key in state}
    if len(set(names.values())) < len(names):
        raise InvalidRequest(f"{origin} contains a network twice, compiled and not compiled; save only one.")
    state = {names[key]: value for key, value in state.items()}
    while state and all(key.startswith("module.") for key in state):
        state = {key.removeprefix("module."): value for key, value in state.items()}
    return state


class Layout(NamedTuple):
    """The layout of a project.

    name: name of the project.
    matches: returns whether a checkpoint has this layout.
    branches: name -> (container or None for the main one, prefix); the first is the default.
    heads: parts under the same prefix as the backbone that do not belong to it, besides CLASSIFIERS.
    """

    name: str
    matches: Callable[[_Checkpoint], bool]
    branches: Mapping[str, tuple[str | None, str]] = {}
    heads: tuple[str, ...] = ()


def _has(*alternatives: str, without: str = "", section: str | None = None) -> Callable[[_Checkpoint], bool]:
    # a section must have all groups of an alternative, such as "encoder predictor", and none of `without`
    wanted, refused = [set(one.split()) for one in alternatives], set(without.split())
    return lambda one: any(own <= one.groups(section) for own in wanted) and not one.groups(section) & refused


def _is_lightly(one: _Checkpoint) -> bool:
    alone = one.groups() == {"backbone"} or "backbone.0.weight" in one.states.get(one.main, ())
    return alone or _has("backbone projection_head")(one)


def _main(**prefixes: str) -> dict[str, tuple[str | None, str]]:
    return {name: (None, prefix) for name, prefix in prefixes.items()}


MAE_DECODER = ("mask_token", *(f"decoder_{part}" for part in ("embed", "pos_embed", "blocks", "norm", "pred")))
# Each row names the file of its project that defines the keys; the prefix `module.` is removed before.
LAYOUTS = (
    # facebookresearch/moco-v3, moco/builder.py
    Layout(
        "MoCo v3",
        _has("base_encoder momentum_encoder"),
        _main(online="base_encoder.", momentum="momentum_encoder."),
    ),
    # facebookresearch/moco, moco/builder.py
    Layout("MoCo v1 or v2", _has("encoder_q"), _main(online="encoder_q.", momentum="encoder_k.")),
    # facebookresearch/simsiam, simsiam/builder.py
    Layout(
        "SimSiam",
        _has("encoder predictor", without="classifier projector conv_proj", section="state_dict"),
        _main(online="encoder."),
    ),
    # facebookresearch/swav, src/resnet50.py; it pads before its first convolution instead of in it, which is equal
    Layout("SwAV", _has("conv1 projection_head"), _main(online=""), ("projection_head", "prototypes")),
    # facebookresearch/barlowtwins, main.py, and facebookresearch/vicreg, main_vicreg.py
    Layout("Barlow Twins or VICReg", _has("backbone projector", section="model"), {"online": ("model", "backbone.")}),
    # facebookresearch/mae, models_mae.py
    Layout("MAE", _has("patch_embed decoder_embed"), _main(online=""), MAE_DECODER),
    # facebookresearch/dino, main_dino.py
    Layout(
        "DINO",
        lambda one: {"teacher", "student"} <= set(one.states),
        {"teacher": ("teacher", "backbone."), "student": ("student", "backbone.")},
    ),
    # facebookresearch/dinov2, dinov2/models/vision_transformer.py (the files of its hub), dinov2/train/train.py
    Layout("DINOv2", _has("patch_embed mask_token", without="decoder_embed"), _main(online=""), ("mask_token",)),
    Layout(
        "DINOv2",
        lambda one: one.main == "teacher" and _has("backbone dino_head")(one),
        _main(teacher="backbone."),
        ("mask_token",),
    ),
    # lightly-ai/lightly, examples/pytorch/nnclr.py and dino.py
    Layout("lightly", _is_lightly, _main(online="backbone.", momentum="backbone_momentum.")),
    Layout(
        "lightly",
        _has("teacher_backbone student_backbone"),
        _main(teacher="teacher_backbone.", student="student_backbone."),
    ),
    # vturrisi/solo-learn, solo/methods/base.py; it renamed its encoder to backbone
    Layout(
        "solo-learn",
        _has("backbone classifier", "backbone projector", section="state_dict"),
        _main(online="backbone.", momentum="momentum_backbone."),
    ),
    Layout(
        "solo-learn",
        _has("encoder classifier", without="backbone", section="state_dict"),
        _main(online="encoder.", momentum="momentum_encoder."),
    ),
)
PLAIN = Layout(  # a backbone alone, or numbered by nn.Sequential
    "torchvision's or timm's names",
    lambda one: one.main != "teacher" and not STEMS.isdisjoint(one.states.get(one.main, ())),
    _main(online=""),
)
REFUSED = (
    Layout("VISSL", lambda one: "classy_state_dict" in one.keys),
    Layout("mmpretrain or mmselfsup", lambda one: "meta" in one.keys and _has("backbone")(one)),
)


def _backbone(checkpoint: _Checkpoint, branch: str | None) -> tuple[str, str, State, dict[str, int]]:
    """Return the layout, the branch, the tensors of the backbone, and the other parts with their number of tensors.

    Raises:
        InvalidRequest: the layout is unknown, unsupported or ambiguous, or the branch does not exist.
    """
    origin, alone = checkpoint.origin, "save its backbone alone, under torchvision's or timm's names."
    if refused := [layout.name for layout in REFUSED if layout.matches(checkpoint)]:
        raise InvalidRequest(f"{origin} is a checkpoint of {refused[0]}, which is not supported; {alone}")
    found = [layout for layout in LAYOUTS if layout.matches(checkpoint)] or [PLAIN] * PLAIN.matches(checkpoint)
    if not found:
        known = ", ".join(dict.fromkeys(layout.name for layout in (*LAYOUTS, PLAIN)))
        groups = ", ".join(sorted(checkpoint.groups())[:6])
        raise InvalidRequest(f"The layout of {origin} does not match {known} (it has {groups}); {alone}")
    if len(found) > 1:
        raise InvalidRequest(f"{origin} could be of {' or of '.join(layout.name for layout in found)}; {alone}")
    [layout], main = found, checkpoint.main
    branches = {name: (main if section is None else section, at) for name, (section, at) in layout.branches.items()}
    places = {name: place for name, place in branches.items() if checkpoint.below(*place)}
    prefixes = {prefix.rstrip(".") for _, prefix in places.values()}
    rivals = set[str]() if "" in prefixes else _convolutions(checkpoint.states[main]) - prefixes
    places |= {name: (main, f"{name}.") for name in sorted(rivals)}
    if branch is None and rivals:
        raise InvalidRequest(
            f"{origin} ({layout.name}) contains several networks; select one with --branch, {' or '.join(places)}."
        )
    chosen = branch or next(iter(places), None)
    if chosen not in places:
        raise InvalidRequest(
            f"{origin} ({layout.name}) has no branch {chosen!r}; it has {', '.join(places) or 'no backbone at all'}."
        )
    section, prefix = places[chosen]
    heads, dropped = {*CLASSIFIERS, *layout.heads}, Counter[str]()
    for name, state in checkpoint.states.items():
        for key in state:
            inner = key.removeprefix(prefix).partition(".")[0]
            if name != section:
                dropped[name or "top"] += 1
            elif not key.startswith(prefix):
                dropped[key.partition(".")[0]] += 1
            elif inner in heads:
                dropped[prefix + inner] += 1
    settings = {key: count for key, count in checkpoint.keys.items() if key not in checkpoint.states}
    below = checkpoint.below(section, prefix)
    kept = {key: value for key, value in below.items() if key.partition(".")[0] not in heads}
    return layout.name, chosen, kept, dict(sorted(dropped.items())) | dict(sorted(settings.items()))


# ---- architectures: which network has these weights ------------------------------------------------------------------

RESNETS = (
    *("resnet18", "resnet34", "resnet50", "resnet101", "resnet152", "wide_resnet50_2", "wide_resnet101_2"),
    *("resnext50_32x4d", "resnext101_32x8d", "resnext101_64x4d"),
)
VITS = (
    *("vit_tiny_patch16_224", "vit_small_patch8_224", "vit_small_patch16_224", "vit_small_patch32_224"),
    *("vit_base_patch8_224", "vit_base_patch16_224", "vit_base_patch32_224"),
    *("vit_large_patch16_224", "vit_large_patch32_224", "vit_huge_patch14_224"),
)
# of facebookresearch/dinov2, by timm's names, which have LayerScale
DINOV2 = tuple(f"vit_{size}_patch14_dinov2" for size in ("small", "base", "large", "giant"))
DINOV2_REGISTERS = tuple(f"vit_{size}_patch14_reg4_dinov2" for size in ("small", "base", "large", "giant"))
SMALL = 384  # width of a ViT-S: of 6 heads as DINO and timm build it, of 12 as MoCo v3 does
STAGES = {"0": "conv1", "1": "bn1", "4": "layer1", "5": "layer2", "6": "layer3", "7": "layer4"}
# a tensor of the network -> (pattern, timm's name) for each of its names that timm has otherwise
NAMES = {
    # pytorch/vision, torchvision/models/vision_transformer.py; a ResNet has timm's names
    "conv_proj.weight": (
        (r"^class_token$", "cls_token"),
        (r"^encoder\.pos_embedding$", "pos_embed"),
        (r"^encoder\.ln\.", "norm."),
        (r"^conv_proj\.", "patch_embed.proj."),
        (r"^encoder\.layers\.encoder_layer_(\d+)\.", r"blocks.\1."),
        (r"\.ln_([12])\.", r".norm\1."),
        (r"\.self_attention\.in_proj_", ".attn.qkv."),
        (r"\.self_attention\.out_proj\.", ".attn.proj."),
        (r"\.mlp\.(0|linear_1)\.", ".mlp.fc1."),  # linear_1 and linear_2 before torchvision 0.13
        (r"\.mlp\.(3|linear_2)\.", ".mlp.fc2."),
    ),
    # facebookresearch/dinov2, dinov2/models/vision_transformer.py and dinov2/layers/swiglu_ffn.py
    "patch_embed.proj.weight": (
        (r"^register_tokens$", "reg_token"),
        (r"^blocks\.\d+\.(\d+)\.", r"blocks.\1."),  # in chunks for FSDP; the second number counts through
        (r"\.mlp\.w12\.", ".mlp.fc1."),
        (r"\.mlp\.w3\.", ".mlp.fc2."),
    ),
    # nn.Sequential of the children of a ResNet, as in lightly-ai/lightly, examples/pytorch
    "0.weight": tuple((rf"^{number}\.", f"{stage}.") for number, stage in STAGES.items()),
}


def _timm_names(state: State) -> State:
    """Rename the weights of a backbone of torchvision, DINOv2 or nn.Sequential to timm's names."""
    token, positions = state.get("cls_token"), state.get("pos_embed")
    if "register_tokens" in state and token is not None and positions is not None and positions.ndim == 3:
        first = positions[:, :1]  # with registers, timm adds the position of [CLS] to its token
        if token.shape == first.shape:
            state = {**state, "cls_token": token + first, "pos_embed": positions[:, 1:]}
    rules, renamed = [rule for mark, rules in NAMES.items() if mark in state for rule in rules], {}
    for name, value in state.items():
        for pattern, replacement in rules:
            name = re.sub(pattern, replacement, name)
        renamed[name] = value
    return renamed if len(renamed) == len(state) else state  # two tensors of one name: refused for their names


def _architecture(
    state: State, origin: str, architecture: str | None, model_args: Mapping[str, Any]
) -> tuple[str, dict[str, Any]]:
    """Return timm's name and the arguments of the architecture whose names and shapes equal those of `state`.

    Args:
        state: under timm's names.
        architecture: the only one to try; None for all stock ones.

    Raises:
        WeightsMismatch: no architecture fits, or the weights alone do not determine it.
    """
    stem, positions = state.get("conv1.weight"), state.get("pos_embed")
    if architecture is None and stem is not None and stem.ndim == 4 and stem.shape[-1] == 3:
        raise WeightsMismatch(
            f"The first convolution of {origin} is 3 x 3, and the file does not record its padding (2 in solo-learn, 1 "
            "here). If it is 1, use --architecture nnclr_resnet18_cifar or nnclr_resnet50_cifar."
        )
    fixed = positions is not None and positions.ndim == 3 and positions.shape[1] > 0 and not positions[:, 0].any()
    # the shapes of a ViT-S are equal for any number of heads; MoCo v3 has fixed positions, zeros for [CLS]
    if fixed and positions is not None and positions.shape[-1] == SMALL and "num_heads" not in model_args:
        raise WeightsMismatch(
            f"{origin} is a ViT-S with MoCo v3's fixed positions, and its weights do not show the number of heads. Use "
            "--arg num_heads=12 (MoCo v3) or num_heads=6 (timm)."
        )
    candidates: tuple[str, ...] = DINOV2 if "blocks.0.ls1.gamma" in state else VITS
    if architecture:
        candidates = (architecture,)
    elif "patch_embed.proj.weight" not in state:
        candidates = RESNETS
    elif "reg_token" in state:
        candidates = DINOV2_REGISTERS
    differences = {}
    for name in candidates:
        arguments = {**_input_size(name, state, origin), **model_args}
        wanted = _stock_shapes(name) if not arguments else _shapes(name, arguments)
        missing = [key for key in wanted.keys() - state.keys() if not key.endswith(".num_batches_tracked")]
        other = [key for key in wanted.keys() & state.keys() if wanted[key] != tuple(state[key].shape)]
        differences[name] = sorted([*missing, *(state.keys() - wanted.keys()), *other])
        if not differences[name]:
            return name, arguments
    nearest = min(differences, key=lambda name: len(differences[name]))
    raise WeightsMismatch(
        f"{origin} does not match {', '.join(candidates)}; the nearest, {nearest}, differs in "
        f"{', '.join(differences[nearest][:NAMED])}. Name its timm architecture with --architecture, and its "
        "arguments with --arg NAME=VALUE."
    )


@cache  # building a network takes up to half a second, and a conversion compares with each candidate
def _stock_shapes(name: str) -> dict[str, tuple[int, ...]]:
    return _shapes(name, {})


def _shapes(name: str, arguments: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    with torch.device("meta"), uninitialized():
        backbone = create_backbone(name, model_args=arguments)
    return {key: tuple(value.shape) for key, value in backbone.state_dict().items()}


def _input_size(name: str, state: State, origin: str) -> dict[str, Any]:
    """Return the image size of a transformer's position embeddings, unless it is the default."""
    positions, patches = state.get("pos_embed"), state.get("patch_embed.proj.weight")
    if positions is None or patches is None or positions.ndim != 3 or patches.ndim != 4 or not sized(name):
        return {}
    patch_positions = positions.shape[1] - ("reg_token" not in state)  # with registers, [CLS] has none
    grid = math.isqrt(max(patch_positions, 0))
    if grid * grid != patch_positions:
        raise WeightsMismatch(
            f"{origin} has {positions.shape[1]} positions, which is not a square number plus one for [CLS], so its "
            "architecture is unknown; name it with --architecture."
        )
    side = grid * patches.shape[-1]
    return {} if side == default_side(name) else {"img_size": side}
