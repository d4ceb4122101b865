"""nnclr embed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nnclr_hub.cli.index import list_broken, none_read
from nnclr_hub.cli.verbs import Backend, Model, err, loaded_encoder
from nnclr_hub.errors import ImageError, InvalidRequest, NNCLRHubError

if TYPE_CHECKING:
    from nnclr_hub.bulk.local import Embedded
    from nnclr_hub.encoder.encoder import Encoder

ARRAY = ".npy"
SHARD_SIZE = 4096  # as in bulk/plan.py, with which numpy and Pillow would come to every verb
OTHER_FILES = (".parquet", ".csv", ".json", ".jsonl", ".npz", ".pt", ".safetensors", ".txt", ".h5")


def register(app: typer.Typer) -> None:
    """Adds the verb."""
    app.command()(embed)


def embed(
    images: Annotated[list[Path], typer.Argument(help="Images, folders of them, or tar files of them.")],
    model: Model = None,
    to: Annotated[
        Path | None, typer.Option("--out", help="FILE.npy, names beside it; or a FOLDER, for shards of any number.")
    ] = None,
    precision: Annotated[str, typer.Option(help="f32, or f16 in half the room.")] = "f32",
    shard_size: Annotated[int, typer.Option(help="Images a shard, the most that a kill loses.")] = SHARD_SIZE,
    part: Annotated[
        str, typer.Option(metavar="K/N", help="Make every N-th shard only: N of these, beside each other, make all.")
    ] = "1/1",
    retry_broken: Annotated[bool, typer.Option("--retry-broken", help="Try unreadable images once more.")] = False,
    ray: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Embed on a Ray cluster: its address, auto, or local.")
    ] = None,
    workers: Annotated[int | None, typer.Option(help="With --ray: encoders; else one a GPU, or a machine.")] = None,
    backend: Backend = "auto",
) -> None:
    """Turn images into vectors: a line of JSON each, one .npy file, or shards; again, to go on after a stop.

    Example: nnclr embed photos --out photos.npy
    """
    _check_options(to, precision, shard_size, part, ray, workers)
    how: dict[str, Any] = {"precision": precision, "shard_size": shard_size, "retry_broken": retry_broken}
    how |= {"part": _part(part)} if ray is None else {"address": ray, "workers": workers, "backend": backend}
    _look_ahead(images, to, how)
    encoder = loaded_encoder(model, backend)
    if to is None:
        _print_lines(images, encoder)
    elif to.suffix == ARRAY:
        _write_array(to, images, encoder, how)
    else:
        report = _write_shards(to, images, encoder, how)
        missing = f"; {report.missing} of {report.shards} shards are still missing" if report.missing else ""
        err.print(f"written: {to} ({report.pictures} x {encoder.embed_dim} {precision}){missing}", markup=False)


def _check_options(
    to: Path | None, precision: str, shard_size: int, part: str, ray: str | None, workers: int | None
) -> None:
    """Refuses options that do not go together."""
    if ray is None and workers is not None:
        raise InvalidRequest("--workers goes with --ray: on this machine one encoder uses all it has.")
    if ray is not None and part != "1/1":
        raise InvalidRequest("Ray hands out all shards by itself: give --part or --ray.")
    if to is None and (part != "1/1" or ray is not None):
        raise InvalidRequest("--part and --ray write shards: name the folder for them with --out.")
    if to is None and (precision, shard_size) != ("f32", SHARD_SIZE):
        raise InvalidRequest("--precision and --shard-size are of what --out writes: lines are printed in full.")
    if to is not None and to.suffix in OTHER_FILES:
        raise InvalidRequest(f"--out {to} is no file that is written here: name a FILE.npy, or a folder for shards.")
    if to is not None and to.suffix == ARRAY and part != "1/1":
        raise InvalidRequest(f"--part writes shards: name a folder for them, for example --out {to.with_suffix('')}.")


def _look_ahead(images: list[Path], to: Path | None, how: dict[str, Any]) -> None:
    """What `embed_shards` would refuse once an encoder is loaded, as far as a look at names and numbers shows it."""
    from nnclr_hub.bulk.image_list import list_pictures
    from nnclr_hub.bulk.plan import check_folder, check_form, check_part

    check_form(how["precision"], how["shard_size"])
    check_part(how.get("part", (1, 1)))
    if to is not None:
        check_folder(_shards_of(to) if to.suffix == ARRAY else to)
    for place in images:
        if not place.exists() or (place.is_dir() and not any(place.iterdir())):
            list_pictures([place])  # says so; a listing of millions of files is left to the run


def _print_lines(images: list[Path], encoder: Encoder) -> None:
    """A line for each image as soon as it is embedded; those that cannot be read are named at the end."""
    from nnclr_hub.bulk.image_list import contents, list_pictures, named

    sources, pictures = list_pictures(images)
    broken: list[tuple[str, str]] = []
    for picture, result in zip(pictures, encoder.embed_in_order(contents(sources, pictures)), strict=True):
        name = named(sources, picture)
        if isinstance(result, ImageError):
            broken.append((name, str(result)))
        else:
            typer.echo(json.dumps({"path": name, "embedding": result.tolist()}))
    list_broken(broken)
    if len(broken) == len(pictures):
        raise none_read(len(pictures))


def _write_shards(folder: Path, images: list[Path], encoder: Encoder, how: dict[str, Any]) -> Embedded:
    from nnclr_hub.bulk import embed_shards, embed_shards_by_ray
    from nnclr_hub.progress import bar

    with bar(err, "embedding") as advance:
        run = embed_shards_by_ray if "address" in how else embed_shards
        report = run(folder, images, encoder, **how, progress=advance)
    list_broken(report.broken)
    if report.broken and not report.pictures:
        raise none_read(len(report.broken))
    return report


def _write_array(array: Path, images: list[Path], encoder: Encoder, how: dict[str, Any]) -> None:
    """By way of shards beside it, which are removed when it is there."""
    from nnclr_hub.bulk import open_shards
    from nnclr_hub.bulk.joining import join

    folder = _shards_of(array)
    try:
        report = _write_shards(folder, images, encoder, how)
        count, dim = join(open_shards(folder), array)
    except FileNotFoundError as error:
        raise NNCLRHubError(
            f"{folder} went away: another call like this one has finished {array} meanwhile, or somebody removed it. "
            "Look, or call again."
        ) from error
    shutil.rmtree(folder, ignore_errors=True)
    names = array.with_suffix(".txt")
    left_out = f"; {len(report.broken)} images could not be read" if report.broken else ""
    err.print(f"written: {array} ({count} x {dim} {how['precision']}) and {names}{left_out}", markup=False)


def _shards_of(array: Path) -> Path:
    """Where the vectors of an array are kept until all are there."""
    return array.with_name(f"{array.name}.shards")


def _part(text: str) -> tuple[int, int]:
    try:
        number, of = (int(word) for word in text.split("/"))
    except ValueError as error:
        raise InvalidRequest(f"--part {text} is no part: write it like 2/8, the second of eight.") from error
    return number, of
