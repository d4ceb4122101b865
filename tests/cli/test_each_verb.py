"""Each verb that works on a store, at each address: a folder, a server, and Milvus Lite where it applies."""

import json
import re
import shlex
import shutil
import zipfile
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from commands import error_line, nnclr

from nnclr_hub import Client, CollectionSpec, Item, open_store
from nnclr_hub.client.transport import Connection
from nnclr_hub.store.folder.collection import EmbeddedCollection
from nnclr_hub.store.reports import VerifyReport
from nnclr_hub.workbench import reembedding

KEY = "0123456789abcdefghijklmnop"
RED = '{"must": [{"key": "label", "match": "red"}]}'
ADDRESSES = ("folder", "http", "milvus")
NOT_MILVUS = ("folder", "http")


@dataclass(frozen=True)
class Step:
    """A call of nnclr, in words; {name} is a file or a model.

    has: parts of its output.
    said: a part of each of its error lines; a call that fails has one.
    same: whether the output is the same at each address; otherwise only the exit code is.
    at: the addresses where it is called.
    placed: whether it takes an address.
    """

    words: str
    code: int = 0
    has: tuple[str, ...] = field(default=())
    said: tuple[str, ...] = field(default=())
    same: bool = True
    at: tuple[str, ...] = ADDRESSES
    placed: bool = True


