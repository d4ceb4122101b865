"""Copy a verified model folder, for example for a machine without network or a container."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from nnclr_hub.errors import InvalidRequest, ModelError
from nnclr_hub.hub.integrity import digest_of
from nnclr_hub.hub.layout import CARD, CONFIG, OPTIONAL, WEIGHTS
from nnclr_hub.hub.sources import Resolved

TEMPORARY = ".download-"  # prefix of the folder for incomplete files


def keep(found: Resolved, folder: Path) -> Path:
    """Copy the files of a model folder, each completely or not at all; existing files are not written again.

    Args:
        folder: the target; new, empty, or with this model in it.

    Raises:
        InvalidRequest: the source has no model folder, or the target contains other files.
        ModelError: the target cannot be written.
    """
    if found.folder is None or found.seed is not None:
        raise InvalidRequest(
            f"{found.architecture} does not have a model folder to copy; timm keeps its weights in HF_HUB_CACHE."
        )
    targets = {CARD: CARD, **{name: name for name in OPTIONAL}, found.weights: WEIGHTS, CONFIG: CONFIG}
    wanted = {target: found.folder / name for name, target in targets.items() if (found.folder / name).is_file()}
    try:
        missing = _missing(folder, wanted)
        for left_over in folder.glob(f"{TEMPORARY}*"):
            shutil.rmtree(left_over, ignore_errors=True)
        if not missing:
            return folder
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=TEMPORARY, dir=folder, ignore_cleanup_errors=True) as temporary:
            half = Path(temporary)
            for name, source in missing.items():
                shutil.copyfile(
                    source, half / name
                )  # without permissions and links: the files of a cache may be read-only links
            for name in missing:  # config.json last, because a folder without it is not a model folder
                os.replace(half / name, folder / name)
    except OSError as error:
        raise ModelError(
            f"{folder} cannot be written ({error.strerror}); use another folder, or free some space."
        ) from error
    return folder


def _missing(folder: Path, wanted: dict[str, Path]) -> dict[str, Path]:
    """Return the files that are missing in the target."""
    there = {path.name: path for path in folder.iterdir()} if folder.exists() else {}
    there = {name: path for name, path in there.items() if not name.startswith(TEMPORARY)}
    other = [name for name, path in there.items() if name not in wanted or digest_of(path) != digest_of(wanted[name])]
    if other:
        raise InvalidRequest(f"{folder} contains other files ({', '.join(sorted(other)[:3])}); use a new folder.")
    return {name: path for name, path in wanted.items() if name not in there}
