"""Backups of an embedded store: consistent while it is written, incremental, and restorable to any commit.

back_up(store, "s3://bucket/nnclr")
verify_backups("s3://bucket/nnclr")
restore("s3://bucket/nnclr", Path("restored"), at=datetime(2026, 5, 1, tzinfo=UTC))
"""

from nnclr_hub.store.backup.creation import BackupReport, back_up
from nnclr_hub.store.backup.restoration import Restored, restore
from nnclr_hub.store.backup.verification import verify_backups

__all__ = ["BackupReport", "Restored", "back_up", "restore", "verify_backups"]
