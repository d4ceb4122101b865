"""Features on the disk: computed once, resumed, and never another encoder's."""

import errno
import os
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import numpy as np
import pytest

from nnclr_hub import load_encoder
from nnclr_hub.encoder import features as module
from nnclr_hub.encoder.features import extract_features
from nnclr_hub.encoder.preprocessing import unit_rows
from nnclr_hub.errors import DiskFull, ImageError, NoImages, StoreLocked


class Counting:
    """An encoder that counts its images and may stop after some."""

    name, fingerprint, embed_dim = "counting", "f1", 3

    def __init__(self, stop_after=10**9):
        self.seen, self.stop_after = 0, stop_after

    def features_each(self, images):
        if self.seen + len(images) > self.stop_after:
            raise KeyboardInterrupt
        self.seen += len(images)
        return [np.array([float(path.stem), 1, 2], np.float32) for path in images]


@pytest.fixture
def files(tmp_path):
    paths = [tmp_path / f"{i}.jpg" for i in range(10)]
    for path in paths:
        path.write_bytes(b"x")
    return paths


def test_unit_rows_of_features_are_the_encoders_vectors(model, image_files, tmp_path):
    encoder = load_encoder(model)
    found = extract_features(encoder, image_files[:5], folder=tmp_path)
    np.testing.assert_allclose(unit_rows(found.raw), encoder.embed(image_files[:5]), atol=1e-6)
    assert np.abs(np.linalg.norm(found.raw, axis=1) - 1).max() > 0.1


def test_an_interrupted_call_continues_where_it_stopped(files, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "CHUNK", 2)
    with pytest.raises(KeyboardInterrupt):
        extract_features(Counting(stop_after=6), files, folder=tmp_path / "f")
    rest = Counting()
    found = extract_features(rest, files, folder=tmp_path / "f")
    assert rest.seen == 4
    assert found.raw[:, 0].tolist() == list(range(10))


def test_only_new_and_changed_files_are_computed(files, tmp_path):
    """In any list and order."""
    extract_features(Counting(), files[:8], folder=tmp_path / "f")
    files[3].write_bytes(b"longer")
    changed = Counting()
    reported = []
    found = extract_features(changed, files[::-1], folder=tmp_path / "f", progress=lambda *at: reported.append(at))
    assert changed.seen == 3
    assert found.raw[:, 0].tolist() == list(range(10))[::-1]
    assert reported == [(7, 10), (10, 10)]
    other = Counting()
    other.fingerprint = "f2"
    extract_features(other, files, folder=tmp_path / "f")
    assert other.seen == 10
    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(lambda _: extract_features(Counting(), files, folder=tmp_path / "g"), range(8)):
            assert found.raw[:, 0].tolist() == list(range(10))


HARM = {
    "other bytes": b"nothing, and more of it",
    "cut": 4096,
    "no such column": "CREATE TABLE features (path TEXT PRIMARY KEY, vector BLOB)",
    "one column too many": "CREATE TABLE features (key BLOB PRIMARY KEY, vector BLOB, made TEXT)",
    "no vector fits": "CREATE TABLE features (key BLOB PRIMARY KEY, vector BLOB CHECK (length(vector) = 1))",
    "generated": "CREATE TABLE features (key BLOB PRIMARY KEY, vector INTEGER GENERATED ALWAYS AS (7))",
    "read-only view": "CREATE VIEW features AS SELECT x'00' AS key, x'00' AS vector",
}


@pytest.mark.parametrize("harm", HARM.values(), ids=HARM)
def test_a_damaged_or_foreign_cache_is_rebuilt(files, tmp_path, harm):
    extract_features(Counting(), files, folder=tmp_path / "f")
    (kept,) = (tmp_path / "f").iterdir()
    if isinstance(harm, str):
        kept.unlink()
        with closing(sqlite3.connect(kept)) as other:
            other.execute(harm)
    else:
        kept.write_bytes(harm if isinstance(harm, bytes) else kept.read_bytes()[:harm])
    again = Counting()
    assert extract_features(again, files, folder=tmp_path / "f").raw[9, 0] == 9
    if not isinstance(harm, str):  # a table of another form is found at the first write
        assert again.seen == 10
    extract_features(later := Counting(), files, folder=tmp_path / "f")
    assert later.seen == 0


def test_a_cache_locked_by_another_program_is_reported(files, tmp_path, monkeypatch):
    """It is kept, because it is not damaged."""
    extract_features(Counting(), files, folder=tmp_path / "f")
    (kept,) = (tmp_path / "f").iterdir()
    monkeypatch.setattr(module, "LOCK_TIMEOUT", 0.2)
    with closing(sqlite3.connect(kept, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(StoreLocked):
            extract_features(Counting(), files, folder=tmp_path / "f")
        other.execute("ROLLBACK")
    extract_features(later := Counting(), files, folder=tmp_path / "f")
    assert later.seen == 0


@pytest.mark.parametrize("cause", ["of SQLite", "of the mapped file"])  # under which it would kill the process later
def test_a_full_disk_is_reported(files, tmp_path, monkeypatch, cause):
    """SQLite's limit of pages represents a full disk."""
    connect = sqlite3.connect

    def full(*given, **more):
        made = connect(*given, **more)
        made.execute("PRAGMA max_page_count = 1")
        return made

    def refuse(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    module_of, name, fault = (sqlite3, "connect", full) if "SQLite" in cause else (os, "posix_fallocate", refuse)
    monkeypatch.setattr(module_of, name, fault)
    with pytest.raises(DiskFull):
        extract_features(counting := Counting(), files, folder=tmp_path / "f")
    if "mapped" in cause:
        assert (counting.seen, list((tmp_path / "f").iterdir())) == (0, [])


def test_a_broken_image_is_tried_again(files, tmp_path):
    class Repairable(Counting):
        def features_each(self, images):
            found = super().features_each(images)
            return [
                ImageError("It is broken.") if path == files[2] and not repaired else row
                for path, row in zip(images, found, strict=True)
            ]

    repaired = False
    assert extract_features(Repairable(), files, folder=tmp_path / "f").broken == {2: "It is broken."}
    repaired = True
    found = extract_features(last := Repairable(), files, folder=tmp_path / "f")
    assert (found.broken, last.seen, found.raw[2, 0]) == ({}, 1, 2)


def test_broken_images_are_listed_and_have_nan_rows(model, image_files, tmp_path):
    bad = tmp_path / "bad.jpg"
    bad.write_bytes(b"no image")
    found = extract_features(load_encoder(model), [image_files[0], bad], folder=tmp_path / "f")
    assert list(found.broken) == [1]
    assert np.isnan(found.raw[1]).all()
    assert np.isfinite(found.raw[0]).all()
    with pytest.raises(NoImages):
        extract_features(load_encoder(model), [bad], folder=tmp_path / "f")


def test_features_in_bf16_are_not_those_in_fp32(model, image_files, tmp_path):
    half = load_encoder(model, device="cpu", backend="torch-bf16")
    full = load_encoder(model, device="cpu")
    assert half.fingerprint == full.fingerprint
    for source in (half, half.with_crops(2)):
        extract_features(source, image_files[:3], folder=tmp_path)
    for source in (full, full.with_crops(2)):
        raw = extract_features(source, image_files[:3], folder=tmp_path).raw
        np.testing.assert_array_equal(raw, np.stack(source.features_each(image_files[:3])))
