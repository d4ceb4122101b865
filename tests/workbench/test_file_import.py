"""Files of vectors and images are imported completely, whatever their format, and invalid parts are reported."""

import datetime
import io
import json
import sys
import tarfile
import tracemalloc
import zipfile

import numpy as np
import pyarrow
import pytest
from pyarrow import ipc, parquet

from nnclr_hub import CollectionSpec, EmbeddedStore
from nnclr_hub.errors import InvalidRequest
from nnclr_hub.workbench import Encoders, Workbench, file_import, item_file
from nnclr_hub.workbench.file_import import ImportReport, ImportRequest
from nnclr_hub.workbench.item_file import read_items
from nnclr_hub.workbench.requests import FORMATS

ROWS, DIM = 2500, 8
VECTORS = np.random.default_rng(0).normal(size=(ROWS, DIM)).astype(np.float32)
ABOUT = [{"label": f"l{i % 7}", "n": i, "tags": ["a", str(i % 3)]} for i in range(ROWS)]


@pytest.fixture
def bench(tmp_path, model):
    with EmbeddedStore(tmp_path / "store") as store:
        store.create("vectors", CollectionSpec(DIM, metric="l2"))
        yield Workbench(Encoders(str(model), device="cpu"), store)


def import_file(bench, name, path, format: str = "", progress=lambda done, total: None) -> ImportReport:
    return ImportReport(**bench.run("import", ImportRequest(name, str(path), format), progress))


def table(vector_type=None) -> pyarrow.Table:
    vectors = pyarrow.array(VECTORS.tolist(), vector_type or pyarrow.list_(pyarrow.float32(), DIM))
    columns = {"id": [f"i{i}" for i in range(ROWS)], "vector": vectors}
    columns["metadata"] = [json.dumps({"label": one["label"], "tags": one["tags"]}) for one in ABOUT]
    return pyarrow.table({**columns, "n": [one["n"] for one in ABOUT]})


def written(path, kind: str) -> None:
    if kind == "ndjson":
        rows = ({"id": f"i{i}", "vector": VECTORS[i].tolist(), "metadata": ABOUT[i]} for i in range(ROWS))
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif kind == "parquet":
        parquet.write_table(table(pyarrow.list_(pyarrow.float64())), path, row_group_size=900)
    else:
        new = ipc.new_file if kind == "arrow file" else ipc.new_stream
        with new(str(path), table().schema) as writer:
            writer.write_table(table(), max_chunksize=1700)


@pytest.mark.parametrize("kind", ["ndjson", "parquet", "arrow file", "arrow stream"])
def test_each_format_gives_the_same_items(bench, tmp_path, kind):
    path = tmp_path / f"items.{kind.split()[0]}"
    written(path, kind)
    seen = []
    report = import_file(bench, "vectors", path, progress=lambda *given: seen.append(given))
    assert (report.added, report.replaced, report.unchanged, report.errors) == (ROWS, 0, 0, [])
    assert seen == sorted(seen)
    assert seen[-1] == (path.stat().st_size,) * 2
    items = bench.collection("vectors").get([f"i{i}" for i in range(ROWS)])
    assert [item.metadata for item in items] == ABOUT
    assert np.array_equal(np.stack([item.vector for item in items]), VECTORS)
    before = bench.collection("vectors").info().durable_seq
    again = import_file(bench, "vectors", path)
    assert (again.added, again.replaced, again.unchanged) == (0, 0, ROWS)
    assert bench.collection("vectors").info().durable_seq == before


def test_a_table_of_pandas_is_imported_with_dates_missing_numbers_and_numbers_as_ids(bench, tmp_path):
    day = datetime.date(2024, 5, 1)
    columns = {
        "id": [7, 8],
        "vector": pyarrow.array(VECTORS[:2].tolist(), pyarrow.list_(pyarrow.float32(), DIM)),
        "taken": pyarrow.array([datetime.datetime(2024, 5, 1, 12, 30), None], pyarrow.timestamp("us", "UTC")),
        "day": [day, day],
        "size": [float("nan"), 2.5],
    }
    path = tmp_path / "items.parquet"
    parquet.write_table(pyarrow.table(columns), path)
    report = import_file(bench, "vectors", path)
    assert (report.added, report.errors) == (2, [])
    items = bench.collection("vectors").get(["7", "8"])
    assert [item.metadata for item in items] == [
        {"taken": "2024-05-01T12:30:00+00:00", "day": "2024-05-01"},
        {"day": "2024-05-01", "size": 2.5},
    ]


