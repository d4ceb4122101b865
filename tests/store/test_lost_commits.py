"""Damage at the end of a log of the root catalog or of the records is reported; it loses nothing silently."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from nnclr_hub.errors import StoreCorrupt
from nnclr_hub.store import open_store
from nnclr_hub.store.base import CollectionSpec, Item
from nnclr_hub.store.records import Record

CATALOG, RECORDS = "catalog.sqlite-wal", "records.sqlite-wal"
HEADER, FRAME = 32, 24 + 16_384  # bytes of a log


@pytest.fixture(scope="module")
def crashed(tmp_path_factory) -> Path:
    """A copy of a store that is still open, as a crash leaves it."""
    folder = tmp_path_factory.mktemp("store")
    with open_store(str(folder / "open")) as store:
        for name in ("v1", "v2", "other"):
            store.create(name, CollectionSpec(2)).upsert([Item("a", np.ones(2))])
        store.alias("live", "v1")
        store.rename("other", "third")
        store.alias("live", "v2")
        for number in range(3):
            store.records.put(Record("probe", f"p{number}", {"n": number}))
        store.records.delete("probe", "p0")
        shutil.copytree(folder / "open", folder / "crashed")
    return folder / "crashed"


def read(folder: Path, *, read_only: bool = False) -> tuple:
    with open_store(str(folder), read_only=read_only) as store:
        names = sorted(info.name for info in store.list())
        return names, store.aliases(), [one.name for one in store.records.list("probe")]


EXPECTED = (["third", "v1", "v2"], {"live": "v2"}, ["p1", "p2"])


def test_a_crash_loses_nothing(crashed, tmp_path):
    shutil.copytree(crashed, tmp_path / "s")
    assert read(tmp_path / "s", read_only=True) == EXPECTED
    assert read(tmp_path / "s") == EXPECTED
    assert read(tmp_path / "s") == EXPECTED  # closed cleanly


@pytest.mark.parametrize("file", [CATALOG, RECORDS])
@pytest.mark.parametrize("read_only", [False, True])
@pytest.mark.parametrize("frames", [1, 2, 3, 0])
def test_a_log_without_its_end_is_reported(crashed, tmp_path, file, read_only, frames):
    """0: the whole log is missing."""
    shutil.copytree(crashed, tmp_path / "s")
    log = tmp_path / "s" / file
    if frames:
        log.write_bytes(log.read_bytes()[: -frames * FRAME])
    else:
        log.unlink()
    with pytest.raises(StoreCorrupt):
        read(tmp_path / "s", read_only=read_only)


@pytest.mark.parametrize("file", [CATALOG, RECORDS])
def test_a_flipped_bit_of_the_last_frame_is_reported_or_harmless(crashed, tmp_path, file):
    whole = (crashed / file).read_bytes()
    reported = 0
    for number, place in enumerate(np.linspace(len(whole) - FRAME, len(whole) - 1, 20).astype(int).tolist()):
        folder = tmp_path / str(number)
        shutil.copytree(crashed, folder)
        flipped = bytearray(whole)
        flipped[place] ^= 1 << number % 8
        (folder / file).write_bytes(flipped)
        try:
            assert read(folder) == EXPECTED
        except StoreCorrupt:
            reported += 1
    assert reported >= 18


@pytest.mark.parametrize("file", [CATALOG, RECORDS])
def test_repair_keeps_what_is_readable(crashed, tmp_path, file):
    from nnclr_hub.store.embedded.names import rebuild_catalog
    from nnclr_hub.store.records import repair_records

    folder = tmp_path / "s"
    shutil.copytree(crashed, folder)
    log = folder / file
    log.write_bytes(log.read_bytes()[:-FRAME])
    if file == CATALOG:
        rebuild_catalog(folder)
        assert read(folder)[2] == EXPECTED[2]
        assert len(read(folder)[0]) == 3
    else:
        repair_records(folder / "records.sqlite")
        assert read(folder)[:2] == EXPECTED[:2]
        assert {"p1", "p2"} <= set(read(folder)[2])
    with open_store(str(folder)) as store:
        store.alias("again", "v1")
        store.records.put(Record("probe", "new", {}))
    assert "again" in read(folder)[1]
    assert "new" in read(folder)[2]
