"""`nnclr embed` writes lines, an array or shards, and continues after an interruption."""

import io
import json
import shutil
import tarfile
from pathlib import Path

import numpy as np
import pytest
from commands import nnclr

from nnclr_hub import load_encoder, open_store
from nnclr_hub.bulk import joined_file, local, open_shards, plan
from nnclr_hub.cli import embedding

ROOT = Path(__file__).parents[2]


def ran(*words, code: int = 0) -> tuple[str, str]:
    """Return standard output and standard error, the latter in one line."""
    exit_code, out, err = nnclr(*words)
    assert exit_code == code, err
    return out, " ".join(err.split())


@pytest.fixture(scope="module")
def expected(model, image_files):
    return load_encoder(model, device="cpu").embed(image_files)


def test_embed_prints_a_line_for_each_image_of_a_folder_and_an_archive(photos, image_files, model, expected, tmp_path):
    with tarfile.open(tmp_path / "cats.tar", "w") as tar:
        tar.add(photos / "cat", "cat")
    lines, _ = ran("embed", photos / "astronaut", tmp_path / "cats.tar", "--model", model)
    printed = [json.loads(line) for line in lines.splitlines()]
    assert printed[0]["path"] == str(image_files[0])
    assert printed[-1]["path"] == str(tmp_path / "cats.tar" / "cat" / "19.jpg")
    rows = expected[[path.parent.name != "coffee" for path in image_files]]
    np.testing.assert_allclose([one["embedding"] for one in printed], rows, atol=1e-6)


def test_numpy_reads_the_array_and_no_shards_remain(photos, image_files, model, expected, tmp_path):
    _, said = ran("embed", photos, "--model", model, "--out", tmp_path / "v.npy", "--precision", "f16")
    assert "(60 x 32 f16)" in said
    array = np.load(tmp_path / "v.npy", mmap_mode="r")
    assert array.dtype == np.float16
    np.testing.assert_allclose(array, expected, atol=1e-3)
    assert (tmp_path / "v.txt").read_text().splitlines() == [str(path) for path in image_files]
    assert sorted(one.name for one in tmp_path.iterdir()) == ["v.npy", "v.txt"]


@pytest.fixture
def webdataset(image_files, tmp_path) -> Path:
    """An archive of five samples with keys, captions and labels."""
    with tarfile.open(tmp_path / "data-0.tar", "w") as tar:
        for number, path in enumerate(image_files[:5]):
            caption = json.dumps({"caption": f"photo {number}"}).encode()
            for suffix, data in (("jpg", path.read_bytes()), ("json", caption), ("cls", b"3")):
                member = tarfile.TarInfo(f"k{number}.{suffix}")
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
    return tmp_path / "data-0.tar"


@pytest.mark.parametrize(
    ("suffix", "precision"),
    [(".parquet", "f32"), (".parquet", "f16"), (".csv", "f16"), (".npz", "f32"), (".NPZ", "f16")],
)
def test_a_table_has_ids_labels_and_metadata(photos, webdataset, model, expected, tmp_path, suffix, precision):
    """Another library reads it."""
    pandas = pytest.importorskip("pandas")
    file = tmp_path / f"v{suffix}"
    pattern = tmp_path / "data-{0..0}.tar"
    _, said = ran("embed", photos / "cat", pattern, "--model", model, "--out", file, "--precision", precision)
    assert f"(25 x 32 {precision})" in said
    kind = {"f32": np.float32, "f16": np.float16}[precision]
    if suffix == ".parquet":
        frame = pandas.read_parquet(file)
        vectors = np.stack(frame["vector"].to_numpy())
    elif suffix == ".csv":
        frame = pandas.read_csv(file, keep_default_na=False)
        vectors = frame[[f"v{number}" for number in range(32)]].to_numpy(kind)
    else:
        names = {"id": "ids", "path": "paths", "label": "labels", "metadata": "metadata"}
        with np.load(file) as arrays:
            vectors = arrays["vectors"]
            frame = pandas.DataFrame({column: arrays[name] for column, name in names.items()})
    assert vectors.dtype == kind
    cats = np.arange(20, 40)
    np.testing.assert_allclose(vectors, expected[[*cats, *range(5)]], atol=1e-3 if precision == "f16" else 1e-6)
    assert frame["id"][0] == frame["path"][0] == str(photos / "cat" / "00.jpg")
    assert frame["id"][20:].tolist() == [f"k{number}" for number in range(5)]
    assert frame["path"][20] == f"{webdataset}/k0.jpg"
    assert frame["label"][20:].astype(str).tolist() == ["3"] * 5
    assert frame["metadata"][0] == ""
    assert json.loads(frame["metadata"][21]) == {"caption": "photo 1", "cls": 3, "__key__": "k1"}
    assert sorted(one.name for one in tmp_path.iterdir()) == sorted([webdataset.name, file.name])