def test_invalid_rows_are_reported_and_the_others_stored(bench, tmp_path, monkeypatch):
    monkeypatch.setattr(item_file, "MOST_LINE", 1000)
    good = {"id": "good", "vector": [1.0] * DIM}
    lines = [
        json.dumps(good),
        "not JSON",
        json.dumps({"id": "short", "vector": [1.0]}),
        json.dumps({"id": "nan", "vector": [float("nan")] * DIM}),
        json.dumps({**good, "id": "a b"}),
        json.dumps({**good, "id": "text", "metadata": "x"}),
        json.dumps({**good, "id": "extra", "more": 1}),
        "",
        json.dumps({**good, "id": "long", "metadata": {"a": "x" * 5000}}),
        "[" * 900,
        '{"id": "large", "vector": [1' + "0" * 500 + "]}",
        json.dumps({**good, "vector": [2.0] * DIM}),  # replaces the first
        json.dumps({**good, "id": "last"}),
    ]
    path = tmp_path / "items.jsonl"
    path.write_text("\n".join(lines))
    report = import_file(bench, "vectors", path)
    assert [error["name"] for error in report.errors] == [f"row {n}" for n in (2, 6, 7, 9, 10, 11, 3, 4, 5)]
    assert report.errors_count == 9
    assert report.added == 2
    items = bench.collection("vectors").get(["good", "last"])
    assert [item.vector[0] for item in items] == [2.0, 1.0]


@pytest.mark.parametrize(
    ("kind", "content"),
    [
        ("parquet", b""),
        ("parquet", b"PAR1garbagePAR1"),
        ("arrow", b""),
        ("arrow", b"ARROW1\0\0garbage"),
        ("arrow", b"\xff\xff\xff\xff\x10\0\0\0garbage and more of it"),
    ],
)
def test_a_damaged_table_is_refused(bench, tmp_path, kind, content):
    path = tmp_path / "items"
    path.write_bytes(content)
    with pytest.raises(InvalidRequest):
        import_file(bench, "vectors", path, kind)
    assert bench.collection("vectors").count() == 0


def test_a_table_without_vectors_or_with_huge_rows_is_refused(bench, tmp_path):
    path = tmp_path / "items.parquet"
    parquet.write_table(table().drop_columns(["vector"]), path)
    with pytest.raises(InvalidRequest, match="'vector'"):
        import_file(bench, "vectors", path)
    huge = {"id": ["a"], "vector": [[1.0]], "n": ["x" * 140_000_000]}
    parquet.write_table(pyarrow.table(huge), path, compression="zstd")
    with pytest.raises(InvalidRequest, match="MiB"):
        import_file(bench, "vectors", path)


@pytest.mark.parametrize("kind", ["zip", "tar"])
def test_images_of_an_archive_are_embedded_with_their_folders_as_labels(
    bench, tmp_path, image_files, kind, monkeypatch
):
    monkeypatch.setattr(file_import, "IMAGES", 4)
    path, chosen = tmp_path / f"photos.{kind}", image_files[::6]
    with zipfile.ZipFile(path, "w") if kind == "zip" else tarfile.open(path, "w") as archive:
        for one in chosen:
            name = f"set/{one.parent.name}/{one.name}"
            archive.write(one, name) if kind == "zip" else archive.add(one, name)
        if kind == "zip":
            archive.writestr("set/cat/broken.jpg", b"no image")
        else:
            about = tarfile.TarInfo("set/cat/broken.jpg")
            about.size = 8
            archive.addfile(about, io.BytesIO(b"no image"))
    bench.create_collection("photos")
    report = import_file(bench, "photos", path)
    assert (report.added, [error["name"] for error in report.errors]) == (len(chosen), ["set/cat/broken.jpg"])
    items = bench.collection("photos").scroll(limit=100).items
    assert sorted((item.metadata["label"], item.metadata["name"]) for item in items) == sorted(
        (one.parent.name, one.name) for one in chosen
    )
    expected = bench.embedder().embed(chosen)
    stored = np.stack([item.vector for item in items])
    assert (stored @ (expected / np.linalg.norm(expected, axis=1, keepdims=True)).T).max(axis=0).min() > 0.999


