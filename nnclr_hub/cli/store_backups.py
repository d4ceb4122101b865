"""nnclr store backup, restore, verify-backup."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from nnclr_hub.cli.place import opened
from nnclr_hub.cli.verbs import DEFAULT_STORE, Json, Store, err, out, print_json
from nnclr_hub.errors import InvalidRequest

MEGABYTE = 10**6
Source = Annotated[str, typer.Argument(help="Folder or address with backups, for example s3://bucket/nnclr.")]


def register(group: typer.Typer) -> None:
    """Add the verbs."""
    group.command()(backup)
    group.command()(restore)
    group.command(name="verify-backup")(verify_backup)


def backup(
    destination: Annotated[str, typer.Argument(help="Folder, or address such as s3://bucket/nnclr.")],
    store: Store = DEFAULT_STORE,
    keep: Annotated[
        int | None, typer.Option(min=1, help="Number of backups to keep; older ones are removed. Default: all.")
    ] = None,
    verify: Annotated[
        bool, typer.Option("--verify", help="Read the backup before this one, and write damaged files again.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Back up all collections, aliases, jobs and probes. Works while a server uses the store.

    Backups to the same destination copy only what is new.

    Example: nnclr store backup /mnt/backups/nnclr --keep 30
    """
    from nnclr_hub.progress import bar
    from nnclr_hub.store.backup import back_up

    with opened(store, read_only=True) as there, bar(err, "copying", unit="items") as advance:
        report = back_up(there, destination, keep=keep, verify=verify, progress=advance)
    if as_json:
        print_json({"destination": destination, **asdict(report)})
        return
    out.print(
        f"Backup {report.id}: {report.items} items in {report.collections} collections, "
        f"{report.written / MEGABYTE:.1f} MB copied, {report.size / MEGABYTE:.1f} MB in all.",
        soft_wrap=True,
    )
    if report.removed or report.freed:
        out.print(f"{report.removed} older backups were removed; {report.freed / MEGABYTE:.1f} MB were freed.")
    if not report.together:
        err.print(
            "Collections changed during the backup. Each one is consistent, but they are not from the same moment."
        )


def restore(
    source: Source,
    folder: Annotated[Path, typer.Argument(help="Folder of the new store; must not exist.")],
    at: Annotated[
        str | None,
        typer.Option(
            help="Time such as 2026-05-01T12:00, id of a backup, or number of a change. Default: the newest backup."
        ),
    ] = None,
    collection: Annotated[str | None, typer.Option(help="Restore only this collection. Default: all.")] = None,
    as_json: Json = False,
) -> None:
    """Restore a backup to a new store, as it was at a time or after a change.

    Example: nnclr store restore /mnt/backups/nnclr restored-store --at 2026-05-01T12:00
    """
    from nnclr_hub.progress import bar
    from nnclr_hub.store.backup import restore as restore_store

    with bar(err, "restoring", unit="MB") as advance:
        report = restore_store(
            source,
            folder,
            at=_point(at),
            collection=collection,
            progress=lambda done, total: advance(-(-done // MEGABYTE), -(-total // MEGABYTE)),
        )
    if as_json:
        found = {name: {"seq": seq, "items": items} for name, (seq, items) in report.collections.items()}
        print_json({"folder": str(folder), "backup": report.id, "collections": found})
        return
    for name, (seq, items) in report.collections.items():
        out.print(f"{name}: {items} items, as after change {seq}")
    out.print(f"Restored backup {report.id} to {folder}.", soft_wrap=True)


def _point(at: str | None) -> int | datetime | None:
    """Return the number of a change, or a time; the id of a backup is a time, too."""
    if at is None:
        return None
    try:
        return int(at) if at.isdecimal() else datetime.fromisoformat(at)
    except ValueError as error:
        raise InvalidRequest(
            f"--at {at!r} is neither a number nor a time; expected for example 12345 or 2026-05-01T12:00."
        ) from error


def verify_backup(
    source: Source,
    id: Annotated[str | None, typer.Option("--backup", help="Id of one backup. Default: all.")] = None,
    as_json: Json = False,
) -> None:
    """Read every file of the backups back, without restoring them. The exit code is 1 if anything is wrong.

    A damaged file is moved to the folder "damaged" next to the backups. The next backup then writes it again.

    Example: nnclr store verify-backup /mnt/backups/nnclr
    """
    from nnclr_hub.progress import bar
    from nnclr_hub.store.backup import verify_backups

    with bar(err, "verifying", unit="MB") as advance:
        problems = verify_backups(
            source, id=id, progress=lambda done, total: advance(-(-done // MEGABYTE), -(-total // MEGABYTE))
        )
    if as_json:
        print_json([{"id": one, "ok": problem is None, "problem": problem} for one, problem in problems.items()])
    else:
        for one, problem in problems.items():
            out.print(f"{one}: {problem or 'intact'}", style="red" if problem else None, soft_wrap=True)
    if any(problems.values()):
        raise typer.Exit(1)
