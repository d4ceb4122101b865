"""nnclr models, info, download, verify: what they print for people and for programs, and how they say no."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from commands import nnclr, output_of, refused
from hub_server import running_hub
from rich.table import Table
from safetensors.torch import load_file, save_file

from nnclr_hub import CollectionSpec, Item, load_encoder, open_store
from nnclr_hub.cli.verbs import out
from nnclr_hub.hub.layout import CONFIG, WEIGHTS, sha256_of
from nnclr_hub.hub.registry import ARCHITECTURES, MODELS, default_model


def test_models_lists_every_field_of_each_model():
    listed = json.loads(output_of("models", "--json"))
    assert [one["name"] for one in listed] == list(MODELS)
    for one in listed:
        info = MODELS[one["name"]]
        assert one["sha256"] == dict(info.sha256)
        assert one["available"]
        assert output_of("card", one["name"]) == (info.folder / "README.md").read_text()
        assert one["input"]["mean"] == list(info.input.mean)
        assert {"license", "data", "recipe", "metrics", "repository", "revision", "architecture"} <= set(one)
    table = output_of("models")
    assert all(name in table for name in (*MODELS, *ARCHITECTURES, "here", "knn20/mix128"))


def test_tables_in_a_pipe_have_no_spaces_at_the_ends_of_lines(tmp_path):
    with open_store(str(tmp_path)) as store:
        collection = store.create("points", CollectionSpec(2))
        collection.upsert([Item(str(i), np.eye(2)[i % 2], {"label": "ab"[i % 2] * (1 + i % 2)}) for i in range(4)])
    verbs = ["models", f"info {default_model()}", "pretrain --recipes", "eval --protocols"]
    for words in [*verbs, f"store list --store {tmp_path}", f"store facets points label --store {tmp_path}"]:
        lines = output_of(*words.split()).splitlines()
        assert len(lines) > 1, words
        assert [line for line in lines if line.endswith(" ")] == []


def test_a_row_of_a_table_in_a_pipe_is_one_line_whatever_its_text(capsys):
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_row("label", "count")
    table.add_row("a\u2028b", "1")
    out.print(table, "in all", end="")
    assert capsys.readouterr().out == "label  count\na\u2028b     1\nin all"


def test_info_reports_what_a_load_was_verified_against(model):
    name = default_model()
    facts = json.loads(output_of("info", name, "--json"))
    assert facts["verified_against"] == "registry"
    assert facts["fingerprint"] == load_encoder(name, device="cpu").fingerprint
    assert facts["parameters"] == MODELS[name].parameters
    assert facts["sha256"] == dict(MODELS[name].sha256)
    assert all(digest[:30] in output_of("info", name) for digest in MODELS[name].sha256.values())
    assert "{'" not in output_of("info", name)
    assert "{}" not in output_of("info", model)
    facts = json.loads(output_of("info", model, "--json"))
    assert (facts["verified_against"], facts["folder"]) == ("config.json", str(model))
    assert facts["parameters"] == sum(one.numel() for one in load_encoder(model, device="cpu").backbone.parameters())
    assert json.loads(output_of("info", "random:test_resnet", "--json"))["verified_against"] == "nobody"


def test_download_prints_the_folder_and_copies_it(tmp_path):
    name = default_model()
    assert output_of("download", name).strip() == f"{name} is in {MODELS[name].folder}"
    assert output_of("download", name, "--to", tmp_path / "a" / "b").strip() == f"{name} is in {tmp_path / 'a' / 'b'}"
    assert json.loads(output_of("download", name, "--json")) == {"source": name, "folder": str(MODELS[name].folder)}
    assert "nothing to download" in output_of("download", "random:test_resnet")
    assert load_encoder(tmp_path / "a" / "b", device="cpu").embed_dim == MODELS[name].embed_dim
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("")
    assert "thesis.txt" in refused("download", name, "--to", tmp_path / "mine", code=2)


def test_download_takes_an_address(model, tmp_path, monkeypatch):
    monkeypatch.setenv("NNCLR_CACHE", str(tmp_path / "cache"))
    root = tmp_path / "root"
    root.mkdir()
    file = f"model-{sha256_of(model / WEIGHTS)}.safetensors"
    shutil.copy(model / CONFIG, root)
    shutil.copy(model / WEIGHTS, root / file)
    with running_hub({}, root=root) as server:
        output_of("download", f"{server.url}/{file}", "--to", tmp_path / "kept")
        assert "address" in output_of("verify", f"{server.url}/{file}")
    assert sha256_of(tmp_path / "kept" / WEIGHTS) == sha256_of(model / WEIGHTS)


def test_verify_lists_every_file_with_the_source_of_its_hash(model):
    name = default_model()
    checked = json.loads(output_of("verify", name, "--json"))["files"]
    assert {one["name"]: one["sha256"] for one in checked} == dict(MODELS[name].sha256)
    assert {one["pinned_by"] for one in checked} == {"registry"}
    _, out, err = nnclr("verify", model)
    assert f"{sha256_of(model / WEIGHTS)}  {WEIGHTS}  (as recorded by config.json)\n" in out
    assert f"{sha256_of(model / CONFIG)}  {CONFIG}  (not recorded)\n" in out
    assert "tampering" in err


@pytest.fixture
def copy(model, tmp_path) -> Path:
    return shutil.copytree(model, tmp_path / "copy")


def test_verify_reports_missing_files(tmp_path):
    folder = tmp_path / "starter"
    shutil.copytree(str(MODELS[default_model()].folder), folder)
    (folder / "nnclr_heads.safetensors").unlink()
    code, _, err = nnclr("verify", folder)
    assert code == 0
    assert "nnclr_heads.safetensors" in err
    assert json.loads(output_of("verify", folder, "--json"))["missing"] == ["nnclr_heads.safetensors"]


def test_verify_reads_the_weights_if_no_hash_is_recorded(copy):
    config = json.loads((copy / CONFIG).read_text())
    del config["nnclr"]
    (copy / CONFIG).write_text(json.dumps(config))
    state = load_file(copy / WEIGHTS)
    save_file({**state, "extra": state["conv1.weight"].clone()}, copy / WEIGHTS)
    assert "extra" in refused("verify", copy, code=1)
    state["conv1.weight"][0] = float("inf")
    save_file(state, copy / WEIGHTS)
    assert "conv1.weight" in refused("verify", copy, code=1)


def test_a_model_without_files_cannot_be_verified_or_copied(tmp_path):
    assert "random:resnet18" in refused("verify", "random:resnet18", code=2)
    assert "resnet18" in refused("download", "random:resnet18", "--to", tmp_path / "x", code=2)
    assert "did you mean" in refused("verify", "nnclr_resnet18_small_cpu_startr", code=2)


def test_verify_refuses_changed_weights(copy):
    output_of("verify", copy)
    data = (copy / WEIGHTS).read_bytes()
    for changed in (data[:-1] + bytes([data[-1] ^ 1]), data[: len(data) // 2]):
        (copy / WEIGHTS).write_bytes(changed)
        assert "is not the file that its config.json records" in refused("verify", copy, code=1)
