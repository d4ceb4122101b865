"""Pictures that cannot be read."""

from __future__ import annotations

from nnclr_hub.errors.root import NNCLRHubError


class ImageError(NNCLRHubError):
    """One picture cannot be read; the others of its batch are not concerned."""

    code = "undecodable_image"


class UnsupportedImage(ImageError):
    """A picture in a format, or with a number of channels, that we do not read."""

    code = "unsupported_image"


class ImageTooLarge(ImageError):
    """A picture with more pixels than the limit."""

    code = "image_too_large"
