"""The recipes by name; one file a family."""

from __future__ import annotations

from difflib import get_close_matches

from nnclr_hub.errors import UnknownRecipe

from .imagenet import ResNet50ImageNet
from .recipe import Recipe
from .small import SmallCPU

RECIPES: dict[str, type[Recipe]] = {
    "resnet50_imagenet": ResNet50ImageNet,
    "small_cpu": SmallCPU,
}


def find_recipe(name: str) -> Recipe:
    """The recipe of that name, with its own settings.

    Raises:
        UnknownRecipe: names the nearest one, or all of them.
    """
    if name not in RECIPES:
        close = get_close_matches(name, RECIPES, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(sorted(RECIPES))}."
        raise UnknownRecipe(f"No recipe is called {name!r}: {hint}")
    return RECIPES[name]()


__all__ = ["RECIPES", "Recipe", "find_recipe"]
