"""The clients of other projects as they come, each with one image and with a hundred.

A client that is not installed is skipped. Their dependencies are large, so they have a separate environment. `.ci/run`
installs it and runs all of them:

    make clients
    NNCLR_CLIENTS=.venv/clients pytest tests/serving/test_client_programs.py
"""

import json
import os
import shutil
import socket
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


# ---- clients that are not installed, by the bytes that they send


def sent(server, head: str, body: bytes) -> tuple[int, dict]:
    """Send the bytes of a request with the body in a separate packet, and return status and JSON of the response."""
    with socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2])), timeout=60) as connection:
        start = f"{head}\r\nHost: 127.0.0.1\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
        connection.sendall(start.encode())
        connection.sendall(body)
        answer = b""
        while chunk := connection.recv(65536):
            answer += chunk
    return int(answer[9:12]), json.loads(answer.partition(b"\r\n\r\n")[2])


FORM = "Content-Type: multipart/form-data; boundary="


@pytest.mark.parametrize(
    ("boundary", "before", "headers"),
    [
        pytest.param(  # HttpClient with MultipartFormDataContent
            '"0f5c1a2b-1b1f-4f1f-9d3e-2f0c5d1e7a11"',
            b"",
            "Content-Type: image/jpeg\r\nContent-Disposition: form-data; name=files; "
            "filename=\"=?utf-8?B?0YTQvtGC0L4uanBn?=\"; filename*=utf-8''%D1%84%D0%BE%D1%82%D0%BE.jpg",
            id="dotnet",
        ),
        pytest.param(
            "old-requests",
            b"",
            "Content-Disposition: form-data; name=\"files\"; filename*=utf-8''%D1%84%D0%BE%D1%82%D0%BE.jpg",
            id="urllib3",
        ),
        pytest.param(
            "mail",
            b"This is a multi-part message in MIME format.\r\n\r\n",
            'Content-Disposition: form-data; name="files"; filename="фото.jpg"',
            id="preamble",
        ),
    ],
)
def test_an_upload_keeps_the_name_of_its_file(server, client, collection, image_files, boundary, before, headers):
    delimiter = b"--" + boundary.strip('"').encode()
    part = delimiter + b"\r\n" + headers.encode() + b"\r\n\r\n" + image_files[0].read_bytes() + b"\r\n"
    body = before + part + delimiter + b"--\r\n"
    assert sent(server, f"POST {collection}/items HTTP/1.1\r\n{FORM}{boundary}", body)[0] == 200
    (item,) = client.get(f"{collection}/items").json()["items"]
    assert item["metadata"]["name"] == "фото.jpg"


@pytest.mark.parametrize("path", ["/v1/embeddings", "/api/v1/embed"])
def test_json_may_begin_with_a_byte_order_mark(server, image_files, path):
    """As PowerShell and .NET's StreamWriter write it."""
    text = as_text(image_files[0])
    content = {"model": "default", "input": text} if path.startswith("/v1") else {"images": [text]}
    head = f"POST {path} HTTP/1.1\r\nContent-Type: application/json; charset=utf-8"
    assert sent(server, head, json.dumps(content).encode("utf-8-sig"))[0] == 200