def test_images_in_a_single_folder_are_labeled_when_imported_as_when_indexed(bench, tmp_path, image_files):
    path = tmp_path / "photos.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for number in range(2):
            archive.write(image_files[number], f"cats/{number}.jpg")
    bench.create_collection("imported")
    import_file(bench, "imported", path, "zip")
    bench.index_folder("indexed", path)
    for name in ("imported", "indexed"):
        assert bench.collection(name).facets(["label"])["label"].values == [("cats", 2)]


def test_an_archive_without_images_or_truncated_is_refused(bench, tmp_path, image_files):
    path = tmp_path / "photos.tar"
    with tarfile.open(path, "w") as archive:
        archive.add(__file__, "text.py")
    bench.create_collection("photos")
    with pytest.raises(InvalidRequest):
        import_file(bench, "photos", path, "tar")
    with tarfile.open(path, "w") as archive:
        archive.add(image_files[0], "a.jpg")
    path.write_bytes(path.read_bytes()[:900])
    with pytest.raises(InvalidRequest):
        import_file(bench, "photos", path, "tar")


def test_an_image_with_a_path_that_is_too_long_is_reported_and_the_others_are_stored(bench, tmp_path, image_files):
    path = tmp_path / "photos.tar"
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as archive:
        archive.add(image_files[0], "a.jpg")
        archive.add(image_files[1], "b" * 70_000 + ".jpg")
        archive.add(image_files[2], "c" * 70_000 + "/c.jpg")
    bench.create_collection("photos")
    report = import_file(bench, "photos", path, "tar")
    assert (report.added, [error["name"][0] for error in report.errors]) == (1, ["b", "c"])


@pytest.mark.parametrize("kind", ["dictionary", "compressed", "compressed file", "parquet"])
def test_a_small_table_that_decodes_to_a_large_one_is_refused_within_bounded_memory(bench, tmp_path, kind):
    rows, path = 400, tmp_path / "items"
    large = pyarrow.array(["x" * 2_000_000]).dictionary_encode()
    large = pyarrow.DictionaryArray.from_arrays(pyarrow.array([0] * rows, pyarrow.int32()), large.dictionary)
    if kind.startswith("compressed"):
        large = pyarrow.nulls(600 << 20, pyarrow.int8()).fill_null(0)
        rows = len(large)
        columns = {"n": large}
    else:
        columns = {"id": pyarrow.array([f"i{i}" for i in range(rows)]), "vector": pyarrow.array([[1.0]] * rows)}
        columns["n"] = large
    content = pyarrow.table(columns)
    if kind == "parquet":
        parquet.write_table(content, path, compression="zstd")
    else:
        new = ipc.new_file if kind == "compressed file" else ipc.new_stream
        with new(str(path), content.schema, options=ipc.IpcWriteOptions(compression="zstd")) as writer:
            writer.write_table(content)
    del large, columns, content
    assert path.stat().st_size < 200_000
    default, counted = pyarrow.default_memory_pool(), pyarrow.proxy_memory_pool(pyarrow.default_memory_pool())
    pyarrow.set_memory_pool(counted)
    tracemalloc.start()
    try:
        with pytest.raises(InvalidRequest):
            import_file(bench, "vectors", path, "parquet" if kind == "parquet" else "arrow")
        assert tracemalloc.get_traced_memory()[1] < 50_000_000
    finally:
        tracemalloc.stop()
        pyarrow.set_memory_pool(default)
    assert counted.max_memory() < 50_000_000


# ------------------------------------------------------------------------------ Parquet with an invalid footer

FEW = 40


