"""A bulk run: the vectors that the encoder gives, in shards that any stop leaves whole."""

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file
from waiting import until

from nnclr_hub import load_encoder
from nnclr_hub.bulk import embed_shards, open_shards
from nnclr_hub.bulk.atomic_file import sweep, written_whole
from nnclr_hub.errors import DiskFull, InvalidRequest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "bulk.md"
STARTER = "nnclr_resnet18_free_starter"  # has its graph, so a process can embed without the import of torch


@pytest.fixture(scope="module")
def expected(encoder, image_files):
    return encoder.embed(image_files)


def shard_files(folder: Path) -> list[Path]:
    return sorted(folder.glob("shard-*.safetensors"))


def rows(folder: Path) -> np.ndarray:
    return np.concatenate([shard.vectors for shard in open_shards(folder)])


def names(folder: Path) -> list[str]:
    return [path for shard in open_shards(folder) for path in shard.paths]


def test_shards_hold_the_vectors_of_embed_in_order(encoder, photos, image_files, expected, tmp_path):
    report = embed_shards(tmp_path / "v", [photos], encoder, shard_size=25)
    assert (report.images, report.broken, report.missing) == (60, (), 0)
    assert [shard.count for shard in open_shards(tmp_path / "v")] == [25, 25, 10]
    assert names(tmp_path / "v") == [str(path) for path in image_files]
    np.testing.assert_allclose(rows(tmp_path / "v"), expected, atol=1e-6)
    # with nothing but safetensors
    np.testing.assert_array_equal(load_file(shard_files(tmp_path / "v")[1])["vectors"], rows(tmp_path / "v")[25:50])


