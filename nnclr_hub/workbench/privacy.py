"""Remove paths of this machine from what a server sends.

    without_paths("/srv/nnclr-store/catalog.sqlite is damaged")     # "catalog.sqlite is damaged"
    public_name("/srv/models/mine")                                 # "mine"

Messages for the operator name files; messages for clients keep only the last part of a path.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from functools import cache, lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

from nnclr_hub.hub.sources import PYTHON

# metadata that `nnclr index` writes; "root" is a folder of this machine
ROOT = "root"
INDEXED = frozenset({ROOT, "path", "size", "mtime"})


def without_paths(text: str) -> str:
    """Shorten every absolute path that starts with a folder of this machine to its last part."""

    def last_part(found: re.Match[str]) -> str:
        return found[0].rstrip("/.").rpartition("/")[2] + "." * found[0].endswith(".")

    return _paths().sub(last_part, text)


@lru_cache(maxsize=1024)
def public_name(source: str) -> str:
    """Return the name of a model for clients: the last part of a path, a URL without its query (it may be signed)."""
    kind, _, rest = source.partition(":")
    if kind in ("http", "https"):
        return source.partition("?")[0]
    if kind == "file":
        return Path(unquote(urlparse(source).path)).name
    if kind == "python":
        file, _, attribute = rest.rpartition(":")
        return f"python:{Path(file).name}:{attribute}"
    if kind in ("local-dir", "random") and _is_path(rest):
        return Path(rest).name if kind == "local-dir" else f"random:{Path(rest).name}"
    return Path(source).resolve().name if _is_path(source) else source


def public_key(key: str) -> str:
    """Return the metadata key if clients may use it. Filters on the folder would reveal it value by value.

    Raises:
        ValueError: if it is the folder's key.
    """
    if key == ROOT:
        raise ValueError(f"the key {ROOT!r} is a folder of the server and cannot be queried; use 'path'")
    return key


def public_where(where: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the filter if it names only keys that clients may use. Does not check its form otherwise.

    Raises:
        ValueError: if it names the folder's key.
    """
    for conditions in where.values():
        for condition in conditions if isinstance(conditions, list) else ():
            if isinstance(condition, Mapping):
                public_key(condition.get("key", ""))
                public_where(condition)  # which may be a filter itself
    return where


def _is_path(source: str) -> bool:
    return source.startswith((".", "/", "~", os.sep)) or Path(source).is_absolute()


@cache
def _paths() -> re.Pattern[str]:
    """Return a pattern of absolute paths: a top folder of this machine and everything up to a space, quote or bracket.

    Known folders come first, since their names may contain spaces.
    """
    known = {str(Path.home()), str(Path.cwd()), str(Path(__file__).resolve().parents[2])}
    tops = [entry.name for entry in os.scandir("/") if entry.is_dir()]
    starts = [re.escape(one) for one in sorted(known, key=len, reverse=True) if one != "/"]
    starts += [re.escape(f"/{top}") + r"(?=/)" for top in tops]
    # The lookbehind excludes URLs and our own routes. Sources of models have a prefix before the path. That of a
    # function is kept, as in `public_name`, and its path may start with a folder of another machine.
    kinds, rest = "file://|local-dir:|random:", r"[^\s'\"`,;:()\[\]{}<>]*"
    known_path = rf"(?:\b(?:{kinds})|(?<![\w/.~-]))(?:{'|'.join(starts)}){rest}"
    return re.compile(rf"{known_path}|(?<=\b{PYTHON})/{rest}")
