"""nnclr store: the effects, the output and the errors of its verbs."""

import json
import re
import shlex
import sqlite3
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import commands
import numpy as np
import pytest
from commands import error_line
from typer.testing import CliRunner

from nnclr_hub import load_encoder
from nnclr_hub.cli.app import app
from nnclr_hub.cli.options import Place
from nnclr_hub.cli.verbs import confirm
from nnclr_hub.errors import InvalidRequest
from nnclr_hub.store import open_store
from nnclr_hub.store.base import CollectionSpec, Item
from nnclr_hub.workbench.metadata import PIXEL_HASH

DIM = 8


@pytest.fixture
def store(tmp_path) -> Path:
    """Create a store with a collection of thirty items, two of them nearly equal."""
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
    """nnclr("list") -> exit code, standard output, standard error; on the fixture's store unless --store is passed."""

    def call(*words, typed=None) -> tuple[int, str, str]:
        where = () if "--store" in words else ("--store", store)
        return commands.nnclr("store", *words, *where, typed=typed)

    return call


def test_list_prints_the_state_of_collections(nnclr):
    code, out, _ = nnclr("list")
    assert (code, [part for part in ("photos", "current", "30", "cosine", "a-model", "ready") if part not in out]) == (
        0,
        [],
    )
    (row,) = json.loads(nnclr("list", "--json")[1])
    assert (row["name"], row["aliases"], row["items"], row["dim"]) == ("photos", ["current"], 30, DIM)
    assert row["durable_seq"] == row["indexed_seq"] > 0
    assert row["recall_estimate"] is None  # listing opens no collection


def test_during_a_write_lock_reading_verbs_work_and_writing_verbs_are_refused(nnclr, store, tmp_path):
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
            assert "in this process or another" in error_line(nnclr(*call), 1)
        where = ("--collection", "photos", "--store", store)
        assert commands.nnclr("search", "--id", "i00", *where)[0] == 0
        error_line(commands.nnclr("index", tmp_path, *where), 1)


def test_verify_reports_damage_and_how_to_repair_it(nnclr, store):
    code, out, _ = nnclr("verify")
    assert code == 0
    assert "intact, 30 items" in out
    (report,) = json.loads(nnclr("verify", "current", "--json")[1])
    assert (report["name"], report["ok"], report["items"]) == ("current", True, 30)
    damage(store)
    code, out, _ = nnclr("verify", "photos")
    assert code == 1
    assert "damaged vector: 1 of 30 items: i07" in out
    code, out, _ = commands.nnclr(*copied(out))
    assert code == 0
    assert "29 items, 1 removed" in out
    assert "i07" in out
    assert nnclr("verify")[0] == 0


def copied(text: str) -> list[str]:
    """Return the words after nnclr of the one command in a message."""
    _, command, _ = text.split("`")
    return shlex.split(command)[1:]


def test_a_file_that_cannot_be_read_names_its_repair(nnclr, store):
    """In each place where the damage is noticed: the command of the message is complete."""
    with open_store(str(store)) as opened:
        file = opened.files()["photos"]
    content = bytearray(file.read_bytes())
    content[: 2 * 16384] = b"\xa5" * (2 * 16384)
    file.write_bytes(content)
    for words in (("verify",), ("verify", "photos"), ("export", "photos", store.parent / "out"), ("delete", "photos")):
        _, out, err = nnclr(*words, *(["--id", "i00"] if words[0] == "delete" else []))
        command = f"nnclr store repair photos --store {store}"
        assert command in re.findall("`([^`]*)`", out + err), (words, out, err)
    assert commands.nnclr("search", "--id", "i00", "--collection", "photos", "--store", store)[2].count(command) == 1
    assert commands.nnclr(*command.split()[1:])[0] == 1  # all is lost


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("milvus://me:se:cret@host:19530/db", "--store milvus://me:PASSWORD@host:19530/db"),
        ("milvus://host?M=32&token=secret", "--store 'milvus://host?M=32&token=TOKEN'"),
        ("http://me:secret@host:8000", "--server http://me:PASSWORD@host:8000"),
        ("http://host:8000", "--server http://host:8000"),
        ("a:b@c/store", "--store a:b@c/store"),
        ("my store", "--store 'my store'"),
    ],
)
def test_a_command_in_a_message_has_no_secrets_and_is_quoted(address, shown):
    assert Place(address).command("store list") == f"`nnclr store list {shown}`"


def damage(store: Path) -> None:
    """Overwrite the vector of i07 with that of i08."""
    (path,) = (store / "collections").glob("*.sqlite")
    vector_of = "SELECT {} FROM vectors JOIN items USING (rid) WHERE id = '{}'"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(
            f"UPDATE vectors SET vector = ({vector_of.format('vector', 'i08')}) "
            f"WHERE rid = ({vector_of.format('rid', 'i07')})"
        )


def test_drop_asks_for_confirmation(nnclr):
    code, _, err = nnclr("drop", "photos", typed="n\n")
    assert code == 1
    assert "30 items" in err
    assert "--yes" in error_line(nnclr("drop", "photos"), 2), "nobody answers"
    assert len(json.loads(nnclr("list", "--json")[1])) == 1
    assert "'photos'" in error_line(nnclr("drop", "current", "--yes"), 2)
    assert nnclr("drop", "photos", typed="y\n")[0] == 0
    assert "The store is empty" in nnclr("list")[1]


