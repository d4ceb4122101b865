"""Backbones: the one place that builds networks with timm.

backbone = create_backbone("resnet50")          # (B, 3, H, W) -> (B, 2048)
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import timm
import torch
from torch import Tensor, nn

from nnclr_hub.encoder import cifar_resnet  # noqa: F401  registers its architectures with timm
from nnclr_hub.errors import InvalidRequest, ModelFilesMissing, UnknownModel, WeightsMismatch
from nnclr_hub.hub.layout import WEIGHTS, read_config
from nnclr_hub.hub.repositories import network_errors, require_endpoint

# the paper's names for timm's
ALIASES = {
    "vit_tiny": "vit_tiny_patch16_224",
    "vit_small": "vit_small_patch16_224",
    "vit_base": "vit_base_patch16_224",
    "vit_base_patch8": "vit_base_patch8_224",
    "resnet18_cifar": "nnclr_resnet18_cifar",
    "resnet50_cifar": "nnclr_resnet50_cifar",
}
# arguments by which timm would take weights from elsewhere, a pickle among them, past all that was verified
ELSEWHERE = {"pretrained", "checkpoint_path", "pretrained_cfg", "pretrained_cfg_overlay"}


def timm_name(architecture: str) -> str:
    """timm's name of an architecture.

    Raises:
        UnknownModel: timm has none of that name; the sentence names the nearest.
    """
    name = ALIASES.get(architecture, architecture)
    if not timm.is_model(name):
        close = get_close_matches(name, [*timm.list_models(), *ALIASES], n=3)
        hint = f"did you mean {' or '.join(close)}?" if close else "see timm.list_models()."
        raise UnknownModel(f"timm has no architecture {architecture!r}: {hint}")
    return name


def create_backbone(
    architecture: str,
    *,
    model_args: Mapping[str, Any] | None = None,
    image_size: int | None = None,
    pretrained: bool = False,
) -> nn.Module:
    """A network without classifier, freshly initialized: (B, 3, H, W) -> (B, D).

    ResNets pool by the mean, vision transformers by the [CLS] token.

    Args:
        architecture: a timm name, or one of ALIASES.
        model_args: arguments of the architecture beside timm's defaults, such as {"num_heads": 12}.
        image_size: side of the input in pixels, for networks whose parameters depend on it.
        pretrained: take timm's own weights, which need the network or its cache.

    Raises:
        UnknownModel: no such architecture, or no weights of timm's for it.
        InvalidRequest: it does not take those arguments.
        ModelFilesMissing: timm's own weights cannot be fetched.
    """
    name = timm_name(architecture)
    if pretrained:
        _require_published(name)
        _require_reachable(name)
    args = _of_the_network(name, model_args or {})
    if image_size is not None and sized(name):
        args.setdefault("img_size", image_size)
    try:
        with _hub_kept_quiet():
            return timm.create_model(name, pretrained=pretrained, **{"num_classes": 0, **args})
    except OSError as error:  # huggingface_hub's errors are OSErrors, some of them ValueErrors as well
        raise _not_fetched(name) from error
    except (TypeError, ValueError, AssertionError, RuntimeError) as error:
        raise InvalidRequest(
            f"{name} cannot be built with {args} ({_in_a_line(error).rstrip('.')}): correct these arguments."
        ) from error


def _not_fetched(name: str) -> ModelFilesMissing:
    from huggingface_hub import constants

    what = "unset HF_HUB_OFFLINE" if constants.HF_HUB_OFFLINE else f"connect to {constants.ENDPOINT}"
    return ModelFilesMissing(
        f"timm's weights for {name} are not in the cache {constants.HF_HUB_CACHE} and cannot be fetched: {what}, set "
        "HF_HUB_CACHE to a folder that has them, or give a model folder."
    )


def _require_reachable(name: str) -> None:
    """Asks the Hub once for weights that are not in its cache: timm would try for most of a minute, and say nothing.

    Raises:
        ModelFilesMissing: nobody answers.
    """
    from huggingface_hub import HfApi, try_to_load_from_cache
    from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

    repository = getattr(_pretrained_cfg(name), "hf_hub_id", None)
    files = ("model.safetensors", "pytorch_model.bin")
    if not repository or any(isinstance(try_to_load_from_cache(repository, file), str) for file in files):
        return
    require_endpoint()
    try:
        HfApi().model_info(repository, timeout=10)
    except HfHubHTTPError:  # it has answered; what, timm meets again
        return
    except (*network_errors(), ConnectionError, TimeoutError, OfflineModeIsEnabled) as error:
        raise _not_fetched(name) from error


def _of_the_network(name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments, which may come from anybody's config.json, unless one of them would bring other weights."""
    if other := sorted(ELSEWHERE & arguments.keys()):
        raise InvalidRequest(
            f"{name} is built without {', '.join(other)}, which would bring weights that nobody verified: leave that "
            "out, and give the weights as a source."
        )
    return dict(arguments)


@contextmanager
def _hub_kept_quiet() -> Iterator[None]:
    """Without the Hub client's lines about each retry; what comes of them is one sentence."""
    logger = logging.getLogger("huggingface_hub")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(before)


def _require_published(name: str) -> None:
    """Refuses names that timm has no weights for: it would hand out random ones with no more than a log line."""
    published = _pretrained_cfg(name)
    if published is None or not published.has_weights:
        tags = timm.list_pretrained(f"{name.partition('.')[0]}.*")
        hint = f"there are {', '.join(tags[:5])}" if tags else f"random:{name} gives it without"
        raise UnknownModel(f"timm publishes no weights called {name!r}: {hint}.")


