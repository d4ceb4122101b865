"""Verbs without a network, a token, a home, disk space or a package: they work, or say in one sentence why not."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from commands import ROOT, in_another_process, nnclr, output_of

STARTER = "nnclr_resnet18_free_starter"
NOWHERE = "http://127.0.0.1:9"
WORKS, FAILS = "", "Error: "
# files of a process may have at most some bytes, which the system reports like a full disk
LIMITED = """
import resource
sys.dont_write_bytecode = {size} > 0  # Python would leave half a file
resource.setrlimit(resource.RLIMIT_FSIZE, ({size}, {size}))
"""
HIDING = "from missing_packages import hide\nhide({})"
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


def check(calls: list[tuple[str, list[object]]], prelude: str, **environment: str) -> list[tuple[int, str, str]]:
    """Assert that each call succeeds, or fails with one error line that has this part; return the answers."""
    answers = in_another_process([[str(word) for word in words] for _, words in calls], prelude, **environment)
    for (part, words), (code, _, err) in zip(calls, answers, strict=True):
        errors = [line for line in err.splitlines() if line.startswith("Error: ")]
        assert (code, len(errors)) == ((1, 1) if part else (0, 0)), (words, err)
        assert part in err, (words, err)
    return answers


@pytest.fixture(scope="module")
def indexed(image_files, tmp_path_factory) -> list[object]:
    """Options of a collection."""
    place = ["--collection", "photos", "--store", tmp_path_factory.mktemp("hard") / "store"]
    output_of("index", image_files[0].parent, *place, "--model", STARTER)
    return place


def test_without_a_network_a_token_and_a_home(indexed, image_files, tmp_path, monkeypatch):
    monkeypatch.delenv("NNCLR_CACHE")
    photos, query = image_files[0].parent, image_files[0]
    check(
        [
            ("NNCLR_CACHE", ["demo", "--no-gradio", "--port", 0]),
            ("NNCLR_CACHE", ["demo", "--no-gradio", "--port", 0, "--images", photos]),
            (WORKS, ["models"]),
            (WORKS, ["inspect", photos, "--out", tmp_path / "report", "--model", STARTER]),
            (WORKS, ["info", STARTER]),
            (WORKS, ["search", query, *indexed]),
            (WORKS, ["embed", query, "--out", tmp_path / "v.csv", "--model", STARTER]),
            (WORKS, ["store", "export", "photos", tmp_path / "export", *indexed[2:]]),
            (FAILS, ["download", "hf-hub:nobody/nothing"]),
            (FAILS, ["embed", "s3://bucket/photos", "--out", tmp_path / "s3"]),
            (FAILS, ["index", photos, "--collection", "c", "--server", NOWHERE]),
            (FAILS, ["publish", ROOT / "weights" / STARTER, "nobody/nothing"]),
        ],
        LIMITED.format(size=-1),
        HOME="/dev/null/home",
        HF_ENDPOINT=NOWHERE,
        NNCLR_BACKEND="onnx",  # the starter has its graph, so most verbs need no torch
    )


def test_on_a_full_disk(indexed, image_files, tmp_path):
    photos = image_files[0].parent
    out = [tmp_path / name for name in ("v.npy", "v.parquet", "v", "export", "new")]
    check(
        [
            *((FAILS, ["embed", photos, "--model", STARTER, "--out", file]) for file in out[:3]),
            (FAILS, ["store", "export", "photos", out[3], *indexed[2:]]),
            (FAILS, ["index", photos, "--collection", "new", "--store", out[4], "--model", STARTER]),
            (FAILS, ["download", STARTER, "--to", tmp_path / "copy"]),
            (FAILS, ["inspect", photos, "--out", tmp_path / "report", "--model", STARTER]),
            (FAILS, ["space", tmp_path / "space", *indexed]),
            (WORKS, ["search", image_files[0], *indexed]),
        ],
        LIMITED.format(size=3000),
        NNCLR_BACKEND="onnx",
        NNCLR_CACHE=str(tmp_path / "cache"),
    )
    assert not [path.name for path in tmp_path.iterdir() if path.suffix in (".npy", ".parquet")]
    assert not (tmp_path / "export").exists()


def test_without_torch_images_are_embedded_indexed_and_searched(image_files, tmp_path):
    """Whatever needs torch names the extra."""
    photos, query = image_files[0].parent, image_files[0]
    place = ["--collection", "photos", "--store", tmp_path / "store"]
    *_, found, listed = check(
        [
            (WORKS, ["models"]),
            (WORKS, ["info", STARTER]),
            (WORKS, ["pretrain", "--recipes"]),
            (WORKS, ["verify", STARTER]),
            (WORKS, ["embed", photos, "--out", tmp_path / "vectors.npy", "--model", STARTER]),
            (WORKS, ["inspect", photos, "--out", tmp_path / "report", "--model", STARTER]),
            ("nnclr_hub[torch]", ["attention", query, "--out", tmp_path / "map.png"]),
            ("nnclr_hub[torch]", ["onnx", STARTER, tmp_path / "model.onnx"]),
            ("nnclr_hub[torch]", ["info", "timm:resnet18"]),
            ("nnclr_hub[train]", ["pretrain", "auto", "--data", photos, "--out", tmp_path / "run"]),
            ("nnclr_hub[train]", ["eval", "knn", STARTER, "--data", photos]),
            ("nnclr_hub[train]", ["export", ROOT / "weights" / STARTER, tmp_path / "copy"]),
            (WORKS, ["index", photos, *place, "--model", STARTER]),
            (WORKS, ["search", query, *place, "-k", 3, "--json"]),
            (WORKS, ["store", "list", *place[2:], "--json"]),
        ],
        HIDING.format("'torch', 'torchvision', 'timm', 'matplotlib'"),
    )
    assert (tmp_path / "report" / "findings.json").is_file()  # labels are not checked, all else is
    best = json.loads(found[1])["matches"][0]
    assert Path(best["metadata"]["path"]).name == image_files[0].name
    assert best["score"] == pytest.approx(1, abs=1e-4)
    assert json.loads(listed[1])


@pytest.mark.parametrize(
    ("packages", "calls"),
    [
        ("'fastapi', 'pydantic_settings'", {"serve --port 0": "serve", "demo --port 0": "serve"}),
        (
            "'gradio', 'skimage', 'onnxscript'",
            {
                "demo --port 0": "demo",
                "demo --port 0 --no-gradio": "demo",
                "space OUT/space --collection photos": "demo",
                f"onnx {STARTER} OUT/model.onnx": "torch",
            },
        ),
    ],
)
def test_a_missing_package_is_named_before_any_work(packages, calls, tmp_path):
    words = [(f"nnclr_hub[{extra}]", call.replace("OUT", str(tmp_path)).split()) for call, extra in calls.items()]
    check(words, HIDING.format(packages), NNCLR_CACHE=str(tmp_path / "cache"))
    assert not list(tmp_path.glob("cache/demo"))


def test_packages_that_do_not_fit_together_are_one_sentence(monkeypatch, image_files, tmp_path):
    """torchvision of another build fails like this on import."""

    def fail(*given, **named):
        raise RuntimeError("operator torchvision::nms does not exist")

    monkeypatch.setattr("nnclr_hub.encoder.loader.load_encoder", fail)
    code, _, err = nnclr("embed", image_files[0].parent, "--out", tmp_path / "vectors.npy", "--model", STARTER)
    assert (code, len(err.strip().splitlines())) == (1, 1)


def test_a_server_without_torch_answers(image_files, tmp_path, monkeypatch):
    """It embeds and searches; for an attention map it names the extra."""
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}:{ROOT / 'tests'}")
    monkeypatch.setenv("NNCLR_MODEL", STARTER)
    words = [sys.executable, "-c", SERVER, str(tmp_path / "store"), *map(str, image_files[:3])]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert [code for code, _ in found[:3]] == [200, 200, 200], found
    assert found[2][1]["matches"][0]["score"] == pytest.approx(1, abs=1e-4)
    assert (found[3][0], found[3][1]["code"]) == (501, "missing_dependency")