STEPS = [
    # a collection of vectors; `v` gets nine items before the first step
    Step("store create w --dim 3 --metric l2 --json", has=('"l2"',), same=False),
    Step("store create a/b --dim 3", 2),
    Step("store create v --dim 4 --indexed label", 1),
    Step("store facets v label n --json", has=('"items": 9',), at=NOT_MILVUS),
    Step(f"store facets v label --where '{RED}'", has=("red",), at=NOT_MILVUS),
    Step("store facets nothing label", 1),
    Step("search --collection v --id i0 -k 2 --exact --json", has=('"score"',), same=False),
    Step("search --collection v --vector-from {rows}", has=("i0", "i1"), same=False),
    Step(f"search --collection v --id i1 --where '{RED}' --threshold 2", has=("no matches",)),
    Step("search --collection v --id nobody", 1),
    Step("search --collection nothing --id i0", 1),
    Step(f"store set v '{{\"note\": {{\"a\": 1}}}}' --where '{RED}' --json", has=('"updated": 5',)),
    Step("store set v --from {table} --column label", has=("3 items set",)),
    Step("store set v [] --id i0", 2),
    Step("store set v '{\"odd\": true}' --from {table} --json", has=('"updated": 3',)),
    Step("store set v --from {table}", 2),
    Step("store set v '{}' --from {table} --column label", 2),
    Step("store set v --from {table} --column missing", 2),
    Step("store set v --id i2 --column label", 2),
    Step("store set v '{}' --id nosuch --id nobody", 1, said=("nosuch, nobody",)),
    Step("store set v '{\"a\": 1}' --replace --id nosuch", 1, said=("nosuch",)),
    # a table without rows, as `nnclr inspect` writes it for a finding without entries
    Step("store set v --from {norows} --column label", has=(" 0 items set",)),
    Step("store set v '{\"odd\": true}' --from {norows}", has=(" 0 items set",)),
    Step("store delete v --from {norows}", has=(" 0 items deleted",)),
    Step("store set v --from {norows} --column nothing", 2),
    Step("store set v '{}' --from {norows} --path-column x", 2),
    Step("store facets v label --json", has=('"green"',), at=NOT_MILVUS),
    Step("store indexed v label n --json", has=('"n"',), at=NOT_MILVUS),
    Step("store indexed v", has=("label",), same=False),
    Step("store indexed v a --none", 2),
    Step("store delete v --id i0 --id i1 --id nobody", has=("2 items deleted; unknown ids: 1",)),
    Step(f"store delete v --where '{RED}' --yes --json", has=('"deleted": 3',)),
    Step("store delete v", 2),
    Step("store delete v --id nosuch", 1, said=("nosuch",)),
    Step("store delete v --from {labels}", 2),  # paths that no item has
    Step("store delete v --from {nowhere}", 2),
    Step("store delete v --from {empty}", 2),
    Step("store delete v --from {table} --id i0", 2),
    Step("store alias now v", has=("now -> v",)),
    Step("store alias later now", has=("later -> v",)),
    Step("store list", has=("later, now",), same=False),
    Step("store unalias later"),
    Step("store unalias nothing", 1),
    Step("store snapshot v"),
    Step("store compact v", has=("compacted, 4 items",)),
    Step("store verify v --json", has=('"ok": true',), same=False),
    Step("store verify nothing", 1, said=("existing",)),
    Step("store repair nothing", 1, said=("existing",), at=("folder", "milvus")),
    Step("store alias a nothing", 1, said=("existing",)),
    Step("store export nothing {nowhere}", 1, said=("existing",)),
    Step("store export v {exported} --no-thumbnails", has=("4 items",), same=False),
    Step("store export v {exported}", 2),
    Step("store import {exported} --collection copy", has=("4 of 4 items written",)),
    Step("store import {exported} --json", has=('"collection": "v"', '"written": 0')),
    Step("store import {ndjson} --collection v --json", has=('"added": 2', '"errors_count": 1')),
    Step("store import {ndjson} --collection v", has=("0 added, 0 replaced, 2 unchanged, 1 invalid",)),
    Step("store import {ndjson} --collection nothing", 1),
    Step("store import {exported}", 1, said=("--into",)),
    Step("store import {exported} --into", has=("4 of 4 items written",)),
    Step("store import {photos} --collection copy", 2),
    Step("store import {nowhere} --collection copy", 2),
    Step("store rename copy moved", has=("copy is now moved",)),
    Step("store drop moved --yes"),
    Step("store drop nothing --yes", 1, said=("existing",)),
    Step("store repair v", at=("folder", "milvus")),
    Step("store repair v", 2, at=("http",)),
    Step("store repair", 2, at=("http", "milvus")),
    Step("store backup {backups} --json", has=('"items"',), at=("folder",), same=False),
    Step("store backups {backups}", has=("v (",), at=("folder",), placed=False),
    Step("store verify-backup {backups}", has=("intact",), at=("folder",), placed=False),
    Step("store restore {backups} {restored}", has=("Restored backup",), at=("folder",), placed=False, same=False),
    Step("store restore {nowhere} {restored}", 2, at=("folder",), placed=False),
    Step("store backup --json", has=('"items"',), at=("http",), same=False),
    Step("store backup {backups}", 2, at=("http",)),
    Step("store backup", 2, at=("folder",)),
    # a collection of images
    Step("index {photos} --collection c --source s@here --json", has=('"added": 8',), at=("http",)),
    Step("index {photos} --collection c --model {model} --json", has=('"added": 8',), at=("folder", "milvus")),
    Step("index {photos} --collection c", has=("0 added, 0 updated, 8 unchanged",), same=False),
    Step("index {nowhere} --collection c", 2),
    Step("index {photos} --collection c --model nowhere", 2),
    Step("index {photos} --collection c --model random:test_resnet", 1, at=("folder", "milvus")),
    Step("index {photos} --collection c --shrink 320", 2, at=("folder", "milvus")),
    Step("index {photos} --collection c --tile 32", 2, at=("http",)),
    Step("search {image} --collection c -k 3 --json", has=("0.jpg",), same=False),
    Step("search {image} --collection c -k 3 --out {sheet}", same=False),
    Step("search {image} {broken} --collection c -k 1 --json", 1, has=("unsupported_image",), same=False),
    Step("search {broken} {image} {nowhere} --collection c", 1, ("0.jpg",), ("broken.jpg", "nowhere"), same=False),
    Step("search {image} --collection c --box 0,0,32,32 -k 1", has=("0.jpg",), same=False),
    Step("search --positive {image} --negative {last} --collection c", has=("jpg",), same=False),
    Step("store duplicates c", has=("2 alike:\n  0.jpg\n  copy.jpg",), same=False),
    Step("store duplicates c --near 0.9999 --exact --json", has=('"found": 1',), same=False),
    Step("store duplicates c --near auto", 2),
    Step("store duplicates c --near 7", 2),
    Step("store duplicates c --exact", 2),
    Step("store duplicates nothing", 1),
    Step("store export c {whole}", has=("8 items",), same=False),
    Step("store import {whole} --collection thumbnails", has=("8 of 8 items written",), same=False),
    Step("store drop thumbnails --yes"),
    Step("store import {zip} --collection c --json", has=('"added": 1',)),
    Step("store set c --from {labels} --column label", has=("8 items set",)),
    Step("probe predict --collection c --probe {probe}", has=("id,path,label,probability",), same=False),
    Step("inspect c --out {report} --label-next 2 --write-fields --json", has=('"images": 9',), same=False),
    Step("inspect c --out {report} --labels {labels}", 2, at=("http",)),
    Step("inspect c --out {report} --parts folders", 2, at=("http",)),
    Step("inspect c --out {report} --model {model}", 2),
    Step("inspect nothing --out {report}", 1, at=("http",)),
    Step("inspect c --compare pixels --compare color --json", 2),  # 9 images are too few
    Step("store reembed c --model nowhere", 2),
    Step("store reembed nothing --model {other}", 1),
    Step("store reembed c --model {other}", 2, at=("milvus",)),
    Step("store reembed c --model {other}", 1, at=("folder",)),  # the imported image has no file
    Step("store reembed c --model {other} --skip-missing", has=("c.old",), at=("http",)),  # it keeps the originals
    Step("store reembed c --model {other} --skip-missing", has=("8 items", "1 left out", "c.old"), at=("folder",)),
]


