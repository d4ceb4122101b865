"""Files at addresses that fsspec knows, such as s3://bucket/folder, and patterns that name several files.

for address in expand("s3://bucket/data-{000..009}.tar"):
    files, path = open_file_system(address)
"""

from __future__ import annotations

import glob
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any

from nnclr_hub.errors import InvalidRequest, MissingDependency, NNCLRHubError

DRIVERS = {"s3": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "http": "aiohttp", "https": "aiohttp"}  # protocol: package
MOST_NAMES = 100_000  # that one pattern may match
_BRACES = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"(\d+)\.\.(\d+)")
_ADDRESS = re.compile(r"[a-z][a-z0-9+.-]+://.")


def is_address(text: str) -> bool:
    """Return whether it is an address instead of a local path."""
    return _ADDRESS.match(text) is not None


def without_query(address: str) -> str:
    """Return an address of the web without its query, such as the signature of a presigned one; others as they are."""
    return re.split("[?#]", address, maxsplit=1)[0] if address.startswith(("http://", "https://")) else address


def open_file_system(address: str) -> tuple[Any, str]:
    """Return the file system of an address, and the path in it.

    Raises:
        InvalidRequest: the address is invalid.
        MissingDependency: its driver is not installed.
    """
    from fsspec.core import url_to_fs

    try:
        return url_to_fs(address)
    except ImportError as error:
        driver = DRIVERS.get(address.partition("://")[0])
        raise MissingDependency(
            f"The driver for {address} is not installed; pip install {driver}."
            if driver
            else f"The driver for {address} is not installed ({error}); install the package that it names."
        ) from error
    except ValueError as error:
        raise InvalidRequest(
            f"{address!r} is not a valid address ({error}); use one such as s3://BUCKET/FOLDER or https://HOST/FILE."
        ) from error


def expand(pattern: str) -> list[str]:
    """Return the paths or addresses that a pattern names, in order: {a,b} and {000..009}, and *, ? and [...].

    Raises:
        InvalidRequest: it names too many, or the address is invalid.
    """
    found: list[str] = []
    for name in islice(_braces(pattern), MOST_NAMES + 1):
        if not glob.has_magic(name):
            found.append(name)
        elif is_address(name):
            files, path = open_file_system(name)
            with reading(name):
                found += [files.unstrip_protocol(one) for one in sorted(files.glob(path))]
        else:
            found += sorted(glob.glob(name, recursive=True))
    if len(found) > MOST_NAMES:
        raise InvalidRequest(f"{pattern} names more than {MOST_NAMES} files; give the folder that contains them.")
    return found


@contextmanager
def reading(address: str) -> Iterator[None]:
    """Translate the errors of a driver inside the block; every driver raises other classes.

    Raises:
        FileNotFoundError: the file does not exist.
        MissingDependency: the driver needs another package.
        NNCLRHubError: the address cannot be read.
    """
    try:
        yield
    except (NNCLRHubError, FileNotFoundError):
        raise
    except ImportError as error:
        raise MissingDependency(f"The driver for {address} needs a package ({error}); install it.") from error
    except Exception as error:
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        if isinstance(error, OSError) and hasattr(error, "host"):  # aiohttp writes the error in Python's notation
            reason = "the server cannot be reached"
        raise NNCLRHubError(
            f"{address} cannot be read ({reason}); check the address, the network and your credentials, and run the "
            "same command again."
        ) from error


@dataclass(frozen=True, slots=True)
class RemoteBytes:
    """A file at an address, or a part of it, that is read on demand.

    address: address of the file.
    offset, size: where the part begins and how long it is, in bytes; a size of None is the whole file.
    """

    address: str
    offset: int = 0
    size: int | None = None

    def read(self) -> bytes:
        """Return the bytes.

        Raises:
            FileNotFoundError: the file no longer exists.
            NNCLRHubError: it cannot be read.
        """
        files, path = open_file_system(self.address)
        end = None if self.size is None else self.offset + self.size
        with reading(self.address):
            data = files.cat_file(path, start=self.offset if end is not None else None, end=end)
        if self.size is not None and len(data) > self.size:  # the whole file, by a server that ignores Range
            raise NNCLRHubError(
                f"The server cannot send a part of {self.address}; download the file, and give its path."
            )
        return data


def _braces(pattern: str) -> Iterator[str]:
    """Yield the names of a pattern with braces."""
    found = _BRACES.search(pattern)
    parts = [] if found is None else _alternatives(found[1])
    if found is None or not parts:
        yield pattern
        return
    for part in parts:
        for rest in _braces(pattern[found.end() :]):
            yield pattern[: found.start()] + part + rest


def _alternatives(text: str) -> list[str]:
    """Return the alternatives between braces; [] if the braces are part of a name."""
    if found := _RANGE.fullmatch(text):
        first, last = int(found[1]), int(found[2])
        if last < first:
            raise InvalidRequest(f"{{{text}}} counts down; write {{{found[2]}..{found[1]}}}.")
        if last - first > MOST_NAMES:
            raise InvalidRequest(f"{{{text}}} names more than {MOST_NAMES} files; give the folder that contains them.")
        return [str(number).zfill(len(found[1])) for number in range(first, last + 1)]
    return text.split(",") if "," in text else []
