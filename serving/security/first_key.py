"""The key that a server makes for itself when it is started for others and nobody gave it one.

first_key(Path("/data/keys"))       # made there, and returned; None if there are keys already
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from nnclr_hub.errors import InvalidRequest


def first_key(file: Path) -> str | None:
    """Writes a file with one new key that may read and write, for its owner's eyes alone.

    Returns:
        The key, which is nowhere shown again; None if the file is there already.

    Raises:
        InvalidRequest: the file cannot be written.
    """
    key = secrets.token_urlsafe(32)
    try:
        handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return None
    except OSError as error:
        raise InvalidRequest(
            f"The file of keys {file} cannot be made ({error.strerror}): name one in a folder that this user may write."
        ) from error
    with os.fdopen(handle, "w") as out:
        out.write(f"write first:{key}\n")
        out.flush()
        os.fsync(out.fileno())
    return key