@pytest.fixture(scope="module")
def files(model, make_model, image_files, tmp_path_factory) -> dict[str, Any]:
    """The files that steps name: eight images, two of which are equal, and tables about them."""
    folder = tmp_path_factory.mktemp("verbs")
    photos = folder / "photos"
    photos.mkdir()
    for number in range(7):
        shutil.copy(image_files[number * 8], photos / f"{number}.jpg")
    shutil.copy(photos / "0.jpg", photos / "copy.jpg")
    shutil.copytree(make_model(seed=1), folder / "another")
    named = {name: folder / name for name in ("exported", "whole", "backups", "nowhere", "report", "probe", "restored")}
    named |= {"model": model, "other": "another", "photos": photos, "sheet": folder / "sheet.html"}
    named |= {"image": photos / "0.jpg", "last": photos / "6.jpg", "broken": folder / "broken.jpg"}
    named |= {name: folder / f"{name}.{kind}" for name, kind in (("table", "csv"), ("labels", "csv"), ("rows", "npy"))}
    named |= {name: folder / f"{name}.csv" for name in ("norows", "empty")}
    named |= {"ndjson": folder / "items.ndjson", "zip": folder / "more.zip"}
    named["broken"].write_bytes(b"no image")
    named["table"].write_text("id,label\ni0,green\ni1,green\ni2,black\nnobody,black\n")
    named["norows"].write_text("id,path,label\n")
    named["empty"].touch()
    rows = "".join(f"{path.name},{'ab'[number % 2]}\n" for number, path in enumerate(sorted(photos.iterdir())))
    named["labels"].write_text(f"path,label\n{rows}")
    named["ndjson"].write_text('no row\n{"id": "x", "vector": [1, 2, 3, 4]}\n{"id": "y", "vector": [4, 3, 2, 1]}\n')
    np.save(named["rows"], vectors()[:2])
    with zipfile.ZipFile(named["zip"], "w") as archive:
        archive.write(image_files[-1], "cat/last.jpg")
    code, _, err = nnclr("probe", "fit", photos, "--labels", named["labels"], "--model", model, "--out", named["probe"])
    assert code == 0, err
    return named


