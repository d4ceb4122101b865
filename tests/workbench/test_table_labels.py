"""Labels of tables: every table in names images by id or path, in any spelling; every table out has both."""

import csv
import io
import json
import math
import os
import unicodedata
import zipfile
from pathlib import Path

import numpy as np
import pyarrow
import pytest
from commands import nnclr, output_of, refused
from PIL import Image
from pyarrow import parquet

from nnclr_hub import open_store
from nnclr_hub.errors import InvalidRequest
from nnclr_hub.images.labels import read_labeled
from nnclr_hub.store.base import CollectionSpec, Item
from nnclr_hub.table_rows import LabelTable, read_rows
from nnclr_hub.workbench.inspection.subject import collection_subject, inspected_files

NAMES = ("IMG/Küche 1.png", "IMG/a.b.png", "IMG/[x].png", "100APPLE/c.png")
LABELS = {"IMG/Küche 1.png": "Küche", "IMG/a.b.png": "Haus", "IMG/[x].png": "Küche"}


@pytest.fixture
def folder(tmp_path) -> Path:
    """Images whose names are decomposed, as Macs write them."""
    for number, name in enumerate(NAMES):
        path = tmp_path / "photos" / unicodedata.normalize("NFD", name)
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(number).integers(0, 255, (40, 40, 3), np.uint8)
        Image.fromarray(pixels).save(path)
    return tmp_path / "photos"


def table_of(rows: dict[str, str], separator: str = ",", columns: tuple[str, str] = ("path", "label")) -> str:
    text = io.StringIO()
    csv.writer(text, delimiter=separator).writerows([columns, *rows.items()])
    return text.getvalue()


def labels_of(store: Path, collection: str = "c") -> dict[str, object]:
    with open_store(str(store), read_only=True) as opened:
        items = [item for page in opened.get(collection).pages(with_vector=False) for item in page]
    return {unicodedata.normalize("NFC", str(item.metadata["path"])): item.metadata.get("label") for item in items}


WRITTEN = [
    pytest.param(lambda path: path, id="as on the disk"),
    pytest.param(lambda path: unicodedata.normalize("NFD", path), id="decomposed"),
    pytest.param(lambda path: path.replace("/", "\\"), id="backslashes"),
    pytest.param(lambda path: f"./{path}", id="dot"),
]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "cp1252"])
def test_tables_of_spreadsheets_are_read(encoding, folder, tmp_path):
    table = tmp_path / "t.csv"
    for separator in (",", ";", "\t"):
        table.write_bytes(table_of(LABELS, separator, ("Datei", "Art")).encode(encoding))
        read = read_labeled(folder, LabelTable(table, folder, "Datei", "Art"))
        assert [path.exists() for path in read.paths] == [True, True, True]
        assert read.labels == (("Küche",), ("Haus",), ("Küche",))


@pytest.mark.parametrize(
    ("values", "kind", "labels"),
    [
        (["cat", None, "", " ", "NA"], "string", ["cat", None, None, None, "NA"]),
        ([3, math.nan, None, 0], "float64", ["3", None, None, "0"]),
        ([3, math.nan, None, 0], "float16", ["3", None, None, "0"]),
        ([math.nan, math.nan, None], "float32", [None] * 3),
        ([3, None, 0], "int8", ["3", None, "0"]),
    ],
)
def test_missing_values_of_a_column_are_not_labels(values, kind, labels, folder, store, tmp_path):
    images = [sorted(folder.rglob("*.png"))[0].read_bytes()] * len(values)
    column = pyarrow.array(values, getattr(pyarrow, kind)(), from_pandas=False)
    parquet.write_table(pyarrow.table({"image": images, "label": column}), tmp_path / "t.parquet")
    read = read_labeled(tmp_path / "t.parquet")
    assert [one[0] if one else None for one in read.labels] == labels

    ids = [f"n{n}" for n in range(len(values))]
    vectors = np.ones((len(values), 5), np.float32).tolist()
    parquet.write_table(pyarrow.table({"id": ids, "vector": vectors, "label": column}), tmp_path / "items.parquet")
    output_of("store", "import", tmp_path / "items.parquet", "--collection", "c", "--into", "--store", store)
    with open_store(str(store), read_only=True) as opened:
        subject = collection_subject(opened.get("c"))
    found = dict(zip(subject.items, subject.labels, strict=True))
    assert [found[id] is None for id in ids] == [label is None for label in labels]


