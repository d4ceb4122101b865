"""A file is read twice only when it may have changed, and what is remembered can never vouch for another file."""

import json
import os
import shutil
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from nnclr_hub import load_encoder
from nnclr_hub.cache import cache_folder
from nnclr_hub.errors import ModelFilesMissing, TamperedModel
from nnclr_hub.hub import integrity
from nnclr_hub.hub.integrity import Pins, check, digest_of, hash_again
from nnclr_hub.hub.layout import CONFIG, GRAPH, HEADS, WEIGHTS, sha256_of
from nnclr_hub.hub.registry import default_model, model_info
from nnclr_hub.hub.sources import resolve, verify

LONG_AGO = time.time() - 1000


@pytest.fixture
def reads(monkeypatch, tmp_path) -> list[str]:
    """Record the names of hashed files, with a separate cache."""
    monkeypatch.setenv("NNCLR_CACHE", str(tmp_path / "cache"))
    names: list[str] = []

    def counted(path: Path) -> str:
        names.append(path.name)
        return sha256_of(path)

    monkeypatch.setattr(integrity, "sha256_of", counted)
    return names


@pytest.fixture
def file(tmp_path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(b"first")
    os.utime(path, (LONG_AGO, LONG_AGO))
    return path


def test_an_unchanged_file_is_hashed_once(file, reads):
    assert digest_of(file) == digest_of(file) == sha256_of(file)
    assert reads == ["file"]


def test_a_changed_file_is_hashed_again(file, reads):
    """In place, of the same size, its time set back; by another file in its place; under a link to another one."""
    digest_of(file)
    was = file.stat()
    file.write_bytes(b"other")
    os.utime(file, ns=(was.st_atime_ns, was.st_mtime_ns))
    assert (file.stat().st_size, file.stat().st_mtime_ns, file.stat().st_ino) == (5, was.st_mtime_ns, was.st_ino)
    assert digest_of(file) == sha256_of(file)
    swapped = file.with_name("swapped")
    swapped.write_bytes(b"third")
    os.utime(swapped, ns=(was.st_atime_ns, was.st_mtime_ns))
    swapped.replace(file)
    assert digest_of(file) == sha256_of(file)
    target, link = file.with_name("target"), file.with_name("link")
    target.write_bytes(b"fifth")
    link.symlink_to(file)
    digest_of(link)
    link.unlink()
    link.symlink_to(target)
    assert digest_of(link) == sha256_of(target)


def test_a_file_that_was_just_written_is_not_remembered(file, reads):
    """Within one tick of the file system's clock it could change and look the same."""
    file.write_bytes(b"now")
    digest_of(file)
    digest_of(file)
    assert len(reads) == 2


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"file": 5}', "\xff"])
def test_a_memory_that_cannot_be_read_is_none(file, reads, text):
    digest_of(file)
    (memo,) = (cache_folder() / "sha256").iterdir()
    assert json.loads(memo.read_text())["sha256"] == sha256_of(file)
    memo.write_bytes(text.encode("latin-1"))
    assert digest_of(file) == sha256_of(file)
    assert len(reads) == 2


def test_a_cache_that_cannot_be_written_costs_time_alone(file, monkeypatch, tmp_path):
    """A file where the folder should be, and, for those whom the system refuses, a folder that is read-only."""
    (tmp_path / "taken").write_text("")
    for cache in (tmp_path / "taken", Path("/proc/nothing")):
        monkeypatch.setenv("NNCLR_CACHE", str(cache))
        assert digest_of(file) == digest_of(file) == sha256_of(file)


def test_a_user_without_a_home_has_a_cache_folder(monkeypatch):
    """Run as in a container whose user id has no name."""

    def unknown(_: int) -> None:
        raise KeyError

    for name in ("HOME", "NNCLR_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", unknown)
    assert cache_folder() == Path("~/.cache/nnclr_hub")