def test_a_closed_standard_input_is_no_answer(monkeypatch):
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(InvalidRequest, match="--yes"):
        confirm("Delete?")


def test_create_applies_every_option(nnclr, store, model):
    keys = ("--indexed", "label", "--indexed", "album")
    code, out, _ = nnclr("create", "own", "--dim", 4, "--metric", "l2", "--index", "flat", "--precision", "f16", *keys)
    assert code == 0
    assert "l2, f16" in out
    more = ("--precision", "f16", "--vectors", "whiten")
    assert json.loads(nnclr("create", "by-model", "--model", model, *more, "--json")[1])["dim"] == 32
    assert json.loads(nnclr("create", "decided", "--model", model, "--json")[1])["vectors"] == "half_whiten"
    with open_store(str(store), read_only=True) as opened:
        assert opened.get("own").spec == CollectionSpec(4, "l2", "", "", ("label", "album"), "flat", "f16")
        wanted = replace(CollectionSpec.of(load_encoder(model, device="cpu")), precision="f16", vectors="whiten")
        assert opened.get("by-model").spec == wanted
        assert opened.get("decided").spec == replace(wanted, precision="f32", vectors="half_whiten")
    assert "'own'" in error_line(nnclr("create", "own", "--dim", 4), 1)
    assert "'current'" in error_line(nnclr("create", "current", "--dim", 4), 1)


def test_the_command_that_creates_a_missing_collection_is_named_and_works(nnclr, store, tmp_path):
    lines = ["no row", *(json.dumps({"id": f"i{n}", "vector": [n, 1, 0, 0, 2]}) for n in range(3))]
    (tmp_path / "items.ndjson").write_text("\n".join(lines))
    call = ("import", tmp_path / "items.ndjson", "--collection", "five")
    _, command, _ = error_line(nnclr(*call), 1).split("`")
    assert nnclr(*command.removeprefix("nnclr store ").split())[0] == 0
    assert nnclr(*call, "--json")[0] == 0
    with open_store(str(store)) as opened:
        assert opened.get("five").count() == 3
    there = ("--store", tmp_path / "there")
    _, command, _ = error_line(nnclr(*call, *there), 2).split("`")
    assert nnclr(*command.removeprefix("nnclr store ").split())[0] == 0
    assert nnclr(*call, *there)[0] == 0
    (tmp_path / "items.ndjson").write_text("no row")
    assert "Nothing" in error_line(nnclr(*call), 2)
    (tmp_path / "photos.zip").write_bytes(b"")  # is not read yet
    line = error_line(nnclr("import", tmp_path / "photos.zip", "--collection", "more"), 1)
    assert copied(line)[:3] == ["store", "create", "more"]


def test_duplicates_are_listed_by_path(nnclr, store):
    code, out, err = nnclr("duplicates", "photos")
    assert code == 0
    assert "3 alike:\n  0.jpg\n  1.jpg\n  2.jpg\n" in out
    assert "10 groups with 29 items" in out
    assert "1 item " in err
    near = json.loads(nnclr("duplicates", "photos", "--near", 0.999, "--json")[1])
    assert near["groups"] == [[{"id": "i00", "root": "", "path": "0.jpg"}, {"id": "i01", "root": "", "path": "1.jpg"}]]
    with open_store(str(store)) as opened:
        collection = opened.get("photos")
        items = collection.get([f"i{n:02}" for n in range(30)])
        collection.upsert([replace(one, metadata={**one.metadata, "root": "/images"}) for one in items[:29]])
    assert "In /images:\n\n3 alike:\n  0.jpg\n" in nnclr("duplicates", "photos")[1]
    with open_store(str(store)) as opened:
        opened.get("photos").upsert([replace(items[0], metadata={**items[0].metadata, "root": "/others"})])
    assert "3 alike:\n  /others/0.jpg\n  /images/1.jpg\n" in nnclr("duplicates", "photos")[1]


