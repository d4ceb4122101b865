"""The recipes by name, one file per family."""

from __future__ import annotations

from difflib import get_close_matches

from nnclr_hub.errors import UnknownRecipe

from . import imagenet, small, starter, vit
from .auto import Auto
from .recipe import Recipe

RECIPES: dict[str, type[Recipe]] = {
    "auto": Auto,
    "small_cpu": small.SmallCPU,
    "small": small.Small,
    "cifar10_resnet18": small.CIFAR10ResNet18,
    "imagenette_resnet18": small.ImagenetteResNet18,
    "starter_resnet50": starter.StarterResNet50,
    "starter_vit_small": starter.StarterViTSmall,
    "resnet50_imagenet": imagenet.ResNet50ImageNet,
    "resnet50_imagenet_100": imagenet.Epochs100,
    "resnet50_imagenet_200": imagenet.Epochs200,
    "resnet50_imagenet_400": imagenet.Epochs400,
    "resnet50_imagenet_800": imagenet.Epochs800,
    "resnet50_imagenet_ablation": imagenet.Ablation,
    "resnet50_imagenet_multicrop": imagenet.MultiCrop,
    "resnet50_imagenet_momentum": imagenet.Momentum,
    "resnet50_imagenet_crop_only": imagenet.CropOnly,
    "resnet50_imagenet_nnsiam": imagenet.NNSiam,
    "vit_small_imagenet": vit.ViTSmallImageNet,
    "vit_base_imagenet": vit.ViTBaseImageNet,
    "vit_base8_imagenet": vit.ViTBase8ImageNet,
}


def find_recipe(name: str) -> Recipe:
    """Return the recipe of that name, with its default settings.

    Raises:
        UnknownRecipe: an unknown name; the message has the nearest one, or all of them.
    """
    if name not in RECIPES:
        close = get_close_matches(name, RECIPES, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"the recipes are {', '.join(sorted(RECIPES))}."
        raise UnknownRecipe(f"No recipe is named {name!r}; {hint}")
    return RECIPES[name]()


__all__ = ["RECIPES", "Recipe", "find_recipe"]