def test_the_example_of_the_page_reads_shards_of_half_precision(encoder, photos, expected, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    embed_shards(tmp_path / "vectors", [photos], encoder, precision="f16")
    (code,) = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    exec(compile(code, PAGE, "exec"), found := {})
    assert len(found["shard"].paths) == 60
    assert found["shard"].vectors.dtype == np.float16
    np.testing.assert_allclose(found["shard"].vectors, expected, atol=1e-3)


def test_a_second_call_writes_only_missing_shards(encoder, photos, tmp_path):
    folder = tmp_path / "v"
    embed_shards(folder, [photos], encoder, shard_size=7)
    before = {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in shard_files(folder)}
    gone, damaged, strange = shard_files(folder)[2], shard_files(folder)[4], shard_files(folder)[6]
    gone.unlink()
    damaged.write_bytes(damaged.read_bytes()[:100])
    shutil.copy(shard_files(folder)[0], strange)  # whole, but of another number
    assert open_shards(folder).missing == (2, 4, 6)
    steps = []
    embed_shards(folder, [photos], encoder, shard_size=7, progress=lambda *step: steps.append(step))
    assert (steps[0], steps[-1]) == ((39, 60), (60, 60))
    for path, (when, content) in before.items():
        assert path.read_bytes() == content
        assert (path.stat().st_mtime_ns == when) == (path not in (gone, damaged, strange))


def test_the_parts_together_are_the_whole_run(encoder, photos, expected, tmp_path):
    """Of a folder, and of files that are named one by one, as by photos/*/*.jpg."""
    left = [embed_shards(tmp_path / "v", [photos], encoder, shard_size=8, part=(k, 3)).missing for k in (1, 2, 3)]
    assert left == [6, 3, 0]
    np.testing.assert_allclose(rows(tmp_path / "v"), expected, atol=1e-6)
    with pytest.raises(InvalidRequest):
        embed_shards(tmp_path / "v", [photos], encoder, shard_size=8, part=(4, 3))
    files = sorted(photos.glob("*/*.jpg"))
    assert len({file.name for file in files}) < len(files)
    for part in ((1, 3), (2, 3), (3, 3)):
        embed_shards(tmp_path / "w", files, encoder, shard_size=8, part=part)
    np.testing.assert_allclose(rows(tmp_path / "w"), expected, atol=1e-6)


def test_a_shard_names_its_broken_images_which_the_next_run_retries(encoder, photos, image_files, expected, tmp_path):
    copy = tmp_path / "photos"
    shutil.copytree(photos, copy)
    broken = copy / image_files[9].relative_to(photos)
    whole = broken.read_bytes()
    broken.write_bytes(b"\0" * len(whole))  # as long as it was: the same listing
    report = embed_shards(tmp_path / "v", [copy], encoder, shard_size=20)
    assert [path for path, _ in report.broken] == [str(broken)]
    np.testing.assert_allclose(rows(tmp_path / "v"), np.delete(expected, 9, axis=0), atol=1e-6)

    class Counting:
        """The encoder; it counts the images that it embeds."""

        def embed_in_order(self, images):
            for image, result in zip(counted := list(images), encoder.embed_in_order(iter(counted)), strict=True):
                embedded.append(image)
                yield result

        def __getattr__(self, name):
            return getattr(encoder, name)

    embedded: list = []
    before = shard_files(tmp_path / "v")[0].read_bytes()
    assert embed_shards(tmp_path / "v", [copy], Counting(), shard_size=20).broken == report.broken
    assert shard_files(tmp_path / "v")[0].read_bytes() == before
    broken.write_bytes(whole)
    steps: list = []
    progress = lambda *step: steps.append(step)  # noqa: E731
    again = embed_shards(tmp_path / "v", [copy], Counting(), shard_size=20, progress=progress)
    assert (again.images, again.broken, len(embedded), steps[-1]) == (60, (), 2, (60, 60))
    np.testing.assert_allclose(rows(tmp_path / "v"), expected, atol=1e-6)
    assert names(tmp_path / "v")[9] == str(broken)


def test_another_plan_is_refused_with_a_hint(encoder, make_model, photos, image_files, tmp_path):
    folder = tmp_path / "v"
    embed_shards(folder, [photos], encoder, shard_size=20)
    other = load_encoder(make_model(seed=1), device="cpu")
    for changed, word in (
        ({"encoder": other}, "--model"),
        ({"shard_size": 30}, "--shard-size 20"),
        ({"precision": "f16"}, "--precision f32"),
        ({"given": image_files[:3]}, "60 images"),
    ):
        call = {"folder": folder, "given": [photos], "encoder": encoder, "shard_size": 20} | changed
        with pytest.raises(InvalidRequest, match=word):
            embed_shards(**call)
    assert open_shards(folder).missing == ()


def test_a_folder_with_other_files_is_refused_and_unchanged(encoder, photos, tmp_path):
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(InvalidRequest):
        embed_shards(tmp_path, [photos], encoder)
    assert [one.name for one in tmp_path.iterdir()] == ["thesis.txt"]
    (tmp_path / "plan.json").write_text('{"format": "something else"}')
    for folder in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(InvalidRequest):
            open_shards(folder)


def test_the_plan_records_the_source_and_shards_name_files_of_any_name_and_broken_vectors(image_files, tmp_path):
    strange = tmp_path / "photos" / os.fsdecode(b"caf\xe9.jpg")
    strange.parent.mkdir()
    for path in (strange, *(strange.with_name(f"{number}.jpg") for number in range(3))):
        shutil.copy(image_files[0], path)

    class Odd:
        name, fingerprint, embed_dim = "odd", "0" * 32, 2

        def embed_in_order(self, images):
            for index, _ in enumerate(images):
                yield np.array([{0: np.inf, 2: 0.0}.get(index, 1.0), 0.0], np.float32)  # two without a direction

    report = embed_shards(tmp_path / "v", [strange.parent], Odd())
    assert ["not finite, or all zero" in reason for _, reason in report.broken] == [True, True]
    assert names(tmp_path / "v") == [str(strange.with_name("1.jpg")), str(strange)]
    plan = json.loads((tmp_path / "v" / "plan.json").read_text())
    assert plan["fingerprint"] == Odd.fingerprint
    assert plan["places"][0]["absolute"] == str(strange.parent.resolve())
    for other in ({"format": "something else"}, {"version": 1}):
        (tmp_path / "v" / "plan.json").write_text(json.dumps(plan | other))
        with pytest.raises(InvalidRequest):
            open_shards(tmp_path / "v")


def test_a_full_disk_is_reported_and_complete_shards_remain(encoder, photos, tmp_path, monkeypatch):
    import errno

    real, calls = os.fsync, []

    def full(handle):
        calls.append(handle)
        if len(calls) > 4:  # the plan and its folder, a shard and its folder
            raise OSError(errno.ENOSPC, "No space left on device")
        real(handle)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DiskFull):
        embed_shards(tmp_path / "v", [photos], encoder, shard_size=20)
    monkeypatch.undo()
    assert [path.name for path in (tmp_path / "v").iterdir() if path.name.startswith(".")] == []
    assert open_shards(tmp_path / "v").missing == (1, 2)
    assert embed_shards(tmp_path / "v", [photos], encoder, shard_size=20).missing == 0


# waits to be killed in its third shard, when half of that is written
STUCK = """
import os, signal, sys
from pathlib import Path
from nnclr_hub import load_encoder
from nnclr_hub.bulk import embed_shards, local
from nnclr_hub.bulk.atomic_file import _host
write = local.write_shard
def stuck(folder, plan, number, *rest):
    if number == 2:
        (folder / f".shard-00002.safetensors.{_host()}.{os.getpid()}.unfinished").write_bytes(b"half")
        signal.pause()
    write(folder, plan, number, *rest)
local.write_shard = stuck
embed_shards(Path(sys.argv[1]), [Path(sys.argv[2])], load_encoder(sys.argv[3], backend="onnx"), shard_size=10)
"""


