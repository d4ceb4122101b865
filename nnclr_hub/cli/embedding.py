"""nnclr embed."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nnclr_hub.cli.options import ReadingOptions, reads_tiles
from nnclr_hub.cli.verbs import Backend, Model, bar, check_file, err, list_broken, none_read
from nnclr_hub.errors import ImageError, InvalidRequest, NNCLRHubError
from nnclr_hub.plural import counted

if TYPE_CHECKING:
    from nnclr_hub.bulk.local import Embedded
    from nnclr_hub.encoder.encoder import Encoder

SHARD_SIZE = 4096  # as in bulk/plan.py, which would import numpy and Pillow for every verb
# how the files begin
STARTS = {".npy": b"\x93NUMPY", ".npz": b"PK", ".parquet": b"PAR1", ".csv": b"id,path,label,metadata,"}
# not that of a folder such as shards-v1.2 or shards.2026-11-23
_FILE_SUFFIX = re.compile(r"\.([A-Za-z]{1,8}|h5|hdf5|safetensors)")


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command()(reads_tiles(embed))


def embed(
    images: Annotated[
        list[str],
        typer.Argument(
            help="Images, folders or tar files of images; also addresses (s3://BUCKET/DIR) and patterns "
            "('data-{000..009}.tar').",
        ),
    ],
    model: Model = None,
    to: Annotated[
        Path | None,
        typer.Option("--out", help="FILE.npy, FILE.npz, FILE.parquet or FILE.csv; or a FOLDER of shards."),
    ] = None,
    precision: Annotated[str, typer.Option(help="f32, or f16 for half the space.")] = "f32",
    shard_size: Annotated[
        int, typer.Option(help="Images per shard; an interruption loses at most one shard.")
    ] = SHARD_SIZE,
    part: Annotated[
        str,
        typer.Option(metavar="K/N", help="Write only the K-th of N parts of the shards."),
    ] = "1/1",
    ray: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Embed on a Ray cluster: its address, auto, or local.")
    ] = None,
    workers: Annotated[int | None, typer.Option(help="With --ray: number of encoders. Default: one per GPU.")] = None,
    backend: Backend = "auto",
    *,
    reading: ReadingOptions,
    tiling: Any,
) -> None:
    """Turn images into vectors: JSON lines, a file, or shards. Run it again to continue after an interruption.

    Example: nnclr embed photos --out photos.npy

    Example: nnclr embed 's3://bucket/data-{000..009}.tar' --out vectors.parquet
    """
    _check_options(to, precision, shard_size, part, ray, workers)
    if tiling is not None and ray is not None:
        raise InvalidRequest("--tile and --ray cannot be combined; use --part on several machines.")
    how: dict[str, Any] = {"precision": precision, "shard_size": shard_size}
    how |= (
        {"part": _part(part), "tiling": tiling}
        if ray is None
        else {"address": ray, "workers": workers, "backend": backend}
    )
    _check_inputs(images, to, how)
    from nnclr_hub.workbench import Encoders

    encoder: Any = Encoders(reading.within(model), backend=backend).get()
    if to is None:
        _print_lines(images, encoder, tiling)
    elif _is_file(to):
        _write_file(to, images, encoder, how)
    else:
        report = _write_shards(to, images, encoder, how)
        missing = f"; {report.missing} of {counted(report.shards, 'shard')} still missing" if report.missing else ""
        err.print(f"Wrote {to} ({report.images} x {encoder.embed_dim} {precision}){missing}")


def _check_options(
    to: Path | None, precision: str, shard_size: int, part: str, ray: str | None, workers: int | None
) -> None:
    """Refuse options that contradict each other."""
    if ray is None and workers is not None:
        raise InvalidRequest("--workers needs --ray; on one machine a single encoder uses all resources.")
    if ray is not None and part != "1/1":
        raise InvalidRequest("Give --part or --ray, not both; Ray distributes the shards itself.")
    if to is None and (part != "1/1" or ray is not None):
        raise InvalidRequest("--part and --ray write shards; set --out to a folder.")
    if to is None and (precision, shard_size) != ("f32", SHARD_SIZE):
        raise InvalidRequest("--precision and --shard-size need --out; JSON lines have full precision.")
    if to is not None and _FILE_SUFFIX.fullmatch(to.suffix) and not _is_file(to) and not to.is_dir():
        raise InvalidRequest(
            f"--out {to} must end in .npy, .npz, .parquet or .csv, or be a folder for shards, whose name does not end "
            "like that of a file if it is new."
        )
    if to is not None and _is_file(to) and part != "1/1":
        raise InvalidRequest(f"--part writes shards; set --out to a folder, for example --out {to.with_suffix('')}.")


def _check_inputs(images: list[str], to: Path | None, how: dict[str, Any]) -> None:
    """Report what `embed_shards` would refuse, as far as it is known before an encoder is loaded."""
    from nnclr_hub.bulk.joined_file import check_format
    from nnclr_hub.bulk.plan import check_folder, check_form
    from nnclr_hub.images.listing import find_images, find_places

    check_form(how["precision"], how["shard_size"], how.get("part", (1, 1)))
    if to is not None:
        check_folder(_shards_of(to) if _is_file(to) else to)
        check_format(to)
        if _is_file(to):
            check_file(to, STARTS[to.suffix.lower()])
    for place in find_places(images):
        if Path(place).is_dir() and not any(Path(place).iterdir()):
            find_images([place])  # raises; millions of files are listed only by the run itself


def _print_lines(images: list[str], encoder: Encoder, tiling: Any) -> None:
    """Print a line for each image as soon as it is embedded; list unreadable images at the end."""
    from nnclr_hub.images.listing import in_tiles, list_places, prefixed_keys
    from nnclr_hub.workbench.folder_changes import metadata_of

    places, listed = list_places(images)
    if sum(bool(place.archive) for place in places) > 1:
        listed = list(prefixed_keys(listed))
    if tiling is not None:
        listed = list(in_tiles(listed, tiling, encoder.reading))
    broken: list[tuple[str, str]] = []
    for one, result in zip(listed, encoder.embed_in_order(listed), strict=True):
        name = str(one)
        if isinstance(result, ImageError):
            broken.append((name, str(result)))
        else:
            metadata = metadata_of(one)
            line = {"id": one.key or name, "path": name} | ({"metadata": metadata} if metadata else {})
            typer.echo(json.dumps(line | {"embedding": result.tolist()}))
    list_broken(broken)
    if len(broken) == len(listed):
        raise none_read(len(listed))


def _write_shards(folder: Path, images: list[str], encoder: Encoder, how: dict[str, Any]) -> Embedded:
    from nnclr_hub.bulk import embed_shards, embed_shards_by_ray

    with bar("embedding") as advance:
        run = embed_shards_by_ray if "address" in how else embed_shards
        report = run(folder, images, encoder, **how, progress=advance)
    list_broken(report.broken)
    if report.broken and not report.images:
        raise none_read(len(report.broken))
    return report


def _write_file(file: Path, images: list[str], encoder: Encoder, how: dict[str, Any]) -> None:
    """Write shards next to the file, join them, and remove them."""
    from nnclr_hub.bulk import open_shards
    from nnclr_hub.bulk.joined_file import ARRAY, join

    folder = _shards_of(file)
    try:
        report = _write_shards(folder, images, encoder, how)
        count, dim = join(open_shards(folder), file)
    except FileNotFoundError as error:
        raise NNCLRHubError(
            f"{folder} no longer exists: another process completed {file} or removed the folder. Check "
            "the file, or repeat the command."
        ) from error
    shutil.rmtree(folder, ignore_errors=True)
    names = f" and {file.with_suffix('.txt')}" if file.suffix.lower() == ARRAY else ""
    left_out = f"; {counted(len(report.broken), 'image')} could not be read" if report.broken else ""
    err.print(f"Wrote {file} ({count} x {dim} {how['precision']}){names}{left_out}")


def _is_file(to: Path) -> bool:
    from nnclr_hub.bulk.joined_file import FORMATS

    return to.suffix.lower() in FORMATS


def _shards_of(file: Path) -> Path:
    return file.with_name(f"{file.name}.shards")


def _part(text: str) -> tuple[int, int]:
    try:
        number, of = (int(word) for word in text.split("/"))
    except ValueError as error:
        raise InvalidRequest(f"--part must be like 2/8, the second of eight; got {text}.") from error
    return number, of
