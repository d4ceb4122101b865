"""The clients of other projects as they come, each with one image and with a hundred. See test_embed.py for openai.

A client that is not installed is skipped. Their dependencies are large, so they have a separate environment. `.ci/run`
installs it and runs all of them:

    make clients
    NNCLR_CLIENTS=.venv/clients pytest tests/serving/test_client_programs.py
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from client_programs import JAVA, JAVASCRIPT, LANGCHAIN_DEFAULTS, PYTHON
from rest_requests import as_text

FOLDER = os.environ.get("NNCLR_CLIENTS")
INTERPRETER = f"{FOLDER}/bin/python" if FOLDER else sys.executable
MODULES = Path(FOLDER or ".", "node_modules")


@pytest.fixture
def texts(image_files, tmp_path) -> Path:
    """Write the images as data URLs, 100 in all."""
    path = tmp_path / "texts.json"
    path.write_text(json.dumps([f"data:image/jpeg;base64,{as_text(file)}" for file in (image_files * 2)[:100]]))
    return path


def output_of(*command: str, **variables: str) -> str:
    """Run a program of a user, and return what it prints."""
    environment = {**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True", "HAYSTACK_TELEMETRY_ENABLED": "False"}
    done = subprocess.run(
        command, env={**environment, **variables}, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def check(rows, encoder, image_files) -> None:
    expected = encoder.embed(image_files)
    order = [0, *(i % len(image_files) for i in range(100))]
    np.testing.assert_allclose(np.array(rows, np.float32), expected[order], atol=1e-5)


def lines_of(name: str, program: str, url: str, texts: Path) -> list[str]:
    """Return what a program with a Python package prints; skip without the package."""
    find = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({name!r}) is None)"
    if subprocess.run([INTERPRETER, "-c", find], capture_output=True, check=False).returncode:
        pytest.skip(f"{name} is not installed")
    return output_of(INTERPRETER, "-c", program, url, str(texts)).splitlines()


@pytest.mark.parametrize("name", PYTHON)
def test_a_client_of_python(server, image_files, encoder, texts, name):
    check(json.loads(lines_of(name, PYTHON[name], server.url, texts)[-1]), encoder, image_files)


def test_the_refusal_of_langchain_defaults_names_the_option(server, texts):
    """It sends arrays of token numbers, which mean nothing to an image encoder."""
    refusals = [json.loads(line) for line in lines_of("langchain_openai", LANGCHAIN_DEFAULTS, server.url, texts)]
    assert [refusal[:2] for refusal in refusals] == [["invalid_request", "input[0]"]] * 2
    assert all("check_embedding_ctx_length=False" in message for *_, message in refusals)


def test_the_client_of_openai_for_javascript(server, image_files, encoder, texts):
    node = shutil.which("node")
    if node is None or not (MODULES / "openai").is_dir():
        pytest.skip("node or its package openai is not installed")
    output = output_of(node, "-e", JAVASCRIPT, "-", server.url, str(texts), NODE_PATH=str(MODULES.resolve()))
    check(json.loads(output), encoder, image_files)


def test_the_http_client_of_java(server, image_files, encoder, texts, tmp_path):
    """It offers h2c with every request on plain HTTP."""
    java = shutil.which("java")
    if java is None:
        pytest.skip("java is not installed")
    program = tmp_path / "Embed.java"
    program.write_text(JAVA)
    one, all_ = json.loads(output_of(java, str(program), server.url, str(texts)))
    check([row["embedding"] for row in one["data"] + all_["data"]], encoder, image_files)


def test_curl(server, client, collection, image_files, encoder, tmp_path):
    curl = shutil.which("curl")
    if curl is None:
        pytest.skip("curl is not installed")
    shutil.copy(image_files[0], tmp_path / "фото 1.jpg")
    uploaded = ["-F", f"files=@{tmp_path / 'фото 1.jpg'}"]
    answer = json.loads(output_of(curl, "-sS", *uploaded, f"{server.url}/api/v1/embed"))
    np.testing.assert_allclose(answer["data"][0]["embedding"], encoder.embed(image_files[:1])[0], atol=1e-5)
    many = [part for file in (image_files * 2)[:100] for part in ("-F", f"files=@{file}")]
    answer = json.loads(output_of(curl, "-sS", *many, f"{server.url}/api/v1/embed"))
    check([answer["data"][0]["embedding"], *(row["embedding"] for row in answer["data"])], encoder, image_files)
    output_of(curl, "-sS", "--fail", *uploaded, f"{server.url}{collection}/items")
    (item,) = client.get(f"{collection}/items").json()["items"]
    assert item["metadata"]["name"] == "фото 1.jpg"