def vectors() -> np.ndarray:
    return np.random.default_rng(0).normal(size=(9, 4)).astype(np.float32)


def items() -> list[Item]:
    return [Item(f"i{n}", row, {"label": ("red", "blue")[n % 2], "n": n}) for n, row in enumerate(vectors())]


@pytest.fixture(scope="module")
def server(files, model, tmp_path_factory, serve):
    folder = tmp_path_factory.mktemp("server")
    options: dict[str, Any] = {"write_keys": (f"tests:{KEY}",), "source_folders": [str(files["photos"])]}
    for running in serve(model, folder / "store", backup_to=str(folder / "backups"), originals_bytes=10**9, **options):
        running.engines.get(str(files["photos"].parent / "another"))
        yield running


@pytest.fixture(scope="module")
def answers(files, server, tmp_path_factory) -> dict[str, list[tuple[int, str, str] | None]]:
    """Call all steps at each address; the place in an answer is replaced by PLACE."""
    found: dict[str, Any] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NNCLR_API_KEY", KEY)
        patch.chdir(files["photos"].parent)
        for kind in ADDRESSES:
            if kind == "milvus":
                try:
                    import pymilvus  # noqa: F401
                except ImportError:
                    continue
            own = tmp_path_factory.mktemp(kind)
            where = {"folder": own / "store", "milvus": own / "x.milvus.db", "http": server.url}[kind]
            place = ["--server" if kind == "http" else "--store", str(where)]
            names = {**files, **{name: own / files[name].name for name in ("exported", "whole", "report", "sheet")}}
            create = ["store", "create", "v", "--dim", "4", "--indexed", "label", "--indexed", "n"]
            assert nnclr(*create, *place)[0] == 0
            with Client(server.url, KEY).store if kind == "http" else open_store(str(where)) as store:
                store.get("v").upsert(items())
            found[kind] = []
            for step in STEPS:
                if kind not in step.at:
                    found[kind].append(None)
                    continue
                words = [
                    names[word[1:-1]] if re.fullmatch(r"\{\w+\}", word) else word for word in shlex.split(step.words)
                ]
                try:
                    code, out, err = nnclr(*words, *(place if step.placed else ()))
                except Exception as error:  # noqa: BLE001 - a fault fails its own step
                    code, out, err = -1, "", repr(error)
                for text, word in ((" ".join(place), "PLACE"), (str(where), "PLACE"), (str(own), "OWN")):
                    out = out.replace(text, word)
                found[kind].append((code, out, err))
    return found


@pytest.mark.parametrize("number", range(len(STEPS)), ids=[step.words[:60] for step in STEPS])
def test_each_verb_at_each_address(answers, number):
    step = STEPS[number]
    found = {kind: given[number] for kind, given in answers.items() if given[number] is not None}
    for kind, (code, out, err) in found.items():
        assert code == step.code, (kind, out, err)
        assert [part for part in step.has if part not in out] == [], (kind, out)
        errors = [line for line in err.splitlines() if line.startswith("Error: ")]
        wanted = step.said or (("",) if code else ())
        assert [part in line for part, line in zip(wanted, errors, strict=True)] == [True] * len(wanted), (kind, err)
        for command in re.findall(r"`nnclr (?:store|index|search) [^`]* [^`]*`[^,;.]*", err + out):
            assert re.search("PLACE|--store|--server|on the machine", command), (kind, command)
    if step.same:
        assert len({out for _, out, _ in found.values()}) == 1, found


def test_the_place_of_each_report_exists(server, tmp_path, monkeypatch):
    """The page of a server is opened at its address; the tables are in --out in either case."""
    monkeypatch.setenv("NNCLR_API_KEY", KEY)
    with Client(server.url, KEY) as client, open_store(tmp_path / "store") as store:
        for there in (client.store, store):
            there.create("report", CollectionSpec(4)).upsert(items())
    for kind, place in (("server", server.url), ("store", tmp_path / "store")):
        to = tmp_path / f"of-{kind}"
        words = ("report", "--out", to, "--write-fields", f"--{kind}", place)
        code, out, err = nnclr("inspect", *words)
        assert code == 0, err
        [page] = re.findall(r"The report is (\S+)\.\s", out)
        [tables] = re.findall(r"files in (\S+)\.", out)
        assert tables == str(to)
        assert (to / "findings.json").is_file()
        assert page == (f"{server.url}/#/insights/report" if kind == "server" else str(to / "report.html"))
        assert (to / "report.html").exists() is (kind == "store")


