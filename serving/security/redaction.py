"""Paths of this machine, taken out of what is told to strangers.

The library's sentences name folders, for its user sits before the machine; a client of the server does not.
"""

from __future__ import annotations

import os
import re
from functools import cache


@cache
def _pattern() -> re.Pattern[str]:
    """An absolute path that begins with a folder at the root of this machine; addresses of ours do not."""
    tops = sorted((re.escape(name) for name in os.listdir("/")), key=len, reverse=True)
    # a path goes on to a quote, bracket, comma or blank; its last stop or colon belongs to the sentence
    return re.compile(rf"(?<![\w.:/-])(?:file://|local-dir:)?/(?:{'|'.join(tops)})(?:/[^\s'\"`,;:()<>\]]*)?(?<![.])")


def without_paths(sentence: str) -> str:
    """The sentence with each path of this machine shortened to its last name.

    >>> without_paths("/home/me/models/mine is no folder")
    'mine is no folder'
    """
    return _pattern().sub(lambda found: found[0].rstrip("/").rpartition("/")[2], sentence)
