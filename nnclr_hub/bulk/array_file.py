"""Join all shards of a bulk run into one array that numpy reads.

join(open_shards(Path("vectors.npy.shards")), Path("vectors.npy"))

vectors.npy     (N, D) float32 or float16, unit rows
vectors.txt     the name of each row's image, one per line
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from nnclr_hub.bulk.atomic_file import sweep, written_whole
from nnclr_hub.bulk.plan import PRECISIONS
from nnclr_hub.bulk.shards import Shards
from nnclr_hub.errors import ImageError


def join(shards: Shards, array: Path) -> tuple[int, int]:
    """Write the files; they are on disk when this returns. One shard at a time is in memory.

    Args:
        array: its name ends in .npy.

    Returns:
        The shape (N, D).

    Raises:
        InvalidRequest: shards are missing.
        ImageError: no image could be read.
        DiskFull: nothing was written.
    """
    shards.require_all()
    shape = sum(shard.count for shard in shards), shards.plan.dim
    if not shape[0]:
        raise ImageError(f"None of the {shards.plan.images} images could be read; the shards list the reason of each.")
    kind = np.dtype(PRECISIONS[shards.plan.precision])
    with written_whole(array.with_suffix(".txt")) as names, written_whole(array) as rows:
        # written, not memory-mapped: with a full disk, a memory-mapped file would kill the process
        np.lib.format.write_array_header_1_0(
            rows, {"descr": np.lib.format.dtype_to_descr(kind), "fortran_order": False, "shape": shape}
        )
        for shard in shards:
            rows.write(shard.vectors.tobytes())
            names.write(_lines(shard.paths))
    broken = array.with_suffix(".broken.txt")
    broken.unlink(missing_ok=True)
    if reasons := [f"{path}: {reason}" for shard in shards for path, reason in shard.broken]:
        with written_whole(broken) as file:
            file.write(_lines(reasons))
    sweep(array.parent, array.name)
    sweep(array.parent, array.with_suffix(".txt").name)
    return shape


def _lines(texts: Sequence[str]) -> bytes:
    return "".join(text.replace("\n", "\\n") + "\n" for text in texts).encode("utf-8", "surrogateescape")
