"""Backbones: the only module that builds networks with timm.

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
from torch.overrides import TorchFunctionMode

from nnclr_hub.encoder import cifar_resnet  # noqa: F401  registers its architectures with timm
from nnclr_hub.errors import InvalidRequest, ModelFilesMissing, UnknownModel, WeightsMismatch
from nnclr_hub.hub.layout import WEIGHTS, read_config
from nnclr_hub.hub.repositories import network_errors, require_endpoint

# the paper's names -> timm's names
ALIASES = {
    "vit_tiny": "vit_tiny_patch16_224",
    "vit_small": "vit_small_patch16_224",
    "vit_base": "vit_base_patch16_224",
    "vit_base_patch8": "vit_base_patch8_224",
    "resnet18_cifar": "nnclr_resnet18_cifar",
    "resnet50_cifar": "nnclr_resnet50_cifar",
}
# arguments that make timm load other weights, possibly pickles, without our verification
WEIGHT_ARGUMENTS = {"pretrained", "checkpoint_path", "pretrained_cfg", "pretrained_cfg_overlay"}
# what the initialization of a parameter calls, in torch and in timm
INITIALIZERS = {
    *(Tensor.uniform_, Tensor.normal_, Tensor.erfinv_, Tensor.mul_, Tensor.add_, Tensor.clamp_, Tensor.zero_),
    *(nn.init.uniform_, nn.init.normal_, nn.init.kaiming_uniform_),
}


def timm_name(architecture: str) -> str:
    """Return timm's name of an architecture.

    Raises:
        UnknownModel: timm does not have it; the message names the nearest names.
    """
    name = ALIASES.get(architecture, architecture)
    if not timm.is_model(name):
        close = get_close_matches(name, [*timm.list_models(), *ALIASES], n=3)
        hint = f"did you mean {' or '.join(close)}?" if close else "see timm.list_models()."
        raise UnknownModel(f"timm does not have an architecture {architecture!r}; {hint}")
    return name


def create_backbone(
    architecture: str,
    *,
    model_args: Mapping[str, Any] | None = None,
    image_size: int | None = None,
    pretrained: bool = False,
) -> nn.Module:
    """Build a network without classifier, with fresh weights: (B, 3, H, W) -> (B, D).

    ResNets pool by the mean, vision transformers by the [CLS] token.

    Args:
        architecture: a timm name, or one of ALIASES.
        model_args: arguments of the architecture that differ from timm's defaults, such as {"num_heads": 12}.
        image_size: side of the input in pixels, for networks whose parameters depend on it.
        pretrained: load timm's own weights, from the Hub or its cache.

    Raises:
        UnknownModel: the architecture does not exist, or timm has no weights for it.
        InvalidRequest: the architecture does not accept these arguments.
        ModelFilesMissing: timm's weights cannot be downloaded.
    """
    name = timm_name(architecture)
    if pretrained:
        _require_published(name)
        _require_reachable(name)
    args = _without_weight_arguments(name, model_args or {})
    if image_size is not None and sized(name):
        args.setdefault("img_size", image_size)
    try:
        with _silent_hub_client():
            return timm.create_model(name, pretrained=pretrained, **{"num_classes": 0, **args})
    except OSError as error:  # the errors of huggingface_hub are OSErrors, some of them ValueErrors as well
        raise _not_fetched(name) from error
    except (TypeError, ValueError, AssertionError, RuntimeError) as error:
        raise InvalidRequest(
            f"{name} cannot be built with {args} ({_one_line(error).rstrip('.')}); correct these arguments."
        ) from error


class _WithoutInitialization(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        tensor = kwargs["tensor"] if "tensor" in kwargs else next(iter(args), None)
        return tensor if func in INITIALIZERS and isinstance(tensor, nn.Parameter) else func(*args, **kwargs)


@contextmanager
def uninitialized() -> Iterator[None]:
    """Leave the parameters of networks without values, because random ones take most of the time of building.

    Buffers have their values. The caller's random generator does not advance.
    """
    with _WithoutInitialization(), torch.random.fork_rng(devices=[]):
        yield


def backbone_with_weights(
    architecture: str, state: Mapping[str, Tensor], origin: str, *, model_args: Mapping[str, Any] | None = None
) -> nn.Module:
    """Build a network without classifier and load its weights strictly, as `create_backbone` and `load_state` do."""
    with uninitialized():
        backbone = create_backbone(architecture, model_args=model_args)
    load_state(backbone, state, origin)
    return backbone


def _not_fetched(name: str) -> ModelFilesMissing:
    from huggingface_hub import constants

    hint = "unset HF_HUB_OFFLINE" if constants.HF_HUB_OFFLINE else f"connect to {constants.ENDPOINT}"
    return ModelFilesMissing(
        f"timm's weights for {name} are not in the cache {constants.HF_HUB_CACHE} and cannot be downloaded; {hint}, "
        "set HF_HUB_CACHE to a folder that contains them, or use a model folder."
    )


def _require_reachable(name: str) -> None:
    """Query the Hub once for weights that are not in the cache; timm would retry silently for most of a minute."""
    from huggingface_hub import HfApi, try_to_load_from_cache
    from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

    repository = getattr(_pretrained_cfg(name), "hf_hub_id", None)
    files = ("model.safetensors", "pytorch_model.bin")
    if not repository or any(isinstance(try_to_load_from_cache(repository, file), str) for file in files):
        return
    require_endpoint()
    try:
        HfApi().model_info(repository, timeout=10)
    except HfHubHTTPError:  # the Hub answered, and timm reports its answer
        return
    except (*network_errors(), ConnectionError, TimeoutError, OfflineModeIsEnabled) as error:
        raise _not_fetched(name) from error


def _without_weight_arguments(name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Check that arguments, which may come from an untrusted config.json, do not load other weights."""
    if other := sorted(WEIGHT_ARGUMENTS & arguments.keys()):
        raise InvalidRequest(
            f"The arguments {', '.join(other)} would load unverified weights into {name}; leave them out, and give the "
            "weights as a source."
        )
    return dict(arguments)


