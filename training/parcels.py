"""What travels to and from a machine that one has for minutes: data sets as tar files, weights in small parts.

folder = unpacked(Path("mix128.tar.gz"), Path("work/data"))
send([model_folder], Path("carry"), "nnclr_resnet50_starter")
# there: cat nnclr_resnet50_starter.tar.* | tar x
"""

from __future__ import annotations

import io
import shutil
import tarfile
from collections.abc import Sequence
from pathlib import Path

from nnclr_hub.errors import InvalidRequest

PART = 16 * 2**20 - 2**16  # bytes of a part, a little below 16 MiB


def unpacked(source: Path, where: Path) -> Path:
    """The data folder itself, or the one that a tar file, compressed or not, is unpacked to below `where`.

    A tar file whose members lie in one folder of its own name becomes that folder. One that was unpacked
    before is not unpacked again.

    Raises:
        InvalidRequest: neither a folder nor a tar file.
    """
    if source.is_dir():
        return source
    name = source.name.split(".tar")[0]
    if (where / name).is_dir():
        return where / name
    half = where / f"{name}.part"
    shutil.rmtree(half, ignore_errors=True)
    try:
        with tarfile.open(source) as tar:
            tar.extractall(half, filter="data")
    except (OSError, tarfile.TarError) as error:
        raise InvalidRequest(f"{source} is neither a folder nor a tar file ({error}): name one.") from error
    inside = list(half.iterdir())
    whole = inside[0] if [one.name for one in inside] == [name] else half
    whole.rename(where / name)
    shutil.rmtree(half, ignore_errors=True)
    return where / name


def send(paths: Sequence[Path], where: Path, name: str, part: int = PART) -> list[Path]:
    """Writes files and folders as NAME.tar.00, NAME.tar.01, ...; `cat NAME.tar.* | tar x` puts them together.

    Args:
        paths: files and folders, each under its own name.
        where: folder of the parts; older ones of that name go.
        name: of the parts.
        part: most bytes of one.
    """
    where.mkdir(parents=True, exist_ok=True)
    for old in where.glob(f"{name}.tar.*"):
        old.unlink()
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w") as tar:
        for path in paths:
            tar.add(path, path.name)
    content = whole.getbuffer()
    parts = []
    for number, start in enumerate(range(0, len(content), part)):
        parts.append(where / f"{name}.tar.{number:02}")
        parts[-1].write_bytes(content[start : start + part])
    return parts