def parquet_file(path):
    content = (
        table().slice(0, FEW).append_column("camera", pyarrow.array([{"model": "x", "iso": i} for i in range(FEW)]))
    )
    parquet.write_table(content, path, row_group_size=16, compression="zstd")
    whole = path.read_bytes()
    start = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
    return whole[:start], whole[start:-8], whole[-8:]


def outcome(path):
    """Return the ids that are read before the end or the refusal, and whether the file is refused."""
    ids = []
    try:
        for _, item, _ in read_items(path, FORMATS["parquet"]):
            ids.append(getattr(item, "id", None))
    except InvalidRequest:
        return ids, True
    return ids, False


def test_a_footer_that_contradicts_the_content_is_refused_and_ends_no_process(tmp_path):
    path = tmp_path / "items.parquet"
    data, footer, end = parquet_file(path)
    assert outcome(path) == ([f"i{i}" for i in range(FEW)], False)
    # another repetition of a column, by which pyarrow's Python classes abort the process; more rows than there are
    for place, wanted in ((footer.index(b"\x25"), b"\x24"), (footer.index(b"\x16\x50") + 1, b"\x7e")):
        path.write_bytes(data + footer[:place] + wanted + footer[place + 1 :] + end)
        ids, refused = outcome(path)
        assert refused or ids == [f"i{i}" for i in range(FEW)]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux limits the memory of a process")
def test_rows_that_take_more_than_the_memory_or_the_cpu_time_are_refused(tmp_path, monkeypatch):
    path = tmp_path / "items.parquet"
    values = {"id": [f"i{i}" for i in range(3)], "vector": [[1.0]] * 3, "n": ["x" * 20_000_000] * 3}
    parquet.write_table(pyarrow.table(values), path, compression="zstd", use_dictionary=False)
    assert path.stat().st_size < 100_000
    assert [number for number, _, _ in read_items(path, FORMATS["parquet"])] == [1, 2, 3]
    with monkeypatch.context() as limited:
        limited.setattr(item_file, "MEMORY", 180 << 20)
        with pytest.raises(InvalidRequest, match="MiB"):
            list(read_items(path, FORMATS["parquet"]))
    monkeypatch.setattr(item_file, "CPU_S", 0.001)
    with pytest.raises(InvalidRequest, match="CPU"):
        list(read_items(path, FORMATS["parquet"]))


def test_a_file_of_far_more_rows_than_bytes_is_refused_unless_its_rows_differ(tmp_path, monkeypatch):
    monkeypatch.setattr(item_file, "FREE_ROWS", 5000)
    path, rows = tmp_path / "items.parquet", 200_000
    parquet.write_table(pyarrow.table({"id": ["a"] * rows, "vector": [[1.0]] * rows}), path, compression="zstd")
    numbers: list[int] = []
    with pytest.raises(InvalidRequest, match="rows per byte"):
        numbers.extend(number for number, _, _ in read_items(path, FORMATS["parquet"]))
    assert len(numbers) < rows / 2


@pytest.mark.slow
def test_no_footer_ends_the_process_or_gives_other_items(tmp_path):
    path, rng = tmp_path / "items.parquet", np.random.default_rng(0)
    data, footer, end = parquet_file(path)
    refusals = 0
    for _ in range(150):
        changed = bytearray(footer)
        for place in rng.integers(0, len(footer), rng.integers(1, 4)):
            changed[place] = rng.integers(0, 256)
        path.write_bytes(data + changed + end)
        ids, refused = outcome(path)
        refusals += refused
        # a row whose id or vector is no longer one is reported
        assert refused or (len(ids) == FEW and all(id in (f"i{i}", None) for i, id in enumerate(ids)))
    assert refusals


@pytest.mark.parametrize("id", ["5", "5.0", "true", "null", '["a"]'])
def test_an_id_in_json_is_a_string_as_in_a_request(bench, tmp_path, id):
    path = tmp_path / "items.ndjson"
    path.write_text(
        f'{{"id": {id}, "vector": {VECTORS[0].tolist()}}}\n{{"id": "b", "vector": {VECTORS[1].tolist()}}}\n'
    )
    report = import_file(bench, "vectors", path)
    assert (report.added, [error["name"] for error in report.errors]) == (1, ["row 1"])
