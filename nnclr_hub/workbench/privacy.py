"""No path of this machine in what the server says.

    without_paths("/srv/nnclr-store/catalog.sqlite is damaged")     # "catalog.sqlite is damaged"
    public_name("/srv/models/mine")                                 # "mine"

Sentences for the one who runs the server name files; those that go over the wire keep the last part of a path.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from functools import cache, lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

# metadata that `nnclr index` writes; the folder is this machine's own
ROOT = "root"
INDEXED = frozenset({ROOT, "path", "size", "mtime"})


def without_paths(text: str) -> str:
    """The text with the last part alone of every absolute path that begins with a folder that this machine has."""
    return _paths().sub(lambda found: found[0].rstrip("/.").rpartition("/")[2] + _tail(found[0]), text)


@lru_cache(maxsize=1024)
def public_name(source: str) -> str:
    """What a model is called over the wire: its source, of a folder the folder's name alone, of a web address nothing
    that may be a signature."""
    kind, _, rest = source.partition(":")
    if kind in ("http", "https"):
        return source.partition("?")[0]
    if kind == "file":
        return Path(unquote(urlparse(source).path)).name
    if kind in ("local-dir", "random") and _is_path(rest):
        return Path(rest).name if kind == "local-dir" else f"random:{Path(rest).name}"
    return Path(source).resolve().name if _is_path(source) else source


def public_metadata(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """An item's metadata; of a folder that was indexed on this machine, its name alone."""
    shown = dict(metadata)
    if shown.keys() >= INDEXED and isinstance(shown[ROOT], str):
        shown[ROOT] = shown[ROOT].rstrip("/\\").replace("\\", "/").rpartition("/")[2]
    return shown


def public_key(key: str) -> str:
    """The metadata key, if it may be asked for: answers by values of the folder's would tell them one by one.

    Raises:
        ValueError: it is that of the folder.
    """
    if key == ROOT:
        raise ValueError(f"the key {ROOT!r} names a folder of the server and is not to be asked for: use 'path'")
    return key


def public_where(where: Mapping[str, Any]) -> Mapping[str, Any]:
    """The filter, if it names only keys that may be asked for; what is no filter is for others to refuse.

    Raises:
        ValueError: it names the folder's.
    """
    for conditions in where.values():
        for condition in conditions if isinstance(conditions, list) else ():
            if isinstance(condition, Mapping):
                public_key(condition.get("key", ""))
    return where


def _is_path(source: str) -> bool:
    return source.startswith((".", "/", "~", os.sep)) or Path(source).is_absolute()


@cache
def _paths() -> re.Pattern[str]:
    """Absolute paths: a top folder of this machine and all up to a blank, a quote or a bracket.

    Known folders come first, whatever they are called: they may hold blanks.
    """
    known = {str(Path.home()), str(Path.cwd()), str(Path(__file__).resolve().parents[2])}
    tops = [entry.name for entry in os.scandir("/") if entry.is_dir()]
    starts = [re.escape(one) for one in sorted(known, key=len, reverse=True) if one != "/"]
    starts += [re.escape(f"/{top}") + r"(?=/)" for top in tops]
    # the lookbehind keeps web addresses and our own routes; sources of models carry their kind before the path
    kinds = "file://|local-dir:|random:"
    return re.compile(rf"(?:\b(?:{kinds})|(?<![\w/.:~-]))(?:{'|'.join(starts)})[^\s'\"`,;:()\[\]{{}}<>]*")


def _tail(path: str) -> str:
    return "." if path.endswith(".") else ""