def test_backups_are_listed_verified_and_restored(nnclr, store, tmp_path):
    to = tmp_path / "backups"
    first = json.loads(nnclr("backup", to, "--json")[1])
    with open_store(str(store)) as opened:
        opened.get("photos").delete(["i00"])
    second = json.loads(nnclr("backup", to, "--json")[1])
    assert (first["items"], second["items"]) == (30, 29)

    def call(*args) -> Any:
        result = CliRunner().invoke(app, ["store", *map(str, args), "--json"])
        assert result.exit_code == 0, result.stderr
        return json.loads(result.stdout)

    made = {one["id"]: one["collections"] for one in call("backups", to)}
    assert made == {first["id"]: {"photos": 30}, second["id"]: {"photos": 29}}
    for folder, options, items in (("new", [], 29), ("id", ["--at", first["id"]], 30)):
        assert call("restore", to, tmp_path / folder, *options)["collections"] == {"photos": items}
        with open_store(str(tmp_path / folder), read_only=True) as opened:
            assert opened.get("current").count() == items
    for wrong in (["--at", "noon"], ["--at", "2020-01-01"]):
        result = CliRunner().invoke(app, ["store", "restore", str(to), str(tmp_path / "wrong"), *wrong])
        assert result.exit_code in (1, 2)
        assert not (tmp_path / "wrong").exists()
    assert {one["id"]: one["ok"] for one in call("verify-backup", to)} == dict.fromkeys(made, True)
    third = json.loads(nnclr("backup", to, "--json", "--keep", "1")[1])
    assert (third["removed"], third["written"]) == (2, 0)
    assert CliRunner().invoke(app, ["store", "backup", str(store / "inside"), "--store", str(store)]).exit_code == 2
    (to / "backups" / f"{third['id']}.json").write_text("{}")
    nnclr("backup", to)
    assert commands.nnclr("store", "verify-backup", to)[0] == 1
    found = json.loads(commands.nnclr("store", "verify-backup", to, "--json")[1])
    assert {one["id"]: one["ok"] for one in found} == {third["id"]: False, max(one["id"] for one in found): True}
    next(to.glob("chunks/*")).write_bytes(b"")
    assert commands.nnclr("store", "verify-backup", to)[0] == 1


@pytest.mark.parametrize("remedy", ["repair", "drop"])
def test_a_backup_names_what_ends_its_failures(nnclr, store, tmp_path, remedy):
    with open_store(str(store)) as opened:
        opened.create("whole", CollectionSpec(2)).upsert([Item("a", np.ones(2, np.float32))])
        file = opened.files()["photos"]
    content = bytearray(file.read_bytes())
    content[16384 : 2 * 16384] = b"\xa5" * 16384  # a page
    file.write_bytes(content)
    line = error_line(nnclr("backup", tmp_path / "backups"), 1)
    commands_named = [one for one in line.split("`") if one.startswith("nnclr store")]
    assert commands_named == [f"nnclr store {one} photos --store {store}" for one in ("repair", "drop")]
    chosen = next(one for one in commands_named if remedy in one)
    commands.nnclr(*chosen.split()[1:], *(["--yes"] if remedy == "drop" else []))
    code, out, err = nnclr("backup", tmp_path / "backups")
    assert code == 0, err
    assert str(tmp_path / "backups") in out


UNKNOWN = {clause: json.dumps({clause: [{"key": "lable", "match": "cat"}]}) for clause in ("must", "must_not")}
MISSPELLED = [
    ("store", "facets", "photos", "lable"),
    ("store", "facets", "photos", "label", "--where", UNKNOWN["must"]),
    ("store", "set", "photos", "{}", "--where", UNKNOWN["must"]),
    ("store", "delete", "photos", "--where", UNKNOWN["must"], "--yes"),
    ("search", "--id", "i00", "--collection", "photos", "--where", UNKNOWN["must"]),
    ("search", "--id", "i00", "--collection", "photos", "--group-by", "lable"),
    ("inspect", "photos", "--field", "lable"),
    ("store", "indexed", "photos", "label", "lable"),
    ("store", "delete", "photos", "--where", UNKNOWN["must_not"], "--yes"),
]


def test_a_key_that_no_item_has_is_named_with_a_near_one(store, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with open_store(str(store)) as opened:
        opened.get("photos").update_metadata({"label": "cat", "camera": {"model": "X"}}, ids=["i00", "i03"])
    for words in MISSPELLED:
        code, _, err = commands.nnclr(*words, "--store", store)
        assert (code, "No item of photos has the key 'lable'; did you mean 'label'?" in err) == (0, True), (words, err)


def test_a_key_without_a_near_one_is_named_with_the_existing_ones(nnclr, store):
    with open_store(str(store)) as opened:
        opened.get("photos").update_metadata({"camera": {"model": "X"}}, ids=["i00"])
    code, _, err = nnclr("facets", "photos", "weather", "camera.model", "path")
    assert code == 0
    assert err.count("No item") == 1
    assert "'weather'" in err
    assert "camera.model" in err
    assert "did you mean 'camera.model'?" in nnclr("facets", "photos", "camera.modell")[2]


def test_a_backup_does_not_rely_on_a_damaged_chunk(nnclr, store, tmp_path):
    to = tmp_path / "backups"
    assert nnclr("backup", to)[0] == 0
    for chunk in to.glob("chunks/*"):
        content = bytearray(chunk.read_bytes())
        content[len(content) // 2] ^= 1
        chunk.write_bytes(content)
    assert commands.nnclr("store", "verify-backup", to)[0] == 1
    with open_store(str(store)) as opened:
        opened.get("photos").delete(["i00"])
    second = json.loads(nnclr("backup", to, "--json")[1])
    found = {one["id"]: one["ok"] for one in json.loads(commands.nnclr("store", "verify-backup", to, "--json")[1])}
    assert found[second["id"]]
    assert commands.nnclr("store", "restore", to, tmp_path / "restored")[0] == 0
    with open_store(str(tmp_path / "restored"), read_only=True) as opened:
        assert opened.get("photos").count() == 29
