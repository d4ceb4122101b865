"""Files that wait for a job: kept under a ticket, and gone when they are not wanted."""

import os
import threading
import time

import pytest

from nnclr_hub.errors import InvalidRequest, Overloaded
from nnclr_hub.workbench import staging
from nnclr_hub.workbench.staging import renew, stage, staged, unstage


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("NNCLR_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def write(path, data: bytes):
    path.write_bytes(data)
    return path


def test_staged_files_are_moved_and_found_by_their_ticket(tmp_path):
    parts = [write(tmp_path / f"{i}.part", data) for i, data in enumerate((b"one", b"two ", b"and ", b"three"))]
    ticket = stage([("cat/1.jpg", parts[:1]), ("../../2.zip", parts[1:])])
    assert not any(part.exists() for part in parts)
    found = staged(ticket)
    assert [(one.name, one.path.read_bytes()) for one in found] == [
        ("cat/1.jpg", b"one"),
        ("../../2.zip", b"two and three"),
    ]
    unstage(ticket)
    unstage(ticket)
    assert not found[0].path.exists()
    with pytest.raises(InvalidRequest):
        staged(ticket)


@pytest.mark.parametrize("ticket", ["", "..", "../adding", "0" * 31, "0" * 32])
def test_an_invalid_ticket_finds_and_removes_nothing(cache, tmp_path, ticket):
    stage([("a.jpg", [write(tmp_path / "a", b"a")])])
    with pytest.raises(InvalidRequest):
        staged(ticket)
    unstage(ticket)
    assert len(list((cache / "adding").iterdir())) == 1


def test_failed_staging_leaves_no_files(cache, tmp_path):
    with pytest.raises(FileNotFoundError):
        stage([("a.jpg", [write(tmp_path / "a", b"a")]), ("gone.jpg", [tmp_path / "gone"])])
    assert list((cache / "adding").iterdir()) == []


def test_old_staged_files_are_removed_and_too_many_are_refused(cache, tmp_path, monkeypatch):
    old = stage([("a.jpg", [write(tmp_path / "a", b"a" * 100)])])
    monkeypatch.setattr(staging, "MOST_BYTES", 50)
    with pytest.raises(Overloaded):
        stage([("b.jpg", [write(tmp_path / "b", b"b")])])
    past = time.time() - staging.KEPT_S - 1
    os.utime(cache / "adding" / old, (past, past))
    new = stage([("b.jpg", [tmp_path / "b"])])
    assert [path.name for path in (cache / "adding").iterdir()] == [new]


def test_a_renewed_ticket_is_kept_for_another_week(cache, tmp_path):
    ticket, other = (stage([(f"{name}.jpg", [write(tmp_path / name, b"a")])]) for name in "ab")

    def weeks_later():
        past = time.time() - 100 * staging.KEPT_S
        for folder in (cache / "adding").iterdir():
            os.utime(folder, (past, past))

    weeks_later()
    renew(ticket)
    stage([("c.jpg", [write(tmp_path / "c", b"c")])])
    assert [one.name for one in staged(ticket)] == ["a.jpg"]
    with pytest.raises(InvalidRequest):
        staged(other)
    weeks_later()
    stage([("d.jpg", [write(tmp_path / "d", b"d")])])
    renew(ticket)
    assert not (cache / "adding" / ticket).exists()


def test_staging_tolerates_jobs_that_end_concurrently(tmp_path):
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
        for i in range(60):
            files = [(f"{j}.jpg", [write(tmp_path / f"{i}-{j}", b"a")]) for j in range(20)]
            tickets.append(stage(files))
    finally:
        ended.set()
        thread.join()
    assert len(staged(tickets[-1])) == 20
