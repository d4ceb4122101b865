"""Damaged or too deeply nested JSON in files and answers is one error of the library, without words of Python."""

import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from client.scripted_server import Response, scripted
from commands import nnclr
from safetensors.numpy import save_file

from nnclr_hub import Client, LinearProbe, load_encoder, open_store
from nnclr_hub.bulk import open_shards
from nnclr_hub.errors import NNCLRHubError
from nnclr_hub.json_text import parse_json
from nnclr_hub.store.exchange import import_collection
from training.report import write_report

DEEP = b"[" * 10**5 + b"]" * 10**5
DAMAGED = {
    "empty": b"",
    "cut": b'{"format": "x", ',
    "a list": b"[]",
    "a number": b"3",
    "null": b"null",
    "no field": b"{}",
    "other types": b'{"format": [], "version": [], "classes": [], "architecture": [], "spec": []}',
    "latin-1": b'{"format": "caf\xe9"}',
    "deep": DEEP,
    "deep inside": b'{"format": ' + DEEP + b"}",
}
PYTHON = re.compile(r"object|attribute|argument|recursion|codec|Expecting|[a-z]Error|NoneType|subscript|iterable")


def read_probe(folder: Path) -> None:
    shutil.copy(folder / "json", folder / "probe.json")
    save_file({"weight": np.eye(2), "bias": np.zeros(2)}, folder / "probe.safetensors")
    LinearProbe.load(folder)


def read_plan(folder: Path) -> None:
    shutil.copy(folder / "json", folder / "plan.json")
    open_shards(folder)


def read_export(folder: Path) -> None:
    shutil.copy(folder / "json", folder / "collection.json")
    with open_store(folder / "store") as store:
        import_collection(store, "c", folder)


def read_model(folder: Path) -> None:
    shutil.copy(folder / "json", folder / "config.json")
    load_encoder(folder)


def read_run(folder: Path) -> None:
    shutil.copy(folder / "json", folder / "run.json")
    write_report([folder], folder / "report.html")


def read_log(folder: Path) -> None:
    (folder / "run.json").write_text("{}")
    (folder / "log.jsonl").write_bytes((folder / "json").read_bytes() + b"\n")
    write_report([folder], folder / "report.html")


# a report leaves out what it does not find
READABLE = {read_run: ("a list", "no field", "other types")}
READABLE |= {read_log: (*READABLE[read_run], "latin-1")}


@pytest.mark.parametrize("damage", DAMAGED)
@pytest.mark.parametrize("read", [read_probe, read_plan, read_export, read_model, read_run, read_log])
def test_a_damaged_file_is_reported(read, damage, tmp_path):
    (tmp_path / "json").write_bytes(DAMAGED[damage])
    if damage in READABLE.get(read, ()):
        read(tmp_path)
        return
    with pytest.raises(NNCLRHubError) as refused:
        read(tmp_path)
    assert str(tmp_path) in str(refused.value)
    assert not PYTHON.search(str(refused.value)), refused.value


def test_deep_lines_of_an_import_are_refused_alone(tmp_path):
    (tmp_path / "items.ndjson").write_bytes(
        b'{"id": "a", "vector": [1, 0]}\n' + DEEP + b'\n{"id": "b", "vector": [0, 1], "metadata": ' + DEEP + b"}\n"
    )
    there = ("--store", tmp_path / "s")
    assert nnclr("store", "create", "c", "--dim", "2", *there)[0] == 0
    code, out, err = nnclr("store", "import", tmp_path / "items.ndjson", "--collection", "c", "--json", *there)
    assert code in (0, 1), err
    assert not PYTHON.search(out + err)
    with open_store(tmp_path / "s", read_only=True) as store:
        assert [item.id for item in store.get("c").scroll().items] == ["a"]


def test_a_deep_answer_is_no_answer_of_a_server():
    with scripted() as server, Client(server.url) as client:
        server.script = [Response(text=DEEP.decode())]
        with pytest.raises(NNCLRHubError):
            client.list_models()


def test_a_number_of_too_many_digits_is_refused_without_words_of_python():
    with pytest.raises(ValueError, match="digits") as refused:
        parse_json("9" * 5000)
    assert "set_int_max_str_digits" not in str(refused.value)