@contextmanager
def _silent_hub_client() -> Iterator[None]:
    """Hide the Hub client's log lines about retries; the error that follows has one message."""
    logger = logging.getLogger("huggingface_hub")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(before)


def _require_published(name: str) -> None:
    """Check that timm has weights under this name; it would return random ones with only a log line."""
    published = _pretrained_cfg(name)
    if published is None or not published.has_weights:
        tags = timm.list_pretrained(f"{name.partition('.')[0]}.*")
        hint = f"available: {', '.join(tags[:5])}" if tags else f"use random:{name} for random weights"
        raise UnknownModel(f"timm does not publish weights named {name!r}; {hint}.")


def _pretrained_cfg(name: str) -> Any:
    try:
        return timm.get_pretrained_cfg(name, allow_unregistered=False)
    except RuntimeError:
        return None


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]


def backbone_from_folder(folder: Path, arguments: Mapping[str, Any], weights: str = WEIGHTS) -> nn.Module:
    """Load the weights of a verified model folder into a network built with these timm arguments.

    timm adapts weights to some arguments: num_classes adds a fresh classifier, in_chans folds the first convolution,
    another img_size resamples positions. When timm adapts the classifier it ignores any other missing or unexpected
    weight as well; here that is an error.

    Raises:
        InvalidRequest: the architecture does not accept the arguments.
        WeightsMismatch: the weights do not fit.
    """
    arguments = _without_weight_arguments(str(folder), arguments)
    # this file, not another one that timm would find in the folder or its config.json
    file = {"source": "file", "file": str(folder / weights), "state_dict": None, "custom_load": False}
    _refuse_fresh_layers(folder, arguments)
    try:
        return timm.create_model(f"local-dir:{folder}", pretrained=True, pretrained_cfg_overlay=file, **arguments)
    except (TypeError, ValueError, AssertionError) as error:
        raise InvalidRequest(f"{folder} cannot be built with {arguments}: {_one_line(error)}") from error
    except RuntimeError as error:
        raise WeightsMismatch(f"The weights of {folder} do not fit {arguments}: {_one_line(error)}") from error


def _refuse_fresh_layers(folder: Path, arguments: Mapping[str, Any]) -> None:
    """Check that arguments change no layer of the folder's network except its classifier."""
    config = read_config(folder)
    built = []
    network = {name: value for name, value in arguments.items() if name not in ("features_only", "out_indices")}
    for model_args in (config.model_args, {**config.model_args, **network, "num_classes": 0}):
        with torch.device("meta"), uninitialized():
            built.append(create_backbone(config.architecture, model_args=model_args).state_dict().keys())
    if other := sorted(built[0] ^ built[1]):
        raise WeightsMismatch(
            f"With {dict(arguments)}, {config.architecture} has other layers than the weights in {folder} "
            f"({', '.join(other[:3])}{' ...' if len(other) > 3 else ''}); use only arguments that change the "
            "classifier."
        )


def default_side(architecture: str) -> int:
    """Return timm's input size of an architecture, in pixels."""
    config = _pretrained_cfg(timm_name(architecture))
    return int(config.input_size[-1]) if config is not None else 224


def published_cfg(architecture: str) -> Mapping[str, Any]:
    """Return timm's settings of the weights that it publishes under a name: input, colors, crop.

    Raises:
        UnknownModel: the architecture does not exist.
    """
    config = _pretrained_cfg(timm_name(architecture))
    return {} if config is None else config.to_dict()


def sized(architecture: str) -> bool:
    """Return whether the network's parameters depend on the input size, as in a vision transformer."""
    config = _pretrained_cfg(timm_name(architecture))
    return bool(config is not None and config.fixed_input_size)


def input_side(backbone: nn.Module) -> int | None:
    """Return the only input size, in pixels, that the network takes; None if it takes any."""
    patches: Any = getattr(backbone, "patch_embed", None)
    if getattr(patches, "img_size", None) is None or not getattr(patches, "strict_img_size", True):
        return None
    return int(patches.img_size[0])


def is_convolutional(backbone: nn.Module) -> bool:
    """Return whether most weights are convolutions, which run faster with channels last."""
    convolutions = sum(m.weight.numel() for m in backbone.modules() if isinstance(m, nn.Conv2d))
    return convolutions > sum(p.numel() for p in backbone.parameters()) / 2


@torch.no_grad()
def load_state(backbone: nn.Module, state: Mapping[str, Tensor], origin: str) -> None:
    """Load weights strictly: every key must fit, and none may be missing or unexpected.

    Raises:
        WeightsMismatch: names the first keys that do not fit.
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
                ("unexpected", extra),
                ("of another shape", sorted(shapes)),
                ("not plain numbers", sorted(kinds)),
            )
            if keys
        ]
        raise WeightsMismatch(
            f"The weights of {origin} do not fit the architecture in its config.json ({'; '.join(parts)}); export or "
            "convert the model again."
        )
    backbone.load_state_dict({key: value.to(own[key].dtype) for key, value in state.items()})


def _is_plain(value: Tensor, floating: bool) -> bool:
    # quantized, sparse and complex tensors, and those without data, need other code
    return value.layout is torch.strided and not value.is_meta and (value.is_floating_point() or not floating)