def test_a_killed_run_loses_one_shard_and_the_next_run_removes_its_files(photos, image_files, tmp_path):
    folder, starter = tmp_path / "v", load_encoder(STARTER, backend="onnx")
    with subprocess.Popen([sys.executable, "-c", STUCK, folder, photos, STARTER], cwd=ROOT) as process:
        until(lambda: list(folder.glob(".shard-00002.*.unfinished")))
        process.kill()
    assert open_shards(folder).missing == (2, 3, 4, 5)
    embed_shards(folder, [photos], starter, shard_size=10)
    np.testing.assert_allclose(rows(folder), starter.embed(image_files), atol=1e-6)
    assert [path.name for path in folder.iterdir() if path.name.startswith(".")] == []


def test_a_machine_without_faiss_embeds_shards(photos, tmp_path):
    """Computing vectors does not need faiss."""
    code = (
        "import sys; sys.modules['faiss'] = None; from pathlib import Path; from nnclr_hub import load_encoder; "
        "from nnclr_hub.bulk import embed_shards; "
        "embed_shards(Path(sys.argv[1]), [Path(sys.argv[2])], load_encoder(sys.argv[3], backend='onnx'))"
    )
    subprocess.run([sys.executable, "-c", code, tmp_path / "v", photos, STARTER], check=True, cwd=ROOT)
    assert open_shards(tmp_path / "v").missing == ()


def test_the_first_process_writes_the_plan_and_unfinished_shards_are_kept(tmp_path):
    with written_whole(tmp_path / "plan.json", first=True) as mine:
        with written_whole(tmp_path / "other", first=True) as theirs:
            theirs.write(b"theirs")
        (tmp_path / "other").rename(tmp_path / "plan.json")
        sweep(tmp_path)
        mine.write(b"mine")
    assert (tmp_path / "plan.json").read_bytes() == b"theirs"
    assert [one.name for one in tmp_path.iterdir()] == ["plan.json"]
    old = tmp_path / ".shard.elsewhere.17.unfinished"
    old.write_bytes(b"half")
    sweep(tmp_path)
    assert old.exists(), "another machine may be writing it"
    os.utime(old, (1, 1))
    sweep(tmp_path)
    assert not old.exists()


def test_leftover_files_of_an_array_with_any_name_are_removed(tmp_path):
    for name in ("photos [2024].npy", "a*.npy", "ab.npy"):
        left = tmp_path / f".{name}.elsewhere.17.unfinished"
        left.write_bytes(b"half")
        os.utime(left, (1, 1))
    sweep(tmp_path, "photos [2024].npy")
    sweep(tmp_path, "a*.npy")
    assert list(tmp_path.iterdir()) == [left]


def test_a_shard_has_images_of_one_archive(encoder, image_files, expected, tmp_path):
    for name, part in (("a", slice(0, 7)), ("b", slice(7, 12))):
        with tarfile.open(tmp_path / f"{name}.tar", "w") as tar:
            for path in image_files[part]:
                tar.add(path, path.name)
    for k in (1, 2):
        report = embed_shards(
            tmp_path / "v", [tmp_path / "a.tar", tmp_path / "b.tar"], encoder, shard_size=5, part=(k, 2)
        )
    assert report.missing == 0
    assert [shard.count for shard in open_shards(tmp_path / "v")] == [5, 2, 5]
    assert [Path(name).parent.name for name in names(tmp_path / "v")] == ["a.tar"] * 7 + ["b.tar"] * 5
    np.testing.assert_allclose(rows(tmp_path / "v"), expected[:12], atol=1e-6)


def test_a_process_reads_only_its_stretch_of_a_folder(encoder, photos, tmp_path):
    """Images of other parts may even be gone; those of this part must be the planned ones."""
    copy = shutil.copytree(photos, tmp_path / "photos")
    embed_shards(tmp_path / "v", [copy], encoder, shard_size=20, part=(1, 3))
    first, *_, last = sorted(copy.rglob("*.jpg"))
    first.unlink()
    assert embed_shards(tmp_path / "v", [copy], encoder, shard_size=20, part=(2, 3)).missing == 1
    with pytest.raises(InvalidRequest, match="60 images"):
        embed_shards(tmp_path / "v", [copy], encoder, shard_size=20, part=(1, 3))
    shutil.copy(last, last.with_name("zz.jpg"))
    with pytest.raises(InvalidRequest, match="60 images"):
        embed_shards(tmp_path / "v", [copy], encoder, shard_size=20, part=(3, 3))
