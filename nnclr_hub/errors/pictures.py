"""Images that cannot be read."""

from __future__ import annotations

from pathlib import Path

from nnclr_hub.errors.root import NNCLRHubError


class ImageError(NNCLRHubError):
    """One image cannot be read; the others of its batch are not concerned."""

    code = "undecodable_image"

    def named(self, image: object, index: int) -> ImageError:
        """The same error with the image's path, or with its number where it has none."""
        which = str(image) if isinstance(image, str | Path) else f"number {index}"
        return type(self)(f"Image {which}: {self}")


class UnsupportedImage(ImageError):
    """An image in a format, or with a number of channels, that we do not read."""

    code = "unsupported_image"


class ImageTooLarge(ImageError):
    """An image with more pixels than the limit."""

    code = "image_too_large"
