"""nnclr models, info, download, verify: what they print for people and for programs, and how they say no."""

import json
import os
import shutil
from pathlib import Path

import pytest
from hub.stand_in import stand_in
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from nnclr_hub import load_encoder
from nnclr_hub.cli.app import app
from nnclr_hub.hub.layout import CONFIG, WEIGHTS, sha256_of
from nnclr_hub.hub.registry import ARCHITECTURES, MODELS, default_model


def nnclr(*arguments: object, code: int = 0) -> str:
    """What it prints; the error's one sentence where it must fail."""
    result = CliRunner().invoke(app, [str(one) for one in arguments])
    assert result.exit_code == code, result.stderr
    if code == 0:
        return result.stdout
    lines = [line for line in result.stderr.splitlines() if line.startswith("Error: ")]
    assert len(lines) == 1
    assert "Traceback" not in result.stderr
    return lines[0]


def test_models_lists_every_field_of_each_model():
    listed = json.loads(nnclr("models", "--json"))
    assert [one["name"] for one in listed] == list(MODELS)
    for one in listed:
        info = MODELS[one["name"]]
        assert one["sha256"] == dict(info.sha256)
        assert one["input"]["mean"] == list(info.input.mean)
        assert {"license", "data", "recipe", "metrics", "repository", "revision", "architecture"} <= set(one)
    table = nnclr("models")
    assert all(name in table for name in (*MODELS, *ARCHITECTURES, "here", "knn20/mix128"))


def test_info_reports_what_a_load_was_verified_against(model):
    name = default_model()
    facts = json.loads(nnclr("info", name, "--json"))
    assert facts["verified_against"] == "registry"
    assert facts["fingerprint"] == load_encoder(name, device="cpu").fingerprint
    assert facts["parameters"] == MODELS[name].parameters
    assert facts["sha256"] == dict(MODELS[name].sha256)
    assert all(digest[:30] in nnclr("info", name) for digest in MODELS[name].sha256.values())
    assert "{}" not in nnclr("info", model)
    facts = json.loads(nnclr("info", model, "--json"))
    assert (facts["verified_against"], facts["folder"]) == ("config.json", str(model))
    assert json.loads(nnclr("info", "random:test_resnet", "--json"))["verified_against"] == "nobody"


def test_download_prints_the_folder_and_copies_it(tmp_path):
    name = default_model()
    assert nnclr("download", name).strip() == f"{name} is in {MODELS[name].folder}"
    assert nnclr("download", name, "--to", tmp_path / "a" / "b").strip() == f"{name} is in {tmp_path / 'a' / 'b'}"
    assert json.loads(nnclr("download", name, "--json")) == {"source": name, "folder": str(MODELS[name].folder)}
    assert "nothing to download" in nnclr("download", "random:test_resnet")
    assert load_encoder(tmp_path / "a" / "b", device="cpu").embed_dim == MODELS[name].embed_dim
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("")
    assert "thesis.txt" in nnclr("download", name, "--to", tmp_path / "mine", code=2)


def test_download_takes_an_address(model, tmp_path, monkeypatch):
    monkeypatch.setenv("NNCLR_CACHE", str(tmp_path / "cache"))
    root = tmp_path / "root"
    root.mkdir()
    file = f"model-{sha256_of(model / WEIGHTS)}.safetensors"
    shutil.copy(model / CONFIG, root)
    shutil.copy(model / WEIGHTS, root / file)
    with stand_in({}, root=root) as server:
        nnclr("download", f"{server.url}/{file}", "--to", tmp_path / "kept")
        assert "address" in nnclr("verify", f"{server.url}/{file}")
    assert sha256_of(tmp_path / "kept" / WEIGHTS) == sha256_of(model / WEIGHTS)


def test_verify_lists_every_file_with_the_source_of_its_hash(model):
    name = default_model()
    checked = json.loads(nnclr("verify", name, "--json"))["files"]
    assert {one["name"]: one["sha256"] for one in checked} == dict(MODELS[name].sha256)
    assert {one["pinned_by"] for one in checked} == {"registry"}
    result = CliRunner().invoke(app, ["verify", str(model)])
    assert result.exit_code == 0
    assert f"{sha256_of(model / WEIGHTS)}  {WEIGHTS}  (as recorded by config.json)\n" in result.stdout
    assert f"{sha256_of(model / CONFIG)}  {CONFIG}  (not recorded)\n" in result.stdout
    assert "tampering" in result.stderr


@pytest.fixture
def copy(model, tmp_path) -> Path:
    return shutil.copytree(model, tmp_path / "copy")


def test_verify_ignores_cached_hashes(copy, tmp_path, monkeypatch):
    monkeypatch.setenv("NNCLR_CACHE", str(tmp_path / "cache"))
    os.utime(copy / WEIGHTS, (1, 1))
    nnclr("verify", copy)
    nnclr("info", copy)
    data = (copy / WEIGHTS).read_bytes()
    (copy / WEIGHTS).write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    assert "is not the file that its config.json records" in nnclr("verify", copy, code=1)
    (copy / WEIGHTS).write_bytes(data[: len(data) // 2])
    assert "is not the file that its config.json records" in nnclr("verify", copy, code=1)


def test_verify_reports_missing_files(tmp_path):
    folder = tmp_path / "starter"
    shutil.copytree(str(MODELS[default_model()].folder), folder)
    (folder / "nnclr_heads.safetensors").unlink()
    result = CliRunner().invoke(app, ["verify", str(folder)])
    assert result.exit_code == 0
    assert "nnclr_heads.safetensors" in result.stderr
    assert json.loads(nnclr("verify", folder, "--json"))["missing"] == ["nnclr_heads.safetensors"]


def test_verify_reads_the_weights_if_no_hash_is_recorded(copy):
    config = json.loads((copy / CONFIG).read_text())
    del config["nnclr"]
    (copy / CONFIG).write_text(json.dumps(config))
    state = load_file(copy / WEIGHTS)
    save_file({**state, "extra": state["conv1.weight"].clone()}, copy / WEIGHTS)
    assert "extra" in nnclr("verify", copy, code=1)
    state["conv1.weight"][0] = float("inf")
    save_file(state, copy / WEIGHTS)
    assert "conv1.weight" in nnclr("verify", copy, code=1)


def test_a_model_without_files_cannot_be_verified_or_copied(tmp_path):
    assert "random:resnet18" in nnclr("verify", "random:resnet18", code=2)
    assert "resnet18" in nnclr("download", "random:resnet18", "--to", tmp_path / "x", code=2)
    assert "did you mean" in nnclr("verify", "nnclr_resnet18_small_cpu_startr", code=2)
