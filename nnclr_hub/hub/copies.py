"""A verified model folder copied to where the user wants it: for a machine without network, or a container."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from nnclr_hub.errors import InvalidRequest, ModelError
from nnclr_hub.hub.integrity import digest_of
from nnclr_hub.hub.layout import BESIDE, CARD, CONFIG, WEIGHTS
from nnclr_hub.hub.sources import Resolved

HALF = ".download-"  # where files lie until they are whole


def keep(found: Resolved, folder: Path) -> Path:
    """Copies a model folder's files, whole or not at all; what is there already is not written again.

    Args:
        found: what `resolve` gave.
        folder: where to; new, empty, or with this very model in it.

    Raises:
        InvalidRequest: the source has no model folder, or the target holds something else.
        ModelError: the target cannot be written.
    """
    if found.folder is None or found.seed is not None:
        raise InvalidRequest(
            f"{found.architecture} has no model folder to copy: timm keeps its weights in HF_HUB_CACHE."
        )
    named = {CARD: CARD, **{name: name for name in BESIDE}, found.weights: WEIGHTS, CONFIG: CONFIG}
    wanted = {target: found.folder / name for name, target in named.items() if (found.folder / name).is_file()}
    try:
        missing = _not_there(folder, wanted)
        for left_over in folder.glob(f"{HALF}*"):
            shutil.rmtree(left_over, ignore_errors=True)
        if not missing:
            return folder
        folder.mkdir(parents=True, exist_ok=True)
        half = Path(tempfile.mkdtemp(prefix=HALF, dir=folder))
        try:
            for name, source in missing.items():
                shutil.copyfile(source, half / name)  # the bytes alone: a cache's files may be links, or read-only
            for name in missing:  # config.json the last: without it the folder is none
                os.replace(half / name, folder / name)
        finally:
            shutil.rmtree(half, ignore_errors=True)
    except OSError as error:
        raise ModelError(
            f"{folder} cannot be written ({error.strerror}): name another folder, or make room."
        ) from error
    return folder


def _not_there(folder: Path, wanted: dict[str, Path]) -> dict[str, Path]:
    """Those of the files that the target lacks.

    Raises:
        InvalidRequest: it holds others.
    """
    there = {path.name: path for path in folder.iterdir()} if folder.exists() else {}
    there = {name: path for name, path in there.items() if not name.startswith(HALF)}
    other = [name for name, path in there.items() if name not in wanted or digest_of(path) != digest_of(wanted[name])]
    if other:
        raise InvalidRequest(f"{folder} holds something else ({', '.join(sorted(other)[:3])}): name a new folder.")
    return {name: path for name, path in wanted.items() if name not in there}