def test_a_full_disk_costs_time_alone(model, tmp_path):
    code = (
        "import resource, sys; from pathlib import Path\n"
        "sys.dont_write_bytecode = True; resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))\n"
        "from nnclr_hub.hub.integrity import digest_of\n"
        "for _ in range(2): digest_of(Path(sys.argv[1]) / 'model.safetensors')"
    )
    os.utime(model / WEIGHTS, (LONG_AGO, LONG_AGO))
    cache = tmp_path / "cache"
    done = subprocess.run(
        [sys.executable, "-c", code, model], env=os.environ | {"NNCLR_CACHE": str(cache)}, capture_output=True
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert list((cache / "sha256").iterdir()) == []


def test_the_memory_is_for_its_user_alone(file, reads):
    digest_of(file)
    (memo,) = (cache_folder() / "sha256").iterdir()
    assert stat.S_IMODE(memo.stat().st_mode) == 0o600


def test_a_second_load_of_a_model_reads_no_file_twice(reads):
    name = default_model()
    folder = model_info(name).folder
    assert folder is not None
    for path in folder.iterdir():
        os.utime(path, (LONG_AGO, LONG_AGO))
    resolve(name)
    assert sorted(reads) == [CONFIG, WEIGHTS, GRAPH, HEADS]
    reads.clear()
    resolve(name)
    assert reads == []
    assert [one.pinned_by for one in verify(name)] == ["registry"] * 4
    assert sorted(reads) == [CONFIG, WEIGHTS, GRAPH, HEADS]


@pytest.mark.parametrize("harm", ["flipped", "truncated", "swapped"])
def test_harmed_weights_are_refused_before_and_after_they_were_good(model, make_model, tmp_path, harm):
    folder = shutil.copytree(model, tmp_path / "model")
    load_encoder(folder, device="cpu")
    data = (folder / WEIGHTS).read_bytes()
    harmed = {
        "flipped": data[:-1] + bytes([data[-1] ^ 1]),
        "truncated": data[:-1],
        "swapped": (make_model(seed=3) / WEIGHTS).read_bytes(),
    }[harm]
    (folder / WEIGHTS).write_bytes(harmed)
    with pytest.raises(TamperedModel):
        load_encoder(folder, device="cpu")
    with pytest.raises(TamperedModel):
        verify(str(folder))


def test_the_source_of_each_expected_hash_is_reported(model, tmp_path):
    folder = shutil.copytree(model, tmp_path / "model")
    assert [(one.name, one.pinned_by) for one in verify(str(folder))] == [(CONFIG, "nobody"), (WEIGHTS, "config.json")]
    config = json.loads((folder / CONFIG).read_text())
    del config["nnclr"]
    (folder / CONFIG).write_text(json.dumps(config))
    assert {one.pinned_by for one in verify(str(folder))} == {"nobody"}


def test_hashing_again_ignores_the_cache(file, monkeypatch):
    """Somebody writes a false hash into the cache: a load believes it, `verify` does not."""
    digest_of(file)
    lie = "0" * 64
    memo = next(one for one in (cache_folder() / "sha256").iterdir() if sha256_of(file) in one.read_text())
    memo.write_text(memo.read_text().replace(sha256_of(file), lie))
    check(file.parent, Pins("registry", {"file": lie}))
    with pytest.raises(TamperedModel):
        hash_again(file.parent, ("file",), [Pins("registry", {"file": lie})])


def test_a_damaged_hash_cache_does_not_refuse_a_good_file(file, reads):
    """A good file is not refused for a damaged cache."""
    digest_of(file)
    (memo,) = (cache_folder() / "sha256").iterdir()
    memo.write_text(memo.read_text().replace(sha256_of(file), "0" * 64))
    check(file.parent, Pins("registry", {"file": sha256_of(file)}))


@pytest.mark.parametrize("name", [CONFIG, WEIGHTS])
def test_an_unreadable_disk_is_reported(model, tmp_path, name):
    """Use the memory of a process, a file whose first bytes give an I/O error."""
    folder = shutil.copytree(model, tmp_path / "model")
    (folder / name).unlink()
    (folder / name).symlink_to("/proc/self/mem")
    for load in (load_encoder, verify):
        with pytest.raises(ModelFilesMissing):
            load(str(folder))