@pytest.mark.parametrize("written", WRITTEN)
@pytest.mark.parametrize("packed", [False, True])
def test_paths_match_in_every_spelling(written, packed, folder, tmp_path):
    table = tmp_path / "t.csv"
    table.write_text(table_of({written(path): label for path, label in LABELS.items()}), encoding="utf-8")
    place = folder
    if packed:
        place = tmp_path / "photos.zip"
        with zipfile.ZipFile(place, "w") as archive:
            for path in sorted(folder.rglob("*.png")):
                archive.write(path, path.relative_to(folder))
    read = read_labeled(place, table)
    assert read.labels == (("Küche",), ("Haus",), ("Küche",))
    assert packed or all(path.exists() for path in read.paths)
    found = inspected_files(place, table)
    assert sorted(filter(None, found.labels)) == ["Haus", "Küche", "Küche"]


def test_a_file_name_that_is_not_utf_8_is_found(tmp_path):
    raw = os.fsencode(tmp_path) + b"/m\xfcsli.png"
    Image.new("RGB", (8, 8)).save(os.fsdecode(raw))
    for number, cell in enumerate((b"m\xfcsli.png", "müsli.png".encode())):
        (tmp_path / f"{number}.csv").write_bytes(b"path,label\n" + cell + b",food\n")
        (path,) = read_labeled(tmp_path, tmp_path / f"{number}.csv").paths
        assert path.exists()


def test_a_table_labels_the_items_of_index(folder, tmp_path, model, caplog):
    table = tmp_path / "t.csv"
    table.write_text(table_of({"Küche 1.png": "x", **LABELS}), encoding="cp1252")
    index = ("index", folder, "--collection", "c", "--store", tmp_path / "s", "--model", model)
    nnclr(*index)
    assert labels_of(tmp_path / "s") == {name: name.partition("/")[0] for name in NAMES}
    report = json.loads(output_of(*index, "--labels", table, "--root", folder, "--json"))
    assert (report["added"], report["updated"], report["unchanged"]) == (0, 4, 0)
    assert "1 row of" in caplog.text
    # of unchanged items, too; the label by the folder of an image that the table does not list is deleted
    assert labels_of(tmp_path / "s") == {**LABELS, "100APPLE/c.png": None}
    with open_store(str(tmp_path / "s")) as store:
        (id,) = (item.id for item in store.get("c").scroll().items if item.metadata["path"] == "IMG/a.b.png")
        store.get("c").update_metadata({"label": "corrected"}, ids=[id])
    assert nnclr(*index)[0] == 0  # without a table, labels that a person has set stay
    assert labels_of(tmp_path / "s")["IMG/a.b.png"] == "corrected"
    refused(*index, "--labels", table, "--path-column", "Datei", code=2)
    refused(*index, "--path-column", "Datei", code=2)


def test_a_table_in_the_folder_labels_new_images(folder, tmp_path, model):
    (folder / "labels.csv").write_text(table_of(LABELS), encoding="utf-8")
    assert nnclr("index", folder, "--collection", "c", "--store", tmp_path / "s", "--model", model)[0] == 0
    assert labels_of(tmp_path / "s") == {**LABELS, "100APPLE/c.png": None}


