"""`--backend`, NNCLR_BACKEND and `nnclr onnx` on the command line, and the server's setting."""

import json

import httpx
import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from nnclr_hub import load_encoder
from nnclr_hub.cli.app import app
from nnclr_hub.encoder.backends import choice


def nnclr(*arguments) -> tuple[int, str, str]:
    """Exit code, standard output, standard error."""
    result = CliRunner().invoke(app, [str(one) for one in arguments])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout, result.stderr


def said(*arguments, code: int) -> str:
    """The error's sentence."""
    exit_code, _, err = nnclr(*arguments)
    assert exit_code == code, err
    return err


def test_embed_runs_the_named_backend(image_files, model, tmp_path, monkeypatch):
    """By flag or by environment; the vectors stay torch's, nearly."""
    pytest.importorskip("openvino")
    wanted = load_encoder(model, device="cpu").embed(image_files[:4])
    for flags, environment in ((["--backend", "auto"], "torch"), ([], "openvino")):
        monkeypatch.setenv("NNCLR_BACKEND", environment)
        code, _, err = nnclr("embed", *image_files[:4], "--model", model, "--out", tmp_path / "v.npy", *flags)
        assert code == 0, err
        assert (np.load(tmp_path / "v.npy") * wanted).sum(axis=1).min() >= 0.999
    about = json.loads(nnclr("info", model, "--json", "--backend", "openvino")[1])
    assert about["backend"] == "openvino"


def test_a_wrong_backend_is_explained(image_files, model, tmp_path):
    assert "'turbo'" in said("embed", image_files[0], "--model", model, "--backend", "turbo", code=2)
    serve = ("serve", "--store", tmp_path / "store", "--model", model, "--port", 0, "--backend", "turbo")
    assert "'turbo'" in said(*serve, code=2)


def test_onnx_compares_the_file_that_it_writes(model, tmp_path):
    pytest.importorskip("onnxruntime")
    code, out, err = nnclr("onnx", model, tmp_path / "model.onnx")
    assert code == 0, err
    assert "cosine with torch's vectors 1.0" in out
    assert (tmp_path / "model.onnx").is_file()
    assert "must end in .onnx" in said("onnx", model, tmp_path / "model.bin", code=2)


def test_a_server_runs_and_logs_the_backend_that_auto_chooses(model, image_files, tmp_path, serve, caplog):
    """Its vectors are torch's, nearly."""
    caplog.set_level("INFO")
    for server in serve(model, tmp_path / "store", backend="auto"):
        files = [("files", ("a.jpg", path.read_bytes())) for path in image_files[:3]]
        answer = httpx.post(f"{server.url}/api/v1/embed", files=files, timeout=60).json()
        got = np.array([entry["embedding"] for entry in answer["data"]])
        assert (got * load_encoder(model, device="cpu").embed(image_files[:3])).sum(axis=1).min() >= 0.999
        names = choice.candidates(torch.device("cpu"), None)
        assert any(
            line.split()[-1].rstrip(".") in names or any(f" {n} " in f"{line} " for n in names)
            for line in caplog.messages
        )
