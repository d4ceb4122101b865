"""The layouts of other projects' checkpoints: which keys are the backbone, under which names.

The keys of a file determine its layout. If it contains several networks, a branch selects one: `online`, `momentum`,
`teacher`, `student`, or the name of its part. The other parts are dropped and reported. A known layout without
support is refused by name, and a file that matches two layouts is refused as ambiguous.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, strided

from nnclr_hub.errors import InvalidRequest

State = dict[str, Tensor]
CONTAINERS = ("state_dict", "teacher", "student", "model")
CLASSIFIERS = ("fc", "head", "heads")
STEMS = {"conv1.weight", "patch_embed.proj.weight", "conv_proj.weight", "0.weight"}


@dataclass(frozen=True)
class Sections:
    """The tensors of a checkpoint by container, without the prefixes of wrappers; "" is the top level.

    keys: keys of the outermost dictionary that are not tensors, with the number of tensors in each value.
    """

    keys: Mapping[str, int]
    states: Mapping[str, State]

    @property
    def main(self) -> str:
        """The first container with tensors, which contains the weights unless a layout says otherwise."""
        return next(iter(self.states), "")

    def groups(self, section: str | None = None) -> set[str]:
        """Return the first parts of the names in a section; None: the main one."""
        return {key.partition(".")[0] for key in self.states.get(self.main if section is None else section, ())}

    def below(self, section: str, prefix: str) -> State:
        """Return the tensors under a prefix, without it."""
        state = self.states.get(section, {})
        return {key.removeprefix(prefix): value for key, value in state.items() if key.startswith(prefix)}


def sections_of(checkpoint: Any, origin: str) -> Sections:
    """Sort a checkpoint's tensors by container.

    Raises:
        InvalidRequest: there are no tensors, or several containers hold networks.
    """
    if not isinstance(checkpoint, Mapping):
        raise InvalidRequest(
            f"{origin} contains a {type(checkpoint).__name__} instead of a dictionary of tensors; use another file."
        )
    states = {name: _tensors(checkpoint[name]) for name in CONTAINERS if isinstance(checkpoint.get(name), Mapping)}
    states |= {"": _tensors(checkpoint)}
    states = {name: _unwrapped(state, origin) for name, state in states.items() if state}
    if not states and "classy_state_dict" not in checkpoint:
        raise InvalidRequest(
            f"{origin} has no tensors under {', '.join(CONTAINERS)} or at the top level; use another file."
        )
    networks = [name or "the top level" for name, state in states.items() if _convolutions(state)]
    if len(networks) > 1 and set(networks) != {"teacher", "student"}:
        raise InvalidRequest(
            f"{origin} contains networks under {' and '.join(networks)}; save only the one to convert."
        )
    others = {str(key): value for key, value in checkpoint.items() if not isinstance(value, Tensor)}
    return Sections({key: len(_tensors(one)) if isinstance(one, Mapping) else 0 for key, one in others.items()}, states)


def _tensors(value: Mapping[Any, Any]) -> State:
    """Return the dense tensors with values; quantized and sparse tensors need other code."""
    return {
        str(key): tensor
        for key, tensor in value.items()
        if isinstance(tensor, Tensor) and tensor.layout is strided and not (tensor.is_meta or tensor.is_quantized)
    }


def _convolutions(state: State) -> set[str]:
    """Return the first parts of the names of convolutions, which a backbone has and a head does not."""
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


# ---- layouts ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Layout:
    """The layout of a project.

    name: of the project.
    matches: returns whether a checkpoint has this layout.
    branches: name -> (container or None for the main one, prefix); the first is the default.
    heads: parts under the same prefix as the backbone that do not belong to it, besides CLASSIFIERS.
    """

    name: str
    matches: Callable[[Sections], bool]
    branches: Mapping[str, tuple[str | None, str]] = field(default_factory=dict)
    heads: tuple[str, ...] = ()


def _has(*alternatives: str, without: str = "", section: str | None = None) -> Callable[[Sections], bool]:
    """Match a section that has all groups of an alternative, such as "encoder predictor", and none of `without`."""
    wanted, refused = [set(one.split()) for one in alternatives], set(without.split())

    def matches(sections: Sections) -> bool:
        groups = sections.groups(section)
        return any(one <= groups for one in wanted) and not groups & refused

    return matches


def _is_lightly(sections: Sections) -> bool:
    alone = sections.groups() == {"backbone"} or "backbone.0.weight" in sections.states.get(sections.main, ())
    return alone or _has("backbone projection_head")(sections)


MAE_DECODER = ("mask_token", *(f"decoder_{part}" for part in ("embed", "pos_embed", "blocks", "norm", "pred")))
_WHOLE = {"online": (None, "")}
# Each row names the file of its project that defines the keys; the prefix `module.` is removed before.
LAYOUTS = (
    # facebookresearch/moco-v3, moco/builder.py
    Layout(
        "MoCo v3",
        _has("base_encoder momentum_encoder"),
        {"online": (None, "base_encoder."), "momentum": (None, "momentum_encoder.")},
    ),
    # facebookresearch/moco, moco/builder.py
    Layout(
        "MoCo v1 or v2",
        _has("encoder_q"),
        {"online": (None, "encoder_q."), "momentum": (None, "encoder_k.")},
    ),
    # facebookresearch/simsiam, simsiam/builder.py
    Layout(
        "SimSiam",
        _has("encoder predictor", without="classifier projector conv_proj", section="state_dict"),
        {"online": (None, "encoder.")},
    ),
    # facebookresearch/swav, src/resnet50.py; it pads before its first convolution instead of in it, which is equal
    Layout("SwAV", _has("conv1 projection_head"), _WHOLE, ("projection_head", "prototypes")),
    # facebookresearch/barlowtwins, main.py, and facebookresearch/vicreg, main_vicreg.py
    Layout("Barlow Twins or VICReg", _has("backbone projector", section="model"), {"online": ("model", "backbone.")}),
    # facebookresearch/mae, models_mae.py
    Layout("MAE", _has("patch_embed decoder_embed"), _WHOLE, MAE_DECODER),
    # facebookresearch/dino, main_dino.py
    Layout(
        "DINO",
        lambda sections: {"teacher", "student"} <= set(sections.states),
        {"teacher": ("teacher", "backbone."), "student": ("student", "backbone.")},
    ),
    # facebookresearch/dinov2, dinov2/models/vision_transformer.py (the files of its hub), dinov2/train/train.py
    Layout("DINOv2", _has("patch_embed mask_token", without="decoder_embed"), _WHOLE, ("mask_token",)),
    Layout(
        "DINOv2",
        lambda sections: sections.main == "teacher" and _has("backbone dino_head")(sections),
        {"teacher": (None, "backbone.")},
        ("mask_token",),
    ),
    # lightly-ai/lightly, examples/pytorch/nnclr.py and dino.py
    Layout("lightly", _is_lightly, {"online": (None, "backbone."), "momentum": (None, "backbone_momentum.")}),
    Layout(
        "lightly",
        _has("teacher_backbone student_backbone"),
        {"teacher": (None, "teacher_backbone."), "student": (None, "student_backbone.")},
    ),
    # vturrisi/solo-learn, solo/methods/base.py; it renamed its encoder to backbone
    Layout(
        "solo-learn",
        _has("backbone classifier", "backbone projector", section="state_dict"),
        {"online": (None, "backbone."), "momentum": (None, "momentum_backbone.")},
    ),
    Layout(
        "solo-learn",
        _has("encoder classifier", without="backbone", section="state_dict"),
        {"online": (None, "encoder."), "momentum": (None, "momentum_encoder.")},
    ),
)
PLAIN = Layout(  # a backbone alone, or numbered by nn.Sequential
    "torchvision's or timm's names",
    lambda sections: sections.main != "teacher" and not STEMS.isdisjoint(sections.states.get(sections.main, ())),
    _WHOLE,
)
REFUSED = (
    Layout("VISSL", lambda sections: "classy_state_dict" in sections.keys),
    Layout("mmpretrain or mmselfsup", lambda sections: "meta" in sections.keys and _has("backbone")(sections)),
)


@dataclass(frozen=True)
class Backbone:
    """The backbone of a checkpoint.

    layout, branch: its place in the checkpoint.
    state: its tensors, under the names of its project.
    dropped: the other parts, with their number of tensors; 0 for settings.
    """

    layout: str
    branch: str
    state: State
    dropped: Mapping[str, int]


def find_backbone(sections: Sections, origin: str, branch: str | None = None) -> Backbone:
    """Return the backbone of a checkpoint whose layout is known.

    Raises:
        InvalidRequest: the layout is unknown, unsupported or ambiguous, or the branch does not exist.
    """
    alone = "save its backbone alone, under torchvision's or timm's names."
    if refused := [layout.name for layout in REFUSED if layout.matches(sections)]:
        raise InvalidRequest(f"{origin} is a checkpoint of {refused[0]}, which is not supported; {alone}")
    found = [layout for layout in LAYOUTS if layout.matches(sections)] or [PLAIN] * PLAIN.matches(sections)
    if not found:
        known = ", ".join(dict.fromkeys(layout.name for layout in (*LAYOUTS, PLAIN)))
        groups = ", ".join(sorted(sections.groups())[:6])
        raise InvalidRequest(f"The layout of {origin} does not match {known} (it has {groups}); {alone}")
    if len(found) > 1:
        raise InvalidRequest(f"{origin} could be of {' or of '.join(layout.name for layout in found)}; {alone}")
    return _select(sections, found[0], origin, branch)


def _select(sections: Sections, layout: Layout, origin: str, branch: str | None) -> Backbone:
    places = {
        name: (sections.main if section is None else section, prefix)
        for name, (section, prefix) in layout.branches.items()
    }
    places = {name: place for name, place in places.items() if sections.below(*place)}
    prefixes = {prefix.rstrip(".") for _, prefix in places.values()}
    rivals = set[str]() if "" in prefixes else _convolutions(sections.states[sections.main]) - prefixes
    places |= {name: (sections.main, f"{name}.") for name in sorted(rivals)}
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
    heads, counted = {*CLASSIFIERS, *layout.heads}, Counter[str]()
    for name, state in sections.states.items():
        for key in state:
            inner = key.removeprefix(prefix).partition(".")[0]
            if name != section:
                counted[name or "top"] += 1
            elif not key.startswith(prefix):
                counted[key.partition(".")[0]] += 1
            elif inner in heads:
                counted[prefix + inner] += 1
    others = {key: count for key, count in sections.keys.items() if key not in sections.states}
    kept = {key: one for key, one in sections.below(section, prefix).items() if key.partition(".")[0] not in heads}
    return Backbone(layout.name, chosen, kept, dict(sorted(counted.items())) | dict(sorted(others.items())))
