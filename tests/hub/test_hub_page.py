"""docs/hub.md and docs/publish.md: every snippet runs, with a stand-in as the Hub, and every source is named."""

import re
import shutil
import subprocess
import sys

import numpy as np
import pytest
from hub.conftest import FETCHED, ROOT
from hub_server import running_hub

from nnclr_hub import load_encoder
from nnclr_hub.hub.layout import CARD, CONFIG, OPTIONAL, WEIGHTS

PAGE = "".join((ROOT / "docs" / name).read_text("utf-8") for name in ("hub.md", "publish.md"))
VERBS = """
import shlex, sys
from nnclr_hub.cli.app import app
from nnclr_hub.publish import export
export.GRAPH_NEEDS = ("no_such_package",)  # the export of network.onnx takes seconds
for line in sys.stdin.read().splitlines():
    program, *arguments = shlex.split(line)
    assert program == "nnclr"
    try: app(arguments)
    except SystemExit as end: assert not end.code, (line, end.code)
"""


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


@pytest.fixture(scope="module")
def run(model, make_model, image_files, torch_home, tmp_path_factory):
    """run(code, stdin) in a folder as the page describes it."""
    work = tmp_path_factory.mktemp("page")
    for name, image in zip(("a.jpg", "b.jpg"), image_files, strict=False):
        shutil.copy(image, work / name)
    (work / "weights").symlink_to(ROOT / "weights")
    vit = {"embed_dim": 48, "depth": 4, "num_heads": 3, "img_size": 64}
    shutil.copytree(make_model("vit_small_patch16_224", vit, 64), work / "my-vit")
    with running_hub({"ORG/my-encoder": model}) as hub:
        environment = hub.environment(work / "cache", TORCH_HOME=str(torch_home), PYTHONPATH=str(ROOT))

        def process(code: str, stdin: str) -> str:
            done = subprocess.run(
                [sys.executable, "-W", "ignore", "-c", code],
                input=stdin,
                cwd=work,
                env=environment,
                capture_output=True,
                text=True,
                timeout=300,
            )
            assert done.returncode == 0, done.stderr
            return done.stdout

        process.work = work  # type: ignore[attr-defined]
        yield process


SAVED = "\nimport numpy as np; np.savez({0!r}, features={1})\n"


# runs the snippet that loads the fetched checkout, and not this one; a fork, because imports take longest
FORK = """
import os, sys, timm, torch, torchvision
if os.fork() == 0:
    sys.path.remove({root!r})
    exec({fetched!r})
    sys.exit()
assert os.wait()[1] == 0
CHECKOUT = {root!r}
"""


@pytest.fixture(scope="module")
def output(run) -> str:
    """Run the snippets and then the commands in one process; return its output."""
    here = [block for block in blocks("python") if FETCHED not in block]
    (fetched,) = (block for block in blocks("python") if FETCHED in block)
    fork = FORK.format(root=str(ROOT), fetched=fetched + SAVED.format("fetched.npz", "features.detach()"))
    ours = here[0] + SAVED.format("ours.npz", "vectors")
    rest = "\n".join(here[1:]) + "\nassert len(maps(torch.zeros(1, 3, 48, 48))) == 5\n"
    return run(fork + ours + rest + VERBS, "".join(blocks("console")))


def test_every_python_snippet_runs(run, output):
    theirs = np.load(run.work / "fetched.npz")["features"][0]
    assert np.load(run.work / "ours.npz")["features"][0] @ theirs / np.linalg.norm(theirs) > 0.9995


def test_the_lines_for_onnx_runtime_give_the_encoders_vectors_without_torch(run):
    pytest.importorskip("onnxruntime")
    (code,) = (block for block in blocks("python") if "import onnxruntime" in block)
    alone = "\nimport sys; assert not {'torch', 'nnclr_hub'} & {*sys.modules}\n"
    run(code + alone + SAVED.format("onnx.npz", "vectors"), "")
    wanted = load_encoder(run.work / "weights" / "nnclr_resnet18_starter", device="cpu", backend="torch")
    vectors = wanted.embed([run.work / "a.jpg", run.work / "b.jpg"])
    cosines = (np.load(run.work / "onnx.npz")["features"] * vectors).sum(axis=1)
    assert cosines.min() >= 0.9999


def test_every_command_runs(output):
    assert "is in models/my-encoder" in output
    assert output.count("All weights of the architecture") == "".join(blocks("console")).count("nnclr verify")


def test_every_kind_of_source_is_on_the_page():
    for kind in ("local-dir:", "file://", "hf-hub:", "https://", "timm:", "random:", "model.safetensors", "@REVISION"):
        assert f"| `{kind}" in PAGE or kind in PAGE.split("## Sources")[1].split("##")[0], kind


def test_every_file_of_a_model_folder_is_on_the_page():
    table = PAGE.split("## Load an encoder")[0]
    assert {name for name in (CONFIG, WEIGHTS, CARD, *OPTIONAL) if f"| `{name}` |" not in table} == set()


def test_every_variable_that_an_error_names_is_on_the_page():
    named = set()
    for path in (ROOT / "nnclr_hub" / "hub").glob("*.py"):
        named |= set(re.findall(r"\b(?:HF|NNCLR|HTTPS)_[A-Z_]+\b", path.read_text()))
    assert named
    assert {name for name in named if f"`{name}" not in PAGE} == set()
