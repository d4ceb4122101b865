"""nnclr attention, attention-grid."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nnclr_hub.cli.options import ReadingOptions, reads_images
from nnclr_hub.cli.verbs import (
    Json,
    Model,
    bar,
    check_folder,
    err,
    new_table,
    parse_numbers,
    show,
)
from nnclr_hub.errors import ImageError, InvalidRequest
from nnclr_hub.plural import counted

if TYPE_CHECKING:
    from PIL import Image
    from rich.table import Table

    from nnclr_hub.encoder.attention import AttentionMap, Query

MaxSide = Annotated[int, typer.Option(help="Limit of the long side of the network's input, in pixels.")]
FIGURE = "figure.png"  # all maps in one image, in the output folder
Opacity = Annotated[float, typer.Option(help="Opacity of the map over the image, from 0 to 1.")]


# with one of these suffixes, --out is a file of an unsupported format, not a folder
_OTHER_IMAGES = (".jpg", ".jpeg", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".pdf", ".svg")


def register(app: typer.Typer) -> None:
    """Add the verbs."""
    app.command()(reads_images(attention))
    app.command(name="attention-grid")(attention_grid)


def attention(
    image: Annotated[Path, typer.Argument(help="The image.")],
    point: Annotated[str | None, typer.Option(help="X,Y in pixels of the upright image.")] = None,
    box: Annotated[str | None, typer.Option(help="X0,Y0,X1,Y1 in pixels of the upright image.")] = None,
    target: Annotated[
        list[Path], typer.Option(help="Show the map of this image instead. Repeatable, up to 6 on one scale.")
    ] = [],  # noqa: B006
    similarity: Annotated[str, typer.Option(help="dot (as in the paper) or cosine.")] = "dot",
    head: Annotated[int | None, typer.Option(help="For the [CLS] row: one head, from 0. Default: their mean.")] = None,
    threshold: Annotated[
        float | None, typer.Option(help="For the [CLS] row: keep the fewest patches that hold this share of it.")
    ] = None,
    max_side: Annotated[
        int | None, typer.Option(help="Limit of the long side of the network's input, in pixels. Default: 1024.")
    ] = None,
    center_prior: Annotated[
        bool | None,
        typer.Option(
            help="Weight the map of the whole image by a Gaussian in the center (default), at a short side of 256 "
            "pixels unless --max-side is given; or show the plain map."
        ),
    ] = None,
    opacity: Opacity = 0.6,
    to: Annotated[
        Path, typer.Option("--out", help="Folder for a .png and a .npy per map; or a .png file for a single map.")
    ] = Path("attention"),
    model: Model = None,
    as_json: Json = False,
    *,
    reading: ReadingOptions,
) -> None:
    """Show what an encoder attends to: in the whole image, or relative to a point or a box.

    Example: nnclr attention dog.jpg --box 40,60,200,220 --target park.jpg --target beach.jpg
    """
    from nnclr_hub.encoder.attention import AttentionSettings, check_opacity
    from nnclr_hub.encoder.attention.figure import query_figure
    from nnclr_hub.encoder.attention.query import require_inside
    from nnclr_hub.workbench import Encoders

    check_opacity(opacity)
    query = _query(point, box)
    settings = AttentionSettings(query, similarity, head, threshold, max_side, center_prior)
    settings.has_prior(len(target))  # refuses it for targets before anything is loaded
    paths = _output_paths(image, target, to)
    source = reading.within(model)
    decoded, *_ = [_read(one, source) for one in (image, *target)]
    if query is not None:
        require_inside(query, decoded.size)
    maps = Encoders(source).get().attention_maps(settings, image, target)
    shown = list(zip(target or [image], paths, maps, strict=True))
    to_folder = to.suffix != ".png"
    for _, path, one in shown:
        _write(one, path, opacity, with_values=to_folder)
    if to_folder and (query is not None or target):
        names = [path.name for path in (image, *(target or [image]))]
        (to / FIGURE).write_bytes(query_figure(decoded, query, maps, names, opacity))
    value = [{"image": str(name), "file": str(path), **one.describe()} for name, path, one in shown]
    show(as_json, value, _table(shown))


def attention_grid(
    images: Annotated[list[Path], typer.Argument(help="Images, one per row.")],
    source: Annotated[
        list[str], typer.Option(help="Encoder, one per column; NAME=SOURCE sets its title. Repeatable.")
    ] = [],  # noqa: B006
    max_side: MaxSide = 1024,
    opacity: Opacity = 0.6,
    to: Annotated[Path, typer.Option("--out", help="The .png file to write.")] = Path("attention-grid.png"),
    as_json: Json = False,
) -> None:
    """Compare what several encoders attend to in the same images. Without --source: the six of the paper.

    Example: nnclr attention-grid cat.jpg dog.jpg --source random:resnet18 --source runs/mine/encoder --out grid.png
    """
    from nnclr_hub.encoder.attention import check_opacity

    check_opacity(opacity)
    _require_png(to)
    _refuse_to_overwrite([to], images)
    for image in images:
        _read(image)
    from nnclr_hub.encoder.comparison import COMPARED, compare, comparison_figure

    sources = dict(_named(one) for one in source) if source else COMPARED
    with bar("attention maps") as advance:
        columns = compare(images, sources, max_side=max_side, progress=advance)
    to.parent.mkdir(parents=True, exist_ok=True)
    to.write_bytes(comparison_figure(columns, opacity))
    for column in columns:
        if column.missing:
            err.print(f"{column.name} is empty: {column.missing}", style="yellow", soft_wrap=True)
    shown = [
        {"name": column.name, "missing": column.missing, "maps": [one.describe() for one in column.maps]}
        for column in columns
    ]
    value = {"file": str(to), "images": [str(image) for image in images], "columns": shown}
    show(as_json, value, f"Wrote {to} ({counted(len(images), 'image')} x {counted(len(columns), 'encoder')})")


def _read(path: Path, model: str | None = None) -> Image.Image:
    # for people, as an encoder reads it; errors are reported before torch is loaded
    from nnclr_hub.images.channels import for_people
    from nnclr_hub.images.decode import decode_any
    from nnclr_hub.images.reading import ImageReading

    try:
        return for_people(decode_any(path, ImageReading.of_source(model or "")))
    except ImageError as error:
        raise error.for_image(path, 0) from error


def _query(point: str | None, box: str | None) -> Query | None:
    from nnclr_hub.encoder.attention import Box, Point

    if point is not None and box is not None:
        raise InvalidRequest("Give --point or --box, not both.")
    if point is not None:
        return Point(*parse_numbers("--point", point, "X,Y"))
    return None if box is None else Box(*parse_numbers("--box", box, "X0,Y0,X1,Y1"))


def _named(source: str) -> tuple[str, str]:
    # a source without a name may be a folder or URL that contains "="
    name, equals, where = source.partition("=")
    unnamed = not equals or ":" in name or "?" in name or Path(source).exists()
    return (source, source) if unnamed else (name, where)


def _require_png(file: Path) -> None:
    if file.suffix != ".png":
        raise InvalidRequest(f"--out {file} must end in .png, for example --out {file.with_suffix('.png')}.")


def _output_paths(image: Path, targets: list[Path], to: Path) -> list[Path]:
    """Return the output file of each map; never one of the input images."""
    shown = targets or [image]
    if to.is_file() or to.suffix.lower() in _OTHER_IMAGES:
        _require_png(to)
    if to.suffix == ".png":
        if len(shown) > 1:
            raise InvalidRequest(f"--out {to} is a single file, but there are {len(shown)} maps; use a folder.")
        paths = [to]
    elif len(shown) == 1:
        paths = [to / f"{shown[0].stem}-attention.png"]
    else:
        paths = [to / f"{number}-{path.stem}-attention.png" for number, path in enumerate(shown, 1)]
    extra = [] if to.suffix == ".png" else [*(path.with_suffix(".npy") for path in paths), to / FIGURE]
    if extra:
        check_folder(to, "*-attention.png", "*-attention.npy", inputs=[image, *targets])
    _refuse_to_overwrite([*paths, *extra], [image, *targets])
    return paths


def _refuse_to_overwrite(outputs: list[Path], images: list[Path]) -> None:
    # maps of earlier calls may be replaced, and their arrays, which have no mark of their origin
    from nnclr_hub.encoder.attention.maps import is_map_file

    inputs = {path.resolve() for path in images}
    for path in outputs:
        if path.resolve() in inputs:
            raise InvalidRequest(f"--out would overwrite {path}, which is an input image; use another name.")
        if path.exists() and not is_map_file(path.with_suffix(".png")):
            raise InvalidRequest(f"--out would overwrite {path}, which is not an attention map; use another name.")


def _write(one: AttentionMap, path: Path, opacity: float, *, with_values: bool) -> None:
    import numpy as np

    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(one.png(opacity))
    if with_values:
        np.save(path.with_suffix(".npy"), one.values)


def _table(shown: list[tuple[Path, Path, AttentionMap]]) -> Table:
    table = new_table("image", "map", "cells", "input", "peak", "file")
    for image, file, one in shown:
        height, width = one.values.shape
        sizes = f"{width} x {height}", f"{one.input_size[0]} x {one.input_size[1]}"
        table.add_row(str(image), one.kind, *sizes, f"{one.peak[0]:.0f}, {one.peak[1]:.0f}", str(file))
    return table