def test_texts_that_would_be_padded_to_gigabytes_are_refused_in_arrays_only(webdataset, model, tmp_path, monkeypatch):
    monkeypatch.setattr(joined_file, "MOST_TEXTS", 4 * 5 * 30)  # 30 characters for each of five images
    file = tmp_path / "v.npz"
    _, said = ran("embed", webdataset, "--model", model, "--out", file, code=2)
    assert str(tmp_path / "v.parquet") in said.replace(" ", "")
    assert not file.exists()
    (tmp_path / "v.npz.shards").rename(tmp_path / "v.parquet.shards")
    ran("embed", webdataset, "--model", model, "--out", tmp_path / "v.parquet")
    assert sorted(one.name for one in tmp_path.iterdir()) == ["data-0.tar", "v.parquet"]


def test_captions_of_an_archive_become_metadata_of_a_collection(webdataset, model, tmp_path):
    store = tmp_path / "store"
    ran("embed", webdataset, "--model", model, "--out", tmp_path / "v")
    ran("store", "import", tmp_path / "v", "--collection", "photos", "--store", store)
    with open_store(store, read_only=True) as opened:
        [found] = opened.get("photos").scroll(where={"must": [{"key": "__key__", "match": "k2"}]}).items
    assert (found.metadata["caption"], found.metadata["label"], found.metadata["cls"]) == ("photo 2", "3", 3)
    lines, _ = ran("embed", webdataset, "--model", model)
    first = json.loads(lines.splitlines()[0])
    assert (first["id"], first["metadata"]["caption"]) == ("k0", "photo 0")


def test_shards_can_be_imported_into_a_collection(photos, model, tmp_path):
    out, store = tmp_path / "v", tmp_path / "store"
    ran("embed", photos, "--model", model, "--out", out, "--shard-size", 16)
    ran("store", "import", out, "--collection", "photos", "--store", store)
    output, _ = ran("search", photos / "cat" / "03.jpg", "--collection", "photos", "--store", store, "--json")
    assert json.loads(output)["matches"][0]["metadata"]["path"] == "cat/03.jpg"
    again, _ = ran("store", "import", out, "--collection", "photos", "--store", store, "--json")
    assert json.loads(again) == {"collection": "photos", "items": 60, "written": 0}
    _, said = ran("store", "import", out, "--store", store, code=2)
    assert "--collection" in said


@pytest.mark.parametrize("name", ["shards-v1.2", "shards.2026-11-23"])
def test_a_new_folder_may_end_in_a_version_or_a_date(photos, model, tmp_path, name):
    ran("embed", photos / "cat", "--model", model, "--out", tmp_path / name)
    assert not open_shards(tmp_path / name).missing


def test_names_match_the_rows_and_broken_images_have_reasons(image_files, model, tmp_path):
    folder = tmp_path / "odd"
    folder.mkdir()
    shutil.copy(image_files[0], folder / "two\nlines.jpg")
    (folder / "broken.jpg").write_bytes(b"no image")
    ran("embed", folder, "--model", model, "--out", tmp_path / "v.npy")
    assert (tmp_path / "v.txt").read_text().splitlines() == [f"{folder}/two\\nlines.jpg"]
    assert len(np.load(tmp_path / "v.npy")) == 1
    assert (tmp_path / "v.broken.txt").read_text().startswith(f"{folder}/broken.jpg: ")


def test_shards_removed_by_another_process_are_reported(photos, model, tmp_path, monkeypatch):
    write = local.write_shard

    def too_late(folder, *rest):
        shutil.rmtree(folder)
        write(folder, *rest)

    monkeypatch.setattr(local, "write_shard", too_late)
    _, said = ran("embed", photos, "--model", model, "--out", tmp_path / "v.npy", code=1)
    assert "another process" in said


def test_embedding_only_broken_images_fails(model, tmp_path):
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "one.jpg").write_bytes(b"no image")
    for out in ((), ("--out", tmp_path / "v"), ("--out", tmp_path / "v.npy")):
        assert "None of 1 image " in ran("embed", tmp_path / "broken", "--model", model, *out, code=1)[1]


def test_the_default_shard_size_equals_the_librarys():
    assert embedding.SHARD_SIZE == plan.SHARD_SIZE
    assert f"[default: {plan.SHARD_SIZE}]" in ran("embed", "--help")[0]