@pytest.fixture
def both(server, tmp_path, monkeypatch):
    """both(*words) -> the answers of a verb of `nnclr store` in a folder and on the server, with equal items."""
    monkeypatch.setenv("NNCLR_API_KEY", KEY)
    with open_store(tmp_path / "store") as store, Client(server.url, KEY) as client:
        for there in (store, client.store):
            if "b" in there.names():
                there.drop("b")
        for bench in (store, client.store):
            bench.create("b", CollectionSpec(4)).upsert(items())
    places = ("--store", tmp_path / "store"), ("--server", server.url)
    return lambda *words: [nnclr("store", *words, *place) for place in places]


def test_a_damage_is_reported_at_each_address(both, monkeypatch):
    report = VerifyReport(9, ("i1",), (), ("i2",), 0.5, ("metadata",))
    monkeypatch.setattr(EmbeddedCollection, "verify", lambda *_: report)
    for code, out, _ in both("verify", "b", "--json"):
        [found] = json.loads(out)
        assert (code, found["ok"], found["damaged"], found["missing"]) == (1, False, ["i1"], ["i2"])


def test_a_wrong_key_and_two_places_are_refused(server, monkeypatch):
    call = ("store", "list", "--server", server.url)
    error_line(nnclr(*call, "--store", "other"), 2)
    monkeypatch.delenv("NNCLR_API_KEY", raising=False)
    assert "NNCLR_API_KEY" in error_line(nnclr(*call), 1)
    monkeypatch.setenv("NNCLR_API_KEY", "wrong-" + KEY)
    assert "NNCLR_API_KEY" in error_line(nnclr(*call), 1)
    monkeypatch.setenv("MY_KEY", KEY)
    assert nnclr(*call, "--api-key-env", "MY_KEY")[0] == 0


def test_an_interrupted_command_names_the_job_that_continues(both, server, monkeypatch, caplog):
    send = Connection.send

    def interrupted(self, call):
        if (call.method, "/jobs/" in call.path) == ("GET", True):
            raise KeyboardInterrupt
        return send(self, call)

    with monkeypatch.context() as patch:
        patch.setattr(Connection, "send", interrupted)
        for words in (("duplicates", "b"), ("verify", "b"), ("compact", "b")):
            caplog.clear()
            _, (code, _, _) = both(*words)
            with Client(server.url, KEY) as client:
                job = client.jobs.list(1)[0]
            assert (code, job.kind, job.id in caplog.text) == (130, words[0], True)
    with Client(server.url, KEY) as client:
        assert client.jobs.wait(job.id).state == "done"


def test_many_left_out_items_are_counted(files, server, both, monkeypatch, tmp_path):
    """At most MAX_NAMED are named, and a server names as many as a store."""
    folder = shutil.copytree(files["photos"], tmp_path / "photos")
    monkeypatch.chdir(files["photos"].parent)
    assert nnclr("index", folder, "--collection", "d", "--store", tmp_path / "store", "--model", files["model"])[0] == 0
    for number in range(3):
        (folder / f"{number}.jpg").unlink()
    monkeypatch.setattr(reembedding, "MAX_NAMED", 1)
    monkeypatch.setattr("nnclr_hub.cli.verbs.SHOWN", 1)
    code, out, err = nnclr(
        "store", "reembed", "d", "--model", "another", "--skip-missing", "--store", tmp_path / "store"
    )
    assert (code, "3 left out" in out, "file is missing" in err, "... and 2 more" in err) == (0, True, True, True)
