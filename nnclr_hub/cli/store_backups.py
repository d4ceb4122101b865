"""nnclr store backup, backups, verify-backup, restore."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from nnclr_hub.cli.place import Place, on_store
from nnclr_hub.cli.verbs import Json, err, out, print_json
from nnclr_hub.errors import InvalidRequest

MEGABYTE = 10**6
Source = Annotated[str, typer.Argument(help="Folder or address with backups, for example s3://bucket/nnclr.")]


def register(group: typer.Typer) -> None:
    """Add the verbs."""
    group.command()(on_store(backup))
    group.command()(backups)
    group.command(name="verify-backup")(verify_backup)
    group.command()(restore)


def backup(
    destination: Annotated[
        str | None,
        typer.Argument(help="Folder, or address such as s3://bucket/nnclr. With --server, leave it out."),
    ] = None,
    keep: Annotated[
        int | None, typer.Option(min=1, help="Number of backups to keep; older ones are removed. Default: all.")
    ] = None,
    as_json: Json = False,
    *,
    place: Place,
) -> None:
    """Back up all collections, aliases, jobs and probes. Works while a server uses the store.

    Backups to the same destination copy only what is new. The exit code is 1 if a collection is damaged: then the
    backup has all others, and no older backup is removed.

    Example: nnclr store backup /mnt/backups/nnclr --keep 30
    """
    from nnclr_hub.progress import bar, in_megabytes
    from nnclr_hub.workbench.maintenance import BackupRequest

    if (destination is None) != (place.server is not None):
        raise InvalidRequest("Name a destination; with --server leave it out, because the server has its own.")
    with place.bench(read_only=True) as bench, bar(err, "copying", unit="MB") as advance:
        report = bench.run("backup", BackupRequest(keep, destination), in_megabytes(advance))
    if as_json:
        print_json({"destination": destination, **report})
        return
    out.print(
        f"Backup {report['id']}: {report['items']} items in {report['collections']} collections, "
        f"{report['written'] / MEGABYTE:.1f} MB copied, {report['size'] / MEGABYTE:.1f} MB in all.",
        soft_wrap=True,
    )
    if report["removed"] or report["freed"]:
        out.print(f"{report['removed']} older backups were removed; {report['freed'] / MEGABYTE:.1f} MB were freed.")


def backups(source: Source, as_json: Json = False) -> None:
    """List the backups, oldest first. Ids are times in UTC.

    Example: nnclr store backups /mnt/backups/nnclr
    """
    from nnclr_hub.store.backup import list_backups

    rows = [
        {"id": one.id, "collections": one.collections, "aliases": one.aliases, "size": one.size}
        for one in list_backups(source)
    ]
    if as_json:
        print_json(rows)
        return
    for row in rows:
        counts = ", ".join(f"{name} ({items} items)" for name, items in row["collections"].items())
        out.print(f"{row['id']}: {row['size'] / MEGABYTE:.1f} MB, {counts or 'no collections'}", soft_wrap=True)


def restore(
    source: Source,
    folder: Annotated[Path, typer.Argument(help="Folder of the new store; does not exist, or is empty.")],
    at: Annotated[
        str | None,
        typer.Option(
            help="Id of a backup, or a time such as 2026-05-01T12:00 in the time zone of this machine, or "
            "2026-05-01T12:00Z in UTC: the last backup until then. Default: the newest."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Restore a backup to a new store.

    Example: nnclr store restore /mnt/backups/nnclr restored-store --at 2026-05-01T12:00
    """
    from nnclr_hub.progress import bar, in_megabytes
    from nnclr_hub.store.backup import restore as restore_store

    with bar(err, "restoring", unit="MB") as advance:
        backup = restore_store(source, folder, at, progress=in_megabytes(advance))
    if as_json:
        print_json({"folder": str(folder), "backup": backup.id, "collections": backup.collections})
        return
    for name, items in backup.collections.items():
        out.print(f"{name}: {items} items")
    out.print(f"Restored backup {backup.id} to {folder}.", soft_wrap=True)


def verify_backup(
    source: Source,
    as_json: Json = False,
) -> None:
    """Read every file of the backups back, without restoring them. The exit code is 1 if anything is wrong.

    Delete a file that is reported as damaged: the next backup writes its content again.

    Example: nnclr store verify-backup /mnt/backups/nnclr
    """
    from nnclr_hub.progress import bar, in_megabytes
    from nnclr_hub.store.backup import verify_backups

    with bar(err, "verifying", unit="MB") as advance:
        problems = verify_backups(source, progress=in_megabytes(advance))
    if as_json:
        print_json([{"id": one, "ok": problem is None, "problem": problem} for one, problem in problems.items()])
    else:
        for one, problem in problems.items():
            out.print(f"{one}: {problem or 'intact'}", style="red" if problem else None, soft_wrap=True)
    if any(problems.values()):
        raise typer.Exit(1)
