"""nnclr attention, attention-grid."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from nnclr_hub.cli.verbs import Json, Model, err, loaded_encoder, out, print_json
from nnclr_hub.errors import ImageError, InvalidRequest

if TYPE_CHECKING:
    from PIL import Image

    from nnclr_hub.encoder.attention import AttentionMap, Query

MaxSide = Annotated[int, typer.Option(help="Long side of the network's input at the most, in pixels.")]
FIGURE = "figure.png"  # of all maps, in the folder
Opacity = Annotated[float, typer.Option(help="Of the map over the image, from 0 to 1.")]


# of --out: whoever writes one means a file, and would find a folder of that name
_OTHER_IMAGES = (".jpg", ".jpeg", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".pdf", ".svg")


def register(app: typer.Typer) -> None:
    """Adds the verbs."""
    app.command()(attention)
    app.command(name="attention-grid")(attention_grid)


def attention(
    image: Annotated[Path, typer.Argument(help="The image that is asked about.")],
    point: Annotated[str | None, typer.Option(help="X,Y in pixels of the upright image.")] = None,
    box: Annotated[str | None, typer.Option(help="X0,Y0,X1,Y1 in pixels of the upright image.")] = None,
    target: Annotated[
        list[Path], typer.Option(help="Look in this image instead; repeatable, up to 6 on one scale.")
    ] = [],  # noqa: B006
    similarity: Annotated[str, typer.Option(help="dot, the paper's, or cosine.")] = "dot",
    head: Annotated[int | None, typer.Option(help="Of the [CLS] row: one head, from 0; else their mean.")] = None,
    threshold: Annotated[
        float | None, typer.Option(help="Of the [CLS] row: keep the fewest patches with this share of it.")
    ] = None,
    max_side: MaxSide = 1024,
    opacity: Opacity = 0.6,
    to: Annotated[
        Path, typer.Option("--out", help="Folder for a .png and an .npy a map; or one .png file for one map.")
    ] = Path("attention"),
    model: Model = None,
    as_json: Json = False,
) -> None:
    """Show what an encoder looks at: in the whole image, or where it finds a point or a box.

    Example: nnclr attention dog.jpg --box 40,60,200,220 --target park.jpg --target beach.jpg
    """
    from nnclr_hub.encoder.attention import AttentionSettings, check_opacity
    from nnclr_hub.encoder.attention.figure import query_figure
    from nnclr_hub.encoder.attention.query import require_inside

    check_opacity(opacity)
    query = _query(point, box)
    settings = AttentionSettings(query, similarity, head, threshold, max_side)
    paths = _places(image, target, to)
    picture, *_ = [_read(one) for one in (image, *target)]
    if query is not None:
        require_inside(query, picture.size)
    maps = loaded_encoder(model).attention_maps(settings, image, target)
    shown = list(zip(target or [image], paths, maps, strict=True))
    to_folder = to.suffix != ".png"
    for _, path, one in shown:
        _write(one, path, opacity, with_values=to_folder)
    if to_folder and (query is not None or target):
        names = [path.name for path in (image, *(target or [image]))]
        (to / FIGURE).write_bytes(query_figure(picture, query, maps, names, opacity))
    if as_json:
        print_json([{"image": str(name), "file": str(path), **one.describe()} for name, path, one in shown])
        return
    _print(shown)


def attention_grid(
    images: Annotated[list[Path], typer.Argument(help="Images, one row each.")],
    source: Annotated[
        list[str], typer.Option(help="Encoder, one column each; NAME=SOURCE shows a name of your own. Repeatable.")
    ] = [],  # noqa: B006
    max_side: MaxSide = 1024,
    opacity: Opacity = 0.6,
    to: Annotated[Path, typer.Option("--out", help="The .png file to write.")] = Path("attention-grid.png"),
    as_json: Json = False,
) -> None:
    """Compare what several encoders look at in the same images, as one figure; without --source, the paper's six.

    Example: nnclr attention-grid cat.jpg dog.jpg --source random:resnet18 --source runs/mine/encoder --out grid.png
    """
    from nnclr_hub.encoder.attention import check_opacity
    from nnclr_hub.progress import bar

    check_opacity(opacity)
    _require_png(to)
    _refuse_to_overwrite([to], images)
    for image in images:
        _read(image)
    from nnclr_hub.encoder.comparison import COMPARED, compare, comparison_figure

    sources = dict(_named(one) for one in source) if source else COMPARED
    with bar(err, "looking") as advance:
        columns = compare(images, sources, max_side=max_side, progress=advance)
    to.parent.mkdir(parents=True, exist_ok=True)
    to.write_bytes(comparison_figure(columns, opacity))
    for column in columns:
        if column.missing:
            err.print(f"{column.name} is left empty: {column.missing}", style="yellow", markup=False, soft_wrap=True)
    if as_json:
        shown = [
            {"name": column.name, "missing": column.missing, "maps": [one.describe() for one in column.maps]}
            for column in columns
        ]
        print_json({"file": str(to), "images": [str(image) for image in images], "columns": shown})
        return
    out.print(f"written: {to} ({len(images)} images x {len(columns)} encoders)")


def _read(path: Path) -> Image.Image:
    """An image: one that cannot be read is told before torch is loaded.

    Raises:
        ImageError: names it.
    """
    from nnclr_hub.encoder.decoding import decode_image

    try:
        return decode_image(path)
    except ImageError as error:
        raise error.for_image(path, 0) from error


def _query(point: str | None, box: str | None) -> Query | None:
    from nnclr_hub.encoder.attention import Box, Point

    if point is not None and box is not None:
        raise InvalidRequest("Give --point or --box, not both.")
    if point is not None:
        return Point(*_numbers("--point", point, 2))
    return None if box is None else Box(*_numbers("--box", box, 4))


def _numbers(option: str, text: str, count: int) -> list[float]:
    form = "X,Y" if count == 2 else "X0,Y0,X1,Y1"
    try:
        numbers = [float(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if len(numbers) != count:
        raise InvalidRequest(f"{option} {text} is not {form}: give {count} numbers with commas between them.")
    return numbers


def _named(source: str) -> tuple[str, str]:
    """NAME=SOURCE, or a source that is its own name; a folder and an address may hold "=" themselves."""
    name, equals, where = source.partition("=")
    own = not equals or ":" in name or Path(source).exists()
    return (source, source) if own else (name, where)


def _require_png(file: Path) -> None:
    if file.suffix != ".png":
        raise InvalidRequest(f"--out {file} must end in .png, for example --out {file.with_suffix('.png')}.")


def _places(image: Path, targets: list[Path], to: Path) -> list[Path]:
    """Where each map's image goes; never over an image that was given."""
    shown = targets or [image]
    if to.is_file() or to.suffix.lower() in _OTHER_IMAGES:
        _require_png(to)
    if to.suffix == ".png":
        if len(shown) > 1:
            raise InvalidRequest(f"--out {to} is one file, and there are {len(shown)} maps: name a folder.")
        places = [to]
    elif len(shown) == 1:
        places = [to / f"{shown[0].stem}-attention.png"]
    else:
        places = [to / f"{number}-{path.stem}-attention.png" for number, path in enumerate(shown, 1)]
    beside = [] if to.suffix == ".png" else [*(place.with_suffix(".npy") for place in places), to / FIGURE]
    _refuse_to_overwrite([*places, *beside], [image, *targets])
    return places


