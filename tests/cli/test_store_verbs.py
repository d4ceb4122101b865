"""nnclr store: what the verbs do, what they print, and how they say no."""

import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from nnclr_hub.cli.app import app
from nnclr_hub.store import open_store
from nnclr_hub.store.base import CollectionSpec, Item
from nnclr_hub.store.duplicates import PIXEL_HASH

runner = CliRunner()
VERBS = (
    *("list", "verify", "repair", "snapshot", "compact", "drop", "alias", "unalias"),
    *("export", "import", "reembed", "duplicates"),
)
DIM = 8


@pytest.fixture
def store(tmp_path) -> Path:
    """With the collection photos of thirty items, two of them alike."""
    path = tmp_path / "store"
    rows = np.random.default_rng(0).normal(size=(30, DIM)).astype(np.float32)
    rows[1] = rows[0] + 0.01
    with open_store(str(path)) as opened:
        collection = opened.create("photos", CollectionSpec(DIM, fingerprint="f" * 64, model="a-model"))
        items = [Item(f"i{n:02}", row, {"path": f"{n}.jpg", PIXEL_HASH: str(n // 3)}) for n, row in enumerate(rows)]
        collection.upsert([*items[:-1], Item("i29", rows[29])])
        opened.alias("current", "photos")
    return path


@pytest.fixture
def nnclr(store):
    """nnclr("list") -> exit code, standard output, standard error; on the store unless it is said otherwise."""

    def call(*arguments, typed=None) -> tuple[int, str, str]:
        words = [str(one) for one in arguments]
        if "--store" not in words:
            words += ["--store", str(store)]
        result = runner.invoke(app, ["store", *words], input=typed)
        if result.exception and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result.exit_code, result.stdout, result.stderr

    return call


def said(answer, code: int) -> str:
    """The error's one sentence."""
    exit_code, _, err = answer
    assert exit_code == code, err
    (line,) = [line for line in err.splitlines() if line.startswith("Error: ")]
    return line


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help_with_an_example(verb):
    result = runner.invoke(app, ["store", verb, "--help"])
    assert result.exit_code == 0
    assert f"Example: nnclr store {verb}" in " ".join(result.stdout.replace("│", " ").split())


def test_list_tells_people_and_programs_how_collections_stand(nnclr):
    code, out, _ = nnclr("list")
    assert code == 0
    for part in ("photos", "current", "30", "cosine", "a-model", "ready"):
        assert part in out
    (row,) = json.loads(nnclr("list", "--json")[1])
    assert (row["name"], row["aliases"], row["items"], row["dim"]) == ("photos", ["current"], 30, DIM)
    assert row["durable_seq"] == row["indexed_seq"] > 0
    assert {"index", "state", "model", "metric", "fingerprint"} <= row.keys()


def test_reading_verbs_work_beside_a_writer_and_writing_ones_say_who_has_the_store(nnclr, store, tmp_path):
    with open_store(str(store)):
        for call in (("list",), ("verify",), ("export", "photos", tmp_path / "out"), ("duplicates", "photos")):
            assert nnclr(*call)[0] == 0, call
        for call in (
            ("repair", "photos"),
            ("snapshot",),
            ("compact",),
            ("drop", "photos", "--yes"),
            ("alias", "a", "photos"),
        ):
            assert "Another process" in said(nnclr(*call), 1)


def test_verify_says_all_is_well_or_what_to_do(nnclr, store):
    code, out, _ = nnclr("verify")
    assert code == 0
    assert "all 30 items are well" in out
    (report,) = json.loads(nnclr("verify", "current", "--json")[1])
    assert (report["name"], report["ok"], report["items"]) == ("current", True, 30)
    damage(store)
    code, out, _ = nnclr("verify", "photos")
    assert code == 1
    assert "1 of 30 items have a damaged vector: i07" in out
    assert "nnclr store repair photos" in out
    code, out, _ = nnclr("repair", "photos")
    assert code == 0
    assert "29 items, 1 removed" in out
    assert "i07" in out
    assert nnclr("verify")[0] == 0


def damage(store: Path) -> None:
    """The vector of i08 where that of i07 belongs."""
    (path,) = (store / "collections").glob("*.sqlite")
    vector_of = "SELECT {} FROM vectors JOIN items USING (rid) WHERE id = '{}'"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(
            f"UPDATE vectors SET vector = ({vector_of.format('vector', 'i08')}) "
            f"WHERE rid = ({vector_of.format('rid', 'i07')})"
        )


def test_snapshot_and_compact_say_what_they_did(nnclr):
    assert "photos: written" in nnclr("snapshot")[1]
    assert "photos: compacted, 30 items" in nnclr("compact", "photos")[1]
    assert nnclr("verify")[0] == 0


def test_drop_asks_first(nnclr):
    code, out, _ = nnclr("drop", "photos", typed="n\n")
    assert code == 1
    assert "30 items" in out
    assert len(json.loads(nnclr("list", "--json")[1])) == 1
    assert "name the collection that it means, 'photos'" in said(nnclr("drop", "current", "--yes"), 2)
    assert nnclr("drop", "photos", typed="y\n")[0] == 0
    assert "The store is empty" in nnclr("list")[1]


def test_names_come_and_go(nnclr):
    assert nnclr("alias", "best", "current")[0] == 0
    assert json.loads(nnclr("list", "--json")[1])[0]["aliases"] == ["best", "current"]
    assert nnclr("unalias", "best")[0] == 0
    assert json.loads(nnclr("list", "--json")[1])[0]["aliases"] == ["current"]
    assert "best" in said(nnclr("unalias", "best"), 1)


def test_export_and_import_carry_a_collection_to_another_store(nnclr, tmp_path):
    code, out, _ = nnclr("export", "current", tmp_path / "out")
    assert code == 0
    assert "30 items" in out
    assert "exists already" in said(nnclr("export", "photos", tmp_path / "out"), 2)
    there = ("--store", tmp_path / "there")
    report = json.loads(nnclr("import", tmp_path / "out", "--json", *there)[1])
    assert report == {"collection": "photos", "items": 30, "written": 30, "created": True}
    assert "0 of 30 items written" in nnclr("import", tmp_path / "out", "--collection", "photos", *there)[1]
    (row,) = json.loads(nnclr("list", "--json", *there)[1])
    assert (row["name"], row["items"]) == ("photos", 30)
    with open_store(str(tmp_path / "there")) as opened:
        opened.get("photos").upsert([Item("another", np.ones(DIM))])
    assert "--into" in said(nnclr("import", tmp_path / "out", *there), 1)
    assert nnclr("import", tmp_path / "out", "--into", *there)[0] == 0


def test_duplicates_are_shown_by_their_paths(nnclr):
    code, out, err = nnclr("duplicates", "photos")
    assert code == 0
    assert "0.jpg\n1.jpg\n2.jpg\n" in out
    assert "10 groups with 29 items" in out
    assert "1 items have no record" in err
    near = json.loads(nnclr("duplicates", "photos", "--near", 0.999, "--json")[1])
    assert near["groups"] == [[{"id": "i00", "path": "0.jpg"}, {"id": "i01", "path": "1.jpg"}]]
    assert "give a score" in said(nnclr("duplicates", "photos", "--near", 7), 2)
    assert "--near" in said(nnclr("duplicates", "photos", "--exact"), 2)


def test_wrong_calls_are_explained_and_leave_nothing_behind(nnclr, tmp_path):
    nowhere = tmp_path / "nowhere"
    for call in (("list",), ("verify",), ("repair", "x"), ("drop", "x", "--yes"), ("reembed", "x", "--model", "m")):
        assert "holds no store" in said(nnclr(*call, "--store", nowhere), 2)
    assert "holds no exported collection" in said(nnclr("import", tmp_path, "--store", nowhere), 2)
    assert not nowhere.exists()
    for call in (("verify", "x"), ("repair", "x"), ("drop", "x"), ("alias", "a", "x"), ("export", "x", nowhere)):
        assert "there are" in said(nnclr(*call), 1), call
    assert not nowhere.exists()
    assert "--abandon" in said(nnclr("reembed", "photos"), 2)
    assert "nothing to abandon" in said(nnclr("reembed", "photos", "--abandon"), 2)


def test_reembed_moves_an_indexed_folder_to_another_model(nnclr, photos, model, make_model, tmp_path):
    folder, store = shutil.copytree(photos, tmp_path / "photos"), tmp_path / "own"
    other = make_model(seed=1)
    index = ["index", folder, "--collection", "c", "--store", store, "--model", model]
    assert runner.invoke(app, [str(one) for one in index]).exit_code == 0
    (folder / "cat" / "00.jpg").unlink()
    call = ("reembed", "c", "--model", other, "--store", store)
    assert "cat/00.jpg: its file is missing" in said(nnclr(*call), 1)
    code, out, err = nnclr(*call, "--skip-missing")
    assert code == 0, err
    assert "59 items" in out
    assert "1 left out" in out
    assert "nnclr store drop c.old" in out
    assert "cat/00.jpg" in err
    assert "nothing to do" in nnclr(*call)[1]
    names = [row["name"] for row in json.loads(nnclr("list", "--json", "--store", store)[1])]
    assert len(names) == 2
    search = ["search", folder / "cat" / "01.jpg", "--collection", "c", "--store", store, "--json"]
    best = json.loads(runner.invoke(app, [str(one) for one in search]).stdout)["matches"][0]
    assert best["metadata"]["path"] == "cat/01.jpg"
