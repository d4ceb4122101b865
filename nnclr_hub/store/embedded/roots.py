"""The root catalog anew, from the collections' own files: each knows its name as well."""

from __future__ import annotations

import logging
import os
from contextlib import closing
from pathlib import Path

from nnclr_hub.errors import InvalidRequest, NNCLRHubError, StoreError
from nnclr_hub.store.checks import check_name
from nnclr_hub.store.embedded.catalog import connect, create_root, fsync_folder, translated
from nnclr_hub.store.lock import give_back, take_lock

log = logging.getLogger(__name__)
CATALOG = "catalog.sqlite"
LOST = "lost+found"
WAY_ON = "make it anew from the collections' own files with `nnclr store repair`, without naming a collection"


def has_collections(folder: Path) -> bool:
    """Whether a store's folder holds files of collections."""
    return any((folder / "collections").glob("*.sqlite"))


def write_name(path: Path, name: str) -> None:
    """Has a collection's file know its name; what cannot be done now, the root catalog knows all the same."""
    try:
        with closing(connect(path)) as connection, translated(path):
            connection.execute("INSERT OR REPLACE INTO meta VALUES ('name', ?)", [name])
    except NNCLRHubError as error:
        log.warning("the file of collection %s keeps its earlier name (%s)", name, error)


def rebuild_catalog(folder: Path) -> dict[str, str]:
    """Makes the root catalog anew from what the old one still says, and else from the collections' files.

    The old one is kept in lost+found. A collection whose name is known nowhere is called `recovered-...`; aliases
    that the old one no longer gives are gone.

    Returns:
        The stems of the collections' files by name.

    Raises:
        InvalidRequest: there are no collections.
        StoreLocked: the store is open for writing.
    """
    if not has_collections(folder):
        raise InvalidRequest(f"{folder} holds no collections: name another folder, or index images first.")
    lock = take_lock(folder)
    try:
        return _rebuild(folder)
    finally:
        give_back(lock)


def _rebuild(folder: Path) -> dict[str, str]:
    old, new = folder / CATALOG, folder / f"{CATALOG}.new"
    for suffix in ("", "-wal", "-shm"):  # of an attempt that was cut short
        Path(f"{new}{suffix}").unlink(missing_ok=True)
    known, aliases = _read(old, "SELECT uuid, name FROM collections"), _read(old, "SELECT alias, name FROM aliases")
    names: dict[str, str] = {}
    for path in sorted((folder / "collections").glob("*.sqlite")):
        name = _possible(known.get(path.stem)) or _own_name(path) or f"recovered-{path.stem[:8]}"
        free = (f"{name}.{number}" for number in range(2, len(names) + 3))
        names[name if name not in names else next(one for one in free if one not in names)] = path.stem
    with closing(connect(new, create=True)) as root, translated(new):
        create_root(root)
        root.execute("BEGIN IMMEDIATE")
        root.executemany("INSERT INTO collections VALUES (?, ?)", names.items())
        root.executemany(
            "INSERT INTO aliases VALUES (?, ?)",
            [(one, name) for one, name in aliases.items() if name in names and _possible(one) and one not in names],
        )
        root.execute("COMMIT")
    _keep(old, folder / LOST)
    os.replace(new, old)
    fsync_folder(folder)
    return names


def _keep(old: Path, lost: Path) -> None:
    """Moves the catalog into lost+found; a crash after this finds none, and has it made anew again."""
    lost.mkdir(exist_ok=True)
    number = sum(1 for file in lost.glob(f"{old.stem}-damaged*{old.suffix}"))
    for suffix in ("-shm", "-wal", ""):
        file = Path(f"{old}{suffix}")
        if file.exists():
            os.replace(file, lost / f"{old.stem}-damaged{number}{old.suffix}{suffix}")
    fsync_folder(lost)
    fsync_folder(lost.parent)


def _read(root: Path, statement: str) -> dict[str, str]:
    """Pairs from the old catalog, as far as they can be read."""
    found: dict[str, str] = {}
    try:
        with closing(connect(root, read_only=True)) as connection, translated(root):
            for key, value in connection.execute(statement):
                found[key] = value
    except StoreError as error:
        log.warning("the catalog cannot be read whole (%s)", error)
    return found


def _own_name(path: Path) -> str | None:
    """What a collection's file says that it is called."""
    try:
        with closing(connect(path, read_only=True)) as connection, translated(path):
            row = connection.execute("SELECT value FROM meta WHERE key = 'name'").fetchone()
    except StoreError as error:
        log.warning("the name in %s cannot be read (%s)", path, error)
        return None
    return _possible(row[0]) if row else None


def _possible(name: object) -> str | None:
    try:
        return check_name(name, "Name")  # pyright: ignore[reportArgumentType] - which is refused
    except InvalidRequest:
        return None
