"""The recipes by name."""

from __future__ import annotations

import dataclasses
from difflib import get_close_matches

from nnclr_hub.errors import UnknownRecipe

from .auto import AUTO
from .imagenet import IMAGENET
from .recipe import Preset, Recipe
from .small import SMALL_SETS

RECIPES: dict[str, Preset] = {"auto": AUTO, **SMALL_SETS, **IMAGENET}


def find_recipe(name: str) -> Recipe:
    """Return the recipe of that name, with its default settings.

    Raises:
        UnknownRecipe: an unknown name; the message has the nearest one, or all of them.
    """
    if name not in RECIPES:
        close = get_close_matches(name, RECIPES, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"the recipes are {', '.join(sorted(RECIPES))}."
        raise UnknownRecipe(f"No recipe is named {name!r}; {hint}")
    return dataclasses.replace(RECIPES[name].recipe, name=name)


__all__ = ["RECIPES", "Preset", "Recipe", "find_recipe"]