def _refuse_to_overwrite(places: list[Path], pictures: list[Path]) -> None:
    """Nothing is written over but a map of an earlier call, and the array beside one, which bears no mark itself."""
    from nnclr_hub.encoder.attention.maps import is_map_file

    given = {path.resolve() for path in pictures}
    for place in places:
        if place.resolve() in given:
            raise InvalidRequest(f"--out would write over {place}, which is an image to look at: name another.")
        if place.exists() and not is_map_file(place.with_suffix(".png")):
            raise InvalidRequest(f"--out would write over {place}, which no earlier call has written: name another.")


def _write(one: AttentionMap, path: Path, opacity: float, *, with_values: bool) -> None:
    import numpy as np

    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(one.png(opacity))
    if with_values:
        np.save(path.with_suffix(".npy"), one.values)


def _print(shown: list[tuple[Path, Path, AttentionMap]]) -> None:
    table = Table(box=None, header_style="bold")
    for heading in ("picture", "map", "cells", "input", "most at", "file"):
        table.add_column(heading, overflow="fold")  # a path that is cut short is of no use
    for image, file, one in shown:
        height, width = one.values.shape
        sizes = f"{width} x {height}", f"{one.input_size[0]} x {one.input_size[1]}"
        table.add_row(str(image), one.kind, *sizes, f"{one.peak[0]:.0f}, {one.peak[1]:.0f}", str(file))
    out.print(table)
