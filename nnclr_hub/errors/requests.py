"""Arguments that make no sense."""

from __future__ import annotations

from nnclr_hub.errors.root import NNCLRHubError


class InvalidRequest(NNCLRHubError, ValueError):
    """An argument makes no sense; the message names it and what it may be."""

    code = "invalid_request"


class InvalidFilter(InvalidRequest):
    """A `where` filter that cannot be read."""

    code = "invalid_filter"


class UnknownRecipe(InvalidRequest):
    """No pretraining recipe of that name."""

    code = "unknown_recipe"


class UnknownSetting(InvalidRequest):
    """No setting of that name in the recipe, or a value that it cannot take."""

    code = "unknown_setting"


class NoImages(InvalidRequest):
    """A folder that holds no image in a format we read."""

    code = "no_images"
