"""Remove old backups, and the pieces that no remaining one uses."""

from __future__ import annotations

import logging

from nnclr_hub.errors import StoreCorrupt, StoreTooNew
from nnclr_hub.store.backup.description import Backup
from nnclr_hub.store.backup.destination import Destination
from nnclr_hub.store.failpoints import reached

log = logging.getLogger(__name__)


def prune(destination: Destination, keep: int) -> tuple[int, int]:
    """Remove all backups but the newest ones; return how many, and the bytes of the pieces that were removed.

    Descriptions are removed first: after a crash, unused pieces may be left, which the next call removes.

    Args:
        destination: locked by the caller.
        keep: number of backups to keep; those with a damaged description do not count.
    """
    ids = destination.ids()
    sound: list[Backup] = []
    unreadable: list[str] = []
    for id in reversed(ids):
        if len(sound) == keep:
            break
        try:
            sound.append(destination.read(id))
        except (StoreCorrupt, StoreTooNew) as error:
            unreadable.append(id)
            log.warning("pieces of old backups are kept, because one of them may be used by a backup (%s)", error)
    old = ids[: len(ids) - len(sound) - len(unreadable)] if len(sound) == keep else []
    destination.remove(old)
    if unreadable:
        return len(old), 0
    used = {hash for backup in sound for hash in backup.pieces}
    freed = 0
    for name, size in destination.pieces().items():
        if name not in used:
            destination.remove_piece(name)
            freed += size
            reached("backup.freed")
    destination.remove_damaged()
    return len(old), freed
