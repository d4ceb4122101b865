"""The layouts of other projects' checkpoints: which keys are the backbone, under which names.

The keys of a file determine its layout. If it contains several networks, a branch selects one: `online`, `momentum`,
`teacher`, `student`, or the name of its part. The other parts are dropped and reported. A known layout without
support is refused by name, and a file that matches two layouts is refused as ambiguous.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from nnclr_hub.errors import InvalidRequest
from nnclr_hub.publish.contents import Contents, State

CLASSIFIERS = ("fc", "head", "heads")


@dataclass(frozen=True)
class Layout:
    """The layout of a project.

    name: of the project.
    matches: returns whether a checkpoint has this layout.
    branches: name -> (container or None for the main one, prefix); the first is the default.
    heads: parts under the same prefix as the backbone that do not belong to it, besides CLASSIFIERS.
    """

    name: str
    matches: Callable[[Contents], bool]
    branches: Mapping[str, tuple[str | None, str]] = field(default_factory=dict)
    heads: tuple[str, ...] = ()


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


def find_backbone(contents: Contents, origin: str, branch: str | None = None) -> Backbone:
    """Return the backbone of a checkpoint whose layout is known.

    Raises:
        InvalidRequest: the layout is unknown, unsupported or ambiguous, or the branch does not exist.
    """
    for refused in REFUSED:
        if refused.matches(contents):
            raise InvalidRequest(
                f"{origin} is a checkpoint of {refused.name}, which is not supported; extract its backbone yourself, "
                "under torchvision's or timm's names, and save that."
            )
    found = [layout for layout in LAYOUTS if layout.matches(contents)]
    if not found and PLAIN.matches(contents):
        found = [PLAIN]
    if not found:
        known = ", ".join(dict.fromkeys(layout.name for layout in (*LAYOUTS, PLAIN)))
        groups = ", ".join(sorted(contents.groups(contents.main))[:6])
        raise InvalidRequest(
            f"The layout of {origin} does not match {known} (it has {groups}); save its backbone alone, under "
            "torchvision's or timm's names."
        )
    if len(found) > 1:
        raise InvalidRequest(
            f"{origin} could be of {' or of '.join(layout.name for layout in found)}; save its backbone alone, under "
            "torchvision's or timm's names."
        )
    return _taken(contents, found[0], origin, branch)


def _taken(contents: Contents, layout: Layout, origin: str, branch: str | None) -> Backbone:
    places = {
        name: (section if section is not None else contents.main, prefix)
        for name, (section, prefix) in layout.branches.items()
    }
    places = {name: place for name, place in places.items() if _below(contents, place)}
    rivals = _rivals(contents, places)
    places |= {name: (contents.main, f"{name}.") for name in rivals}
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
    state = _below(contents, (section, prefix))
    heads = {*CLASSIFIERS, *layout.heads}
    kept = {key: value for key, value in state.items() if key.partition(".")[0] not in heads}
    return Backbone(layout.name, chosen, kept, _dropped(contents, section, prefix, heads))


def _below(contents: Contents, place: tuple[str, str]) -> State:
    section, prefix = place
    state = contents.sections.get(section, {})
    return {key.removeprefix(prefix): value for key, value in state.items() if key.startswith(prefix)}


def _rivals(contents: Contents, places: Mapping[str, tuple[str, str]]) -> list[str]:
    """Return other parts with convolutions, which a backbone has and a head does not."""
    if any(prefix == "" for _, prefix in places.values()):
        return []
    known = {prefix.rstrip(".") for _, prefix in places.values()}
    state = contents.sections[contents.main]
    return sorted({key.partition(".")[0] for key, value in state.items() if value.ndim == 4} - known)


def _dropped(contents: Contents, section: str, prefix: str, heads: set[str]) -> dict[str, int]:
    """Count the tensors in other containers, other parts and the heads; settings count as 0."""
    counted: Counter[str] = Counter()
    for name, state in contents.sections.items():
        for key in state:
            inner = key.removeprefix(prefix)
            if name != section:
                counted[f"{name or 'top'}"] += 1
            elif not key.startswith(prefix):
                counted[key.partition(".")[0]] += 1
            elif inner.partition(".")[0] in heads:
                counted[prefix + inner.partition(".")[0]] += 1
    others = {key: count for key, count in contents.keys.items() if key not in contents.sections}
    return dict(sorted(counted.items())) | dict(sorted(others.items()))


def _has(*groups: str) -> Callable[[Contents], bool]:
    return lambda contents: set(groups) <= contents.groups(contents.main)


def _is_plain(contents: Contents) -> bool:
    """Return whether this is a backbone alone, under torchvision's or timm's names, or numbered by nn.Sequential."""
    names = contents.sections.get(contents.main, {})
    return contents.main != "teacher" and not STEMS.isdisjoint(names)


def _is_solo(contents: Contents) -> bool:
    groups = contents.groups("state_dict")
    return "backbone" in groups and bool(groups & {"classifier", "projector"})


def _is_old_solo(contents: Contents) -> bool:
    """Return whether this is solo-learn from before it renamed its encoder to backbone."""
    groups = contents.groups("state_dict")
    return {"encoder", "classifier"} <= groups and "backbone" not in groups


def _is_lightly(contents: Contents) -> bool:
    groups = contents.groups(contents.main)
    return "backbone" in groups and (
        "projection_head" in groups or groups == {"backbone"} or "backbone.0.weight" in contents.sections[contents.main]
    )


def _is_simsiam(contents: Contents) -> bool:
    groups = contents.groups("state_dict")
    return {"encoder", "predictor"} <= groups and not groups & {"classifier", "projector", "conv_proj"}


def _is_dinov2(contents: Contents) -> bool:
    groups = contents.groups(contents.main)
    return {"patch_embed", "mask_token"} <= groups and "decoder_embed" not in groups


STEMS = {"conv1.weight", "patch_embed.proj.weight", "conv_proj.weight", "0.weight"}
MAE_DECODER = ("mask_token", *(f"decoder_{part}" for part in ("embed", "pos_embed", "blocks", "norm", "pred")))
# Each row names the file of its project that defines the keys; the prefix `module.` is removed before.
LAYOUTS = (
    # facebookresearch/moco-v3, moco/builder.py
    Layout(
        "MoCo v3",
        _has("base_encoder", "momentum_encoder"),
        {"online": (None, "base_encoder."), "momentum": (None, "momentum_encoder.")},
    ),
    # facebookresearch/moco, moco/builder.py
    Layout(
        "MoCo v1 or v2",
        _has("encoder_q"),
        {"online": (None, "encoder_q."), "momentum": (None, "encoder_k.")},
    ),
    # facebookresearch/simsiam, simsiam/builder.py
    Layout("SimSiam", _is_simsiam, {"online": (None, "encoder.")}),
    # facebookresearch/swav, src/resnet50.py; it pads before its first convolution instead of in it, which is equal
    Layout("SwAV", _has("conv1", "projection_head"), {"online": (None, "")}, ("projection_head", "prototypes")),
    # facebookresearch/barlowtwins, main.py, and facebookresearch/vicreg, main_vicreg.py
    Layout(
        "Barlow Twins or VICReg",
        lambda contents: {"backbone", "projector"} <= contents.groups("model"),
        {"online": ("model", "backbone.")},
    ),
    # facebookresearch/mae, models_mae.py
    Layout("MAE", _has("patch_embed", "decoder_embed"), {"online": (None, "")}, MAE_DECODER),
    # facebookresearch/dino, main_dino.py
    Layout(
        "DINO",
        lambda contents: {"teacher", "student"} <= set(contents.sections),
        {"teacher": ("teacher", "backbone."), "student": ("student", "backbone.")},
    ),
    # facebookresearch/dinov2, dinov2/models/vision_transformer.py (the files of its hub), dinov2/train/train.py
    Layout("DINOv2", _is_dinov2, {"online": (None, "")}, ("mask_token",)),
    Layout(
        "DINOv2",
        lambda contents: contents.main == "teacher" and _has("backbone", "dino_head")(contents),
        {"teacher": (None, "backbone.")},
        ("mask_token",),
    ),
    # lightly-ai/lightly, examples/pytorch/nnclr.py and dino.py
    Layout("lightly", _is_lightly, {"online": (None, "backbone."), "momentum": (None, "backbone_momentum.")}),
    Layout(
        "lightly",
        _has("teacher_backbone", "student_backbone"),
        {"teacher": (None, "teacher_backbone."), "student": (None, "student_backbone.")},
    ),
    # vturrisi/solo-learn, solo/methods/base.py
    Layout(
        "solo-learn",
        _is_solo,
        {"online": (None, "backbone."), "momentum": (None, "momentum_backbone.")},
    ),
    Layout(
        "solo-learn",
        _is_old_solo,
        {"online": (None, "encoder."), "momentum": (None, "momentum_encoder.")},
    ),
)
PLAIN = Layout("torchvision's or timm's names", _is_plain, {"online": (None, "")})
REFUSED = (
    Layout("VISSL", lambda contents: "classy_state_dict" in contents.keys),
    Layout("mmpretrain or mmselfsup", lambda contents: "meta" in contents.keys and _has("backbone")(contents)),
)