def _pretrained_cfg(name: str) -> Any:
    """timm's settings of an architecture; None for a tag that it does not have."""
    try:
        return timm.get_pretrained_cfg(name, allow_unregistered=False)
    except RuntimeError:
        return None


def _in_a_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]


def backbone_from_folder(folder: Path, arguments: Mapping[str, Any], weights: str = WEIGHTS) -> nn.Module:
    """The weights of a verified model folder in a network with these arguments of timm's.

    timm itself adapts what they change: num_classes adds a fresh classifier, in_chans folds the first
    convolution, another img_size resamples positions. Where it adapts the classifier it would pass over any other
    weight that is missing or left over as well; that is refused here.

    Raises:
        InvalidRequest: the architecture does not take them.
        WeightsMismatch: the weights do not fit.
    """
    given = _of_the_network(str(folder), arguments)
    # this file, and no other that timm would find in the folder or its config.json
    file = {"source": "file", "file": str(folder / weights), "state_dict": None, "custom_load": False}
    _refuse_fresh_layers(folder, given)
    try:
        return timm.create_model(f"local-dir:{folder}", pretrained=True, pretrained_cfg_overlay=file, **given)
    except (TypeError, ValueError, AssertionError) as error:
        raise InvalidRequest(f"{folder} cannot be built with {dict(arguments)}: {_in_a_line(error)}") from error
    except RuntimeError as error:
        raise WeightsMismatch(f"The weights of {folder} do not fit {dict(arguments)}: {_in_a_line(error)}") from error


def _refuse_fresh_layers(folder: Path, arguments: Mapping[str, Any]) -> None:
    """Refuses arguments that give the network other layers than its folder's, but for the classifier."""
    config = read_config(folder)
    built = []
    network = {name: value for name, value in arguments.items() if name not in ("features_only", "out_indices")}
    for given in (config.model_args, {**config.model_args, **network, "num_classes": 0}):
        with torch.device("meta"), torch.random.fork_rng(devices=[]):
            built.append(create_backbone(config.architecture, model_args=given).state_dict().keys())
    if other := sorted(built[0] ^ built[1]):
        raise WeightsMismatch(
            f"{dict(arguments)} gives {config.architecture} other layers than {folder} has weights of "
            f"({', '.join(other[:3])}{' ...' if len(other) > 3 else ''}), and they would be random or lost: leave out "
            "what changes more than the classifier."
        )


def default_side(architecture: str) -> int:
    """timm's own input size of an architecture, in pixels."""
    config = _pretrained_cfg(timm_name(architecture))
    return int(config.input_size[-1]) if config is not None else 224


def published_cfg(architecture: str) -> Mapping[str, Any]:
    """timm's settings of the weights that it publishes under that name: input, colors, crop.

    Raises:
        UnknownModel: no such architecture.
    """
    config = _pretrained_cfg(timm_name(architecture))
    return {} if config is None else config.to_dict()


def sized(architecture: str) -> bool:
    """Whether the network's parameters depend on the input's size, as a vision transformer's do."""
    config = _pretrained_cfg(timm_name(architecture))
    return bool(config is not None and config.fixed_input_size)


def input_side(backbone: nn.Module) -> int | None:
    """The one input size, in pixels, that the network takes; None where any will do."""
    patches: Any = getattr(backbone, "patch_embed", None)
    if getattr(patches, "img_size", None) is None or not getattr(patches, "strict_img_size", True):
        return None
    return int(patches.img_size[0])


def is_convolutional(backbone: nn.Module) -> bool:
    """Whether most weights are convolutions, which run faster with channels last."""
    convolutions = sum(m.weight.numel() for m in backbone.modules() if isinstance(m, nn.Conv2d))
    return convolutions > sum(p.numel() for p in backbone.parameters()) / 2


@torch.no_grad()
def load_state(backbone: nn.Module, state: Mapping[str, Tensor], origin: str) -> None:
    """Loads weights strictly: every key must fit, none may be missing or left over.

    Raises:
        WeightsMismatch: names the first keys that do not.
    """
    own = backbone.state_dict()
    missing, extra = sorted(own.keys() - state.keys()), sorted(state.keys() - own.keys())
    both = own.keys() & state.keys()
    shapes = [key for key in both if own[key].shape != state[key].shape]
    kinds = [key for key in both if not _is_plain(state[key], own[key].is_floating_point())]
    if missing or extra or shapes or kinds:
        parts = [
            f"{what} {', '.join(keys[:3])}{' ...' if len(keys) > 3 else ''}"
            for what, keys in (
                ("missing", missing),
                ("not expected", extra),
                ("of another shape", sorted(shapes)),
                ("no real numbers", sorted(kinds)),
            )
            if keys
        ]
        raise WeightsMismatch(
            f"The weights of {origin} do not fit the architecture that its config.json names ({'; '.join(parts)}): "
            "export or convert the model again."
        )
    backbone.load_state_dict({key: value.to(own[key].dtype) for key, value in state.items()})


def _is_plain(value: Tensor, floating: bool) -> bool:
    """Whether a tensor holds its numbers themselves: no codes of a quantized network, no pairs, nothing left out."""
    return value.layout is torch.strided and not value.is_meta and (value.is_floating_point() or not floating)
