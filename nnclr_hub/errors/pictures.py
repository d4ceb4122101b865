"""Pictures that cannot be read."""

from __future__ import annotations

from pathlib import Path

from nnclr_hub.errors.root import NNCLRHubError


class ImageError(NNCLRHubError):
    """One picture cannot be read; the others of its batch are not concerned."""

    code = "undecodable_image"

    def named(self, image: object, index: int) -> ImageError:
        """The same error with the picture's path, or with its number where it has none."""
        which = str(image) if isinstance(image, str | Path) else f"number {index}"
        return type(self)(f"Image {which}: {self}")


class UnsupportedImage(ImageError):
    """A picture in a format, or with a number of channels, that we do not read."""

    code = "unsupported_image"


class ImageTooLarge(ImageError):
    """A picture with more pixels than the limit."""

    code = "image_too_large"