def test_the_other_columns_of_a_table_become_metadata(folder, tmp_path, model, caplog):
    """Numbers where all cells are; a column with a key of indexing, and one whose rows disagree, are left out."""
    other = "100APPLE/c.png"
    head = "path,label,split,age,code,size,note,a.b\n"
    rows = [
        "IMG/a.b.png,x,train,3,007,1,one,1.5\n",
        "IMG/a.b.png,x,train,3,007,1,two,1.5\n",
        f"{other},y,test,,10,2,,-2e3\n",
    ]
    (folder / "labels.csv").write_text(head + "".join(rows), encoding="utf-8")
    index = ("index", folder, "--collection", "c", "--store", tmp_path / "s", "--model", model)
    assert nnclr(*index)[0] == 0
    assert "size, note" in caplog.text
    with open_store(str(tmp_path / "s"), read_only=True) as store:
        found = {item.metadata["path"]: dict(item.metadata) for item in store.get("c").scroll().items}
    own = {
        name: {key: found[name].get(key) for key in ("label", "split", "age", "code", "note", "a.b")} for name in found
    }
    assert own["IMG/a.b.png"] == {"label": "x", "split": "train", "age": 3, "code": "007", "note": None, "a.b": 1.5}
    assert own[other] == {"label": "y", "split": "test", "age": None, "code": "10", "note": None, "a.b": -2000.0}
    assert found[other]["size"] == (folder / other).stat().st_size
    changed = tmp_path / "changed.csv"
    changed.write_text(f"path,label,split,age\nIMG/a.b.png,x,test,\n{other},y,test,4\n", encoding="utf-8")
    report = json.loads(output_of(*index, "--labels", changed, "--root", folder, "--json"))
    assert (report["added"], report["updated"]) == (0, 2)
    with open_store(str(tmp_path / "s"), read_only=True) as store:
        found = {item.metadata["path"]: dict(item.metadata) for item in store.get("c").scroll().items}
    assert (found["IMG/a.b.png"]["split"], found["IMG/a.b.png"]["age"], found[other]["age"]) == ("test", 3, 4)


@pytest.fixture
def store(tmp_path) -> Path:
    """A collection with paths of two folders; one path is in both."""
    rows = np.eye(5, dtype=np.float32)
    places = [("/a/x", "1.png"), ("/a/x", "sub/ü.png"), ("/b/y", "1.png"), ("/b/y", "2.png")]
    with open_store(str(tmp_path / "s")) as opened:
        collection = opened.create("c", CollectionSpec(5))
        items = [Item(f"i{n}", rows[n], {"root": root, "path": path}) for n, (root, path) in enumerate(places)]
        collection.upsert([*items, Item("i4", rows[4], {"path": "no-root.png"})])
    return tmp_path / "s"


@pytest.mark.parametrize(
    ("rows", "columns", "labels"),
    [
        ([("i0", "cat"), ("i3", "dog"), ("i9", "cow")], "id,label", {"i0": "cat", "i3": "dog"}),
        ([("sub\\u\u0308.png", "cat"), ("2.png", "")], "path,label", {"i1": "cat"}),
        ([("x/1.png", "cat"), ("/b/y/1.png", "dog")], "path,label", {"i0": "cat", "i2": "dog"}),
        ([("no-root.png", "cat")], "path,label", {"i4": "cat"}),
        ([("i0", "2.png", "cat")], "id,path,label", {"i0": "cat"}),  # ids win where they are those of the collection
        ([("17", "2.png", "cat")], "id,path,label", {"i3": "cat"}),
        ([("2.png", "2.png", "cat")], "id,path,label", {"i3": "cat"}),  # as in the tables about a folder
    ],
)
def test_rows_name_items_by_id_or_path(rows, columns, labels, store, tmp_path):
    table = tmp_path / "t.csv"
    table.write_text("\n".join([columns, *(",".join(row) for row in rows)]), encoding="utf-8")
    output_of("store", "set", "c", "--from", table, "--column", "label", "--store", store)
    with open_store(str(store), read_only=True) as opened:
        found = {item.id: item.metadata.get("label") for item in opened.get("c").scroll().items}
    assert found == dict.fromkeys(("i0", "i1", "i2", "i3", "i4")) | labels


