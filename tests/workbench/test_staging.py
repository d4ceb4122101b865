"""Files that wait for a job: kept under a ticket, and gone when they are not wanted."""

import os
import secrets
import threading
import time

import pytest

from nnclr_hub.errors import InvalidRequest, Overloaded
from nnclr_hub.workbench import staging
from nnclr_hub.workbench.staging import complete, partial_file, partial_size, renew, staged, unstage


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("NNCLR_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def stage(data: bytes = b"a") -> str:
    """Stage a file, and return its ticket."""
    ticket = secrets.token_hex(16)
    partial_file(ticket).write_bytes(data)
    complete(ticket, "photos.zip")
    return ticket


def test_a_file_is_found_by_its_ticket_once_it_is_complete():
    ticket = secrets.token_hex(16)
    partial_file(ticket).write_bytes(b"one")
    assert partial_size(ticket) == 3
    with pytest.raises(InvalidRequest):
        staged(ticket)
    with partial_file(ticket).open("ab") as file:
        file.write(b"two")
    complete(ticket, "../../photos.zip")
    found = staged(ticket)
    assert (found.name, found.path.read_bytes()) == ("../../photos.zip", b"onetwo")
    unstage(ticket)
    unstage(ticket)
    assert not found.path.exists()
    with pytest.raises(InvalidRequest):
        staged(ticket)


@pytest.mark.parametrize("ticket", ["", "..", "../adding", "0" * 31, "0" * 32])
def test_an_invalid_ticket_finds_and_removes_nothing(cache, ticket):
    stage()
    with pytest.raises(InvalidRequest):
        staged(ticket)
    unstage(ticket)
    assert len(list((cache / "adding").iterdir())) == 1


def test_old_staged_files_are_removed_and_too_many_are_refused(cache, monkeypatch):
    old = stage(b"a" * 100)
    monkeypatch.setattr(staging, "MOST_BYTES", 50)
    with pytest.raises(Overloaded):
        stage()
    past = time.time() - staging.KEPT_S - 1
    os.utime(cache / "adding" / old, (past, past))
    new = stage()
    assert [path.name for path in (cache / "adding").iterdir()] == [new]


def test_an_upload_that_stopped_is_removed_after_a_day(cache):
    stopped, slow = "0" * 32, "1" * 32
    for ticket in (stopped, slow):
        partial_file(ticket).write_bytes(b"a")
    past = time.time() - staging.PARTIAL_S - 1
    os.utime(partial_file(slow).parent, (past, past))  # its file has new bytes
    os.utime(partial_file(stopped), (past, past))
    new = stage()
    assert {path.name for path in (cache / "adding").iterdir()} == {slow, new}


def test_a_renewed_ticket_is_kept_for_another_week(cache):
    ticket, other = stage(), stage()

    def weeks_later():
        past = time.time() - 100 * staging.KEPT_S
        for folder in (cache / "adding").iterdir():
            os.utime(folder, (past, past))

    weeks_later()
    renew(ticket)
    stage()
    assert staged(ticket).name == "photos.zip"
    with pytest.raises(InvalidRequest):
        staged(other)
    weeks_later()
    stage()
    renew(ticket)
    assert not (cache / "adding" / ticket).exists()


def test_staging_tolerates_jobs_that_end_concurrently():
    """Another thread takes away what waits, file by file, while more is staged."""
    ended, begun = threading.Event(), threading.Event()
    tickets: list[str] = []

    def end_jobs() -> None:
        while not ended.is_set():
            for ticket in tickets[:-1]:
                unstage(ticket)
            begun.set()

    thread = threading.Thread(target=end_jobs)
    thread.start()
    assert begun.wait(30)
    try:
        for _ in range(60):
            tickets.append(stage())
    finally:
        ended.set()
        thread.join()
    assert staged(tickets[-1]).path.read_bytes() == b"a"
