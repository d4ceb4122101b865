"""The options --channels, --page, --project and --scale, which all verbs that read images share.

@reads_images
def embed(images: ..., model: Model = None, *, reading: ReadingOptions) -> None: ...
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from nnclr_hub.errors import InvalidRequest

if TYPE_CHECKING:
    from nnclr_hub.images.reading import ImageReading
    from nnclr_hub.images.tiles import Tiling
    from nnclr_hub.table_rows import LabelTable

_PANEL = "Images of several pages or channels"
_OPTIONS: dict[str, Any] = {
    "channels": Annotated[
        str | None,
        typer.Option(
            "--channels",
            help="Channels to read, from 0: three as RGB, such as 0,2,1; one as gray.",
            rich_help_panel=_PANEL,
        ),
    ],
    "page": Annotated[int | None, typer.Option("--page", min=0, help="Page to read, from 0.", rich_help_panel=_PANEL)],
    "project": Annotated[
        str | None, typer.Option("--project", help="max: the maximum over all pages.", rich_help_panel=_PANEL)
    ],
    "scale": Annotated[
        str | None,
        typer.Option(
            "--scale",
            help="To 8 bits: depth, by the bit depth of the file, or range, from minimum to maximum per channel.",
            rich_help_panel=_PANEL,
        ),
    ],
}


@dataclass(frozen=True)
class ReadingOptions:
    """The options as given; None where left out."""

    channels: tuple[int, ...] | None = None
    page: int | None = None
    project: str | None = None
    scale: str | None = None

    @property
    def given(self) -> bool:
        """Whether any of the options was given."""
        return self != ReadingOptions()

    def over(self, reading: ImageReading) -> ImageReading:
        """Return a reading with the given options instead of those that it has."""
        return reading.updated(**vars(self))

    def check(self, source: str, collection: str) -> None:
        """Check that a collection reads images as the given options say.

        Args:
            source: of the collection's encoder.

        Raises:
            InvalidRequest: it reads them differently.
        """
        from nnclr_hub.images.reading import ImageReading

        existing = ImageReading.of_source(source)
        if self.over(existing) != existing:
            raise InvalidRequest(
                f"Collection {collection!r} reads images with {existing if str(existing) else 'all channels'}; leave "
                "out --channels, --page, --project and --scale, or use another collection."
            )

    def within(self, model: str | None) -> str | None:
        """Return the source of an encoder that reads images in this way; without options, the source as it is."""
        if not self.given:
            return model
        from nnclr_hub.hub.registry import default_model
        from nnclr_hub.images.reading import ImageReading

        source = model or default_model()
        return self.over(ImageReading.of_source(source)).within(source)


_TILES: dict[str, Any] = {
    "tile": Annotated[
        int | None,
        typer.Option("--tile", help="Cut large images into tiles of this side in pixels.", rich_help_panel=_PANEL),
    ],
    "overlap": Annotated[
        int | None, typer.Option("--overlap", help="Pixels that neighboring tiles share.", rich_help_panel=_PANEL)
    ],
    "skip_empty": Annotated[
        bool, typer.Option("--skip-empty", help="Leave out tiles of background.", rich_help_panel=_PANEL)
    ],
}


def reads_tiles(verb: Callable[..., None]) -> Callable[..., None]:
    """Add --tile, --overlap and --skip-empty to a verb, which gets them as `tiling`, and those of `reads_images`."""

    def tiling(given: dict[str, Any]) -> Tiling | None:
        side, overlap, skip_empty = (given.pop(name) for name in _TILES)
        if side is None:
            if overlap is not None or skip_empty:
                raise InvalidRequest("--overlap and --skip-empty need --tile, such as --tile 512.")
            return None
        from nnclr_hub.images.tiles import Tiling

        return Tiling(side, overlap or 0, skip_empty)

    return reads_images(combine_options(verb, "tiling", _TILES, {"skip_empty": False}, tiling))


_LABELS: dict[str, Any] = {
    "labels": Annotated[
        Path | None,
        typer.Option(
            "--labels", exists=True, help="CSV with the columns path (or id) and label, used instead of folder names."
        ),
    ],
    "root": Annotated[
        Path | None, typer.Option("--root", exists=True, help="Folder to which the paths of --labels are relative.")
    ],
    "path_column": Annotated[str | None, typer.Option("--path-column", help="Column of --labels with the paths.")],
    "label_column": Annotated[str | None, typer.Option("--label-column", help="Column of --labels with the labels.")],
}


def reads_labels(verb: Callable[..., None]) -> Callable[..., None]:
    """Add --labels, --root, --path-column and --label-column to a verb, which gets them as a `LabelTable`."""

    def table(given: dict[str, Any]) -> LabelTable | None:
        file, *options = (given.pop(name) for name in _LABELS)
        if file is None:
            names = [name for name, option in zip(list(_LABELS)[1:], options, strict=True) if option is not None]
            if names:
                raise InvalidRequest(f"--{names[0].replace('_', '-')} describes the table of --labels; give that, too.")
            return None
        from nnclr_hub.table_rows import LabelTable

        return LabelTable(file, *options)

    return combine_options(verb, "labels", _LABELS, {}, table)


def reads_images(verb: Callable[..., None]) -> Callable[..., None]:
    """Add --channels, --page, --project and --scale to a verb, which gets them as one argument `reading`."""

    def reading(given: dict[str, Any]) -> ReadingOptions:
        chosen = {name: given.pop(name) for name in _OPTIONS}
        return ReadingOptions(**{**chosen, "channels": _channels(chosen["channels"])})

    return combine_options(verb, "reading", _OPTIONS, {}, reading)


def combine_options(
    verb: Callable[..., None],
    argument: str,
    options: Mapping[str, Any],
    defaults: Mapping[str, Any],
    combine: Callable[[dict[str, Any]], Any],
) -> Callable[..., None]:
    """Replace an argument of a verb by options, which `combine` takes out of the given ones."""
    hints = {name: hint for name, hint in get_type_hints(verb, include_extras=True).items() if name != argument}
    parameters = [one for one in inspect.signature(verb).parameters.values() if one.name != argument]

    def with_options(**given: Any) -> None:
        value = combine(given)
        verb(**given, **{argument: value})

    with_options.__name__, with_options.__doc__ = verb.__name__, verb.__doc__
    with_options.__annotations__ = {**hints, **options}
    with_options.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [one.replace(annotation=hints.get(one.name, one.annotation)) for one in parameters]
        + [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=defaults.get(name), annotation=hint)
            for name, hint in options.items()
        ]
    )
    return with_options


def _channels(text: str | None) -> tuple[int, ...] | None:
    try:
        return None if text is None else tuple(int(one) for one in text.split(","))
    except ValueError as error:
        raise InvalidRequest(
            f"--channels must be numbers with commas between them, such as 0,2,1; got {text}."
        ) from error