def test_a_table_keeps_types_writes_where_filters_read_and_counts(store, tmp_path):
    with open_store(str(store)) as opened:
        opened.get("c").update_each({"i0": {"n": 3, "a.b": "x"}, "i1": {"n": 4, "a": {"b": "y", "c": 1}}})
    table = tmp_path / "t.csv"
    table.write_text("id,n,a.b\ni0,4,cat\ni1,,dog\ni2,5,cow\ni9,6,x\n")
    call = ("store", "set", "c", "--from", table, "--store", store)
    found = json.loads(output_of(*call, "--column", "n", "--column", "a.b", "--json"))
    assert (found["updated"], found["unmatched_rows"], found["unmatched_items"]) == (3, 1, 2)
    with open_store(str(store), read_only=True) as opened:
        items = {item.id: item.metadata for item in opened.get("c").get(["i0", "i1", "i2"])}
        assert [items[id]["n"] for id in items] == [4, 4, 5]
        assert items["i0"]["a.b"] == "cat"
        assert items["i1"]["a"] == {"b": "dog", "c": 1}
        assert ("a" in items["i0"], "a.b" in items["i1"]) == (False, False)
        assert opened.get("c").facets(["a.b"])["a.b"].distinct == 3
    refused(*call, "--column", "a=a.b", code=2)  # i1 holds an object


@pytest.mark.parametrize(
    "rows", ["path,label\n2.png,cat\ny/2.png,dog\n", "id,label\ni3,cat\ni3,dog\n", "path,label\n1.png,cat\n"]
)
def test_rows_that_contradict_each_other_are_refused(rows, store, folder, tmp_path):
    table = tmp_path / "t.csv"
    table.write_text(rows)
    refused("store", "set", "c", "--from", table, "--column", "label", "--store", store, code=2)
    with open_store(str(store), read_only=True) as opened:
        collection = opened.get("c")
        assert collection.facets(["label"])["label"].items == 0
        with pytest.raises(InvalidRequest):
            collection_subject(collection, labels=read_rows(LabelTable(table)))


def test_other_columns_and_unknown_paths(store, tmp_path):
    table = tmp_path / "t.csv"
    table.write_bytes("Datei;Art\r\nsub/ü.png;Käfer\r\n".encode("cp1252"))
    call = ("store", "set", "c", "--from", table, "--store", store)
    refused(*call, "--column", "label=Art", code=2)
    output_of(*call, "--path-column", "Datei", "--column", "label=Art")
    with open_store(str(store), read_only=True) as opened:
        assert opened.get("c").facets(["label"])["label"].values == [("Käfer", 1)]
    table.write_text("path\n1.png\n")
    refused("store", "delete", "c", "--from", table, "--store", store, code=2)  # in two folders
    table.write_text("path\nnowhere.png\n")
    refused("store", "delete", "c", "--from", table, "--store", store, code=2)
    table.write_text("path\n2.png\n")
    assert json.loads(output_of("store", "delete", "c", "--from", table, "--store", store, "--json"))["deleted"] == 1


def test_tables_out_have_id_and_path(folder, tmp_path, model):
    labels = {unicodedata.normalize("NFC", str(path.relative_to(folder))): "" for path in folder.rglob("*.png")}
    for number, name in enumerate(list(labels)):
        labels[name] = "ab"[number % 2]
    table = tmp_path / "t.csv"
    table.write_text(table_of(labels), encoding="utf-8")
    store = ("--store", tmp_path / "s")
    output_of("index", folder, "--collection", "c", *store, "--model", model, "--labels", table, "--root", folder)
    output_of("probe", "fit", folder, "--labels", table, "--out", tmp_path / "p", "--model", model, "--l2", "1")
    for what in (("--collection", "c", *store), (folder,)):
        header, *rows = csv.reader(io.StringIO(output_of("probe", "predict", *what, "--probe", tmp_path / "p")))
        assert header[:3] == ["id", "path", "label"]
        assert {unicodedata.normalize("NFC", row[1].removeprefix(f"{folder}/")) for row in rows} == set(NAMES)
    (tmp_path / "predicted.csv").write_text(
        output_of("probe", "predict", "--collection", "c", *store, "--probe", tmp_path / "p")
    )
    output_of("store", "set", "c", "--from", tmp_path / "predicted.csv", "--column", "guess=label", *store)
    output_of("inspect", "c", *store, "--out", tmp_path / "report", "--labels", table)
    for file in (tmp_path / "report").glob("*.csv"):
        assert file.read_text().startswith("id,path,"), file
    with (tmp_path / "report" / "clusters.csv").open() as file:
        assert {unicodedata.normalize("NFC", row["path"]) for row in csv.DictReader(file)} == set(NAMES)
