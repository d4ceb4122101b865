"""Every verb in an installation without an extra: it works, or says in one sentence what to install."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from nnclr_hub.cli.app import app

ROOT = Path(__file__).parents[2]
STARTER = "nnclr_resnet18_free_starter"
# runs each command in one process in which some packages cannot be imported; prints exit codes, output and messages
CHILD = """
import json, sys
from missing_packages import hide
hide(*json.loads(sys.argv[1]))
from commands import nnclr
print(json.dumps([nnclr(*command) for command in json.loads(sys.argv[2])]))
"""
# a server without torch: one embedding, three items, one search by image, one attention map
SERVER = """
import json, sys, time
from missing_packages import hide
hide("torch", "torchvision", "timm", "matplotlib")
from starlette.testclient import TestClient
from serving.api import opened_app
from serving.settings import Settings
images = [open(path, "rb").read() for path in sys.argv[2:]]
with opened_app(Settings(), sys.argv[1], None) as app, TestClient(app, base_url="http://127.0.0.1") as client:
    while client.get("/readyz").status_code != 200:
        time.sleep(0.05)
    files = [("files", (f"{i}.jpg", image)) for i, image in enumerate(images)]
    answers = [client.post("/api/v1/embed", files=files)]
    client.put("/api/v1/collections/photos", json={})
    answers += [client.post("/api/v1/collections/photos/items", files=files)]
    answers += [client.post("/api/v1/collections/photos/search", files=[("image", files[0][1])])]
    answers += [client.post("/api/v1/attention", files=[("image", files[0][1])])]
print(json.dumps([[answer.status_code, answer.json()] for answer in answers]))
"""
PATHS = {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")])}
TORCH = ["torch", "torchvision", "timm", "matplotlib"]
WORKS = None


def run_without(packages: list[str], commands: list[list[str]], tmp_path: Path) -> list[tuple]:
    """Return exit code, output and messages of each command."""
    done = subprocess.run(
        [sys.executable, "-c", CHILD, json.dumps(packages), json.dumps(commands)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=os.environ | PATHS | {"NNCLR_CACHE": str(tmp_path / "cache"), "COLUMNS": "200"},
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return [tuple(one) for one in json.loads(done.stdout.splitlines()[-1])]


def check(commands: list[tuple[str | None, list[str]]], packages: list[str], tmp_path: Path) -> list[str]:
    """Assert that each command succeeds, or is refused in one line with this extra; return what was printed."""
    results = run_without(packages, [command for _, command in commands], tmp_path)
    for (extra, command), (code, _, stderr) in zip(commands, results, strict=True):
        assert code == (0 if extra is None else 1), (command, stderr)
        if extra is not None:
            assert len(stderr.strip().splitlines()) == 1, (command, stderr)
            assert f"nnclr_hub[{extra}]" in stderr, (command, stderr)
    return [stdout for _, stdout, _ in results]


def test_without_torch_images_are_embedded_indexed_and_searched(image_files, tmp_path):
    """Whatever needs torch names the extra."""
    photos, query, store = image_files[0].parent, str(image_files[0]), str(tmp_path / "store")
    place = ["--collection", "photos", "--store", store]
    *_, found, listed = check(
        [
            (WORKS, ["models"]),
            (WORKS, ["info", STARTER]),
            (WORKS, ["pretrain", "--recipes"]),
            (WORKS, ["verify", STARTER]),
            (WORKS, ["embed", str(photos), "--out", str(tmp_path / "vectors.npy"), "--model", STARTER]),
            (WORKS, ["inspect", str(photos), "--out", str(tmp_path / "report"), "--model", STARTER]),
            ("torch", ["attention", query, "--out", str(tmp_path / "map.png")]),
            ("torch", ["onnx", STARTER, str(tmp_path / "model.onnx")]),
            ("torch", ["info", "timm:resnet18"]),
            ("train", ["pretrain", "auto", "--data", str(photos), "--out", str(tmp_path / "run")]),
            ("train", ["eval", "knn", STARTER, "--data", str(photos)]),
            ("train", ["export", str(ROOT / "weights" / STARTER), str(tmp_path / "copy")]),
            (WORKS, ["index", str(photos), *place, "--model", STARTER]),
            (WORKS, ["search", query, *place, "-k", "3", "--json"]),
            (WORKS, ["store", "list", "--store", store, "--json"]),
        ],
        TORCH,
        tmp_path,
    )
    assert (tmp_path / "report" / "findings.json").is_file()  # labels are not checked, all else is
    best = json.loads(found)["matches"][0]
    assert Path(best["metadata"]["path"]).name == image_files[0].name
    assert best["score"] == pytest.approx(1, abs=1e-4)
    assert json.loads(listed)


@pytest.mark.parametrize(
    ("packages", "commands"),
    [
        (["fastapi", "pydantic_settings"], [("serve", "serve --port 0"), ("serve", "demo --port 0")]),
        (
            ["gradio", "skimage", "onnxscript"],
            [
                ("demo", "demo --port 0"),
                ("demo", "demo --port 0 --no-gradio"),
                ("demo", "space SPACE --collection photos"),
                ("torch", f"onnx {STARTER} MODEL.onnx"),
            ],
        ),
    ],
)
def test_a_missing_package_is_named_before_any_work(packages, commands, tmp_path):
    files = {"SPACE": str(tmp_path / "space"), "MODEL.onnx": str(tmp_path / "model.onnx")}
    check([(extra, [files.get(word, word) for word in one.split()]) for extra, one in commands], packages, tmp_path)
    assert not (tmp_path / "cache" / "demo").exists()


def test_packages_that_do_not_fit_together_are_one_sentence(monkeypatch, image_files, tmp_path):
    """torchvision of another build fails like this on import."""

    def fail(*given, **named):
        raise RuntimeError("operator torchvision::nms does not exist")

    monkeypatch.setattr("nnclr_hub.cli.embedding.loaded_encoder", fail)
    result = CliRunner().invoke(app, ["embed", str(image_files[0].parent), "--out", str(tmp_path / "vectors.npy")])
    assert (result.exit_code, type(result.exception)) == (1, SystemExit)
    assert len(result.stderr.strip().splitlines()) == 1


def test_a_server_without_torch_answers(image_files, tmp_path):
    """It embeds and searches; for an attention map it names the extra."""
    done = subprocess.run(
        [sys.executable, "-c", SERVER, str(tmp_path / "store"), *map(str, image_files[:3])],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=os.environ | PATHS | {"NNCLR_CACHE": str(tmp_path / "cache"), "NNCLR_MODEL": STARTER},
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert [code for code, _ in found[:3]] == [200, 200, 200], found
    assert found[2][1]["matches"][0]["score"] == pytest.approx(1, abs=1e-4)
    assert (found[3][0], found[3][1]["code"]) == (501, "missing_dependency")
