"""Every example of the API documentation runs unchanged against a server."""

import json
import shutil
import subprocess

import numpy as np
import pytest
from PIL import Image

from nnclr_hub.client.call_examples import BASE, IMAGE, ApiCall
from serving.examples import EXAMPLES
from serving.openapi import document, operations


@pytest.fixture(scope="module")
def folder(tmp_path_factory, image_files):
    """Make the folder in which the examples run, with a photo.jpg."""
    made = tmp_path_factory.mktemp("examples")
    shutil.copy(image_files[0], made / "photo.jpg")
    return made


def check_what_was_saved(folder) -> None:
    assert np.load(folder / "vectors.npy").shape == (1, 32)
    with Image.open(folder / "map.png") as image:
        assert (image.format, image.size) == ("PNG", (64, 64))
    with Image.open(folder / "thumbnail.jpg") as image:
        assert image.format == "JPEG"


def test_every_operation_has_an_example_and_every_example_an_operation():
    described = operations(document())
    assert list(dict.fromkeys(name for name, _ in EXAMPLES)) == sorted(described, key=[n for n, _ in EXAMPLES].index)
    for name, operation in described.items():
        samples = {sample["label"]: sample["source"] for sample in operation["x-codeSamples"]}
        assert samples.keys() == {"curl", "Python"}, name


@pytest.mark.parametrize("key", [False, True])
def test_every_curl_example_runs(server, folder, key):
    """With a key as well, which a server without keys overlooks."""
    for name, example in EXAMPLES:
        text = example.curl(key=key).replace(BASE, server.url)
        environment = {"PATH": "/usr/local/bin:/usr/bin:/bin", "NNCLR_API_KEY": "a-key"}
        done = subprocess.run(["sh", "-c", text], cwd=folder, capture_output=True, text=True, env=environment)
        assert done.returncode == 0, (name, text, done.stdout, done.stderr)
    check_what_was_saved(folder)


@pytest.mark.parametrize("key", [False, True])
def test_every_python_example_runs(server, folder, key, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    monkeypatch.setenv("NNCLR_API_KEY", "a-key")
    for name, example in EXAMPLES:
        code = compile(example.python(key=key).replace(BASE, server.url), name, "exec")
        exec(code, {})
    check_what_was_saved(folder)
    assert capsys.readouterr().out


def test_odd_file_names_and_shell_characters_arrive_unchanged(server, folder, monkeypatch, capsys):
    odd = 'the "so" $HOME `id` \\ & é, {x} #1;.jpg'
    shutil.copy(folder / "photo.jpg", folder / odd)
    monkeypatch.chdir(folder)
    text = 'it\'s; "so" $HOME `id` \\ é'
    note = [{"id": "odd", "metadata": {"text": text}}]
    path = "/api/v1/collections/odd"
    calls = [
        ApiCall("PUT", path, json={}),
        ApiCall("POST", f"{path}/items", files=(("files", odd),), form={"items": note}),
        ApiCall("POST", f"{path}/items", json={"items": [{**note[0], "image": IMAGE}]}),
        ApiCall("GET", f"{path}/items/odd"),
    ]
    for call in calls:
        shell = subprocess.run(["sh", "-c", call.curl(server.url)], capture_output=True, text=True, check=True)
        exec(compile(call.python(server.url), "example", "exec"), {})
        for answer in (shell.stdout, capsys.readouterr().out):
            assert call.method != "GET" or json.loads(answer)["metadata"]["text"] == text
    subprocess.run(["sh", "-c", ApiCall("DELETE", path).curl(server.url)], check=True)
