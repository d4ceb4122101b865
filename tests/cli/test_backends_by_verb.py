"""`--backend`, NNCLR_BACKEND and `nnclr onnx` on the command line, and the server's setting."""

import json

import httpx
import numpy as np
import pytest
from commands import output_of

from nnclr_hub import load_encoder
from nnclr_hub.encoder.backends import rule


def test_embed_runs_the_named_backend(image_files, model, tmp_path, monkeypatch):
    """By flag or by environment; the vectors stay torch's, nearly."""
    pytest.importorskip("openvino")
    wanted = load_encoder(model, device="cpu").embed(image_files[:4])
    for flags, environment in ((["--backend", "auto"], "torch"), ([], "openvino")):
        monkeypatch.setenv("NNCLR_BACKEND", environment)
        output_of("embed", *image_files[:4], "--model", model, "--out", tmp_path / "v.npy", *flags)
        assert (np.load(tmp_path / "v.npy") * wanted).sum(axis=1).min() >= 0.999
    about = json.loads(output_of("info", model, "--json", "--backend", "openvino"))
    assert about["backend"] == "openvino"


def test_a_server_runs_and_logs_the_backend_that_auto_chooses(model, image_files, tmp_path, serve, caplog):
    """Its vectors are torch's, nearly."""
    caplog.set_level("INFO")
    for server in serve(model, tmp_path / "store", backend="auto"):
        files = [("files", ("a.jpg", path.read_bytes())) for path in image_files[:3]]
        answer = httpx.post(f"{server.url}/api/v1/embed", files=files, timeout=60).json()
        got = np.array([entry["embedding"] for entry in answer["data"]])
        assert (got * load_encoder(model, device="cpu").embed(image_files[:3])).sum(axis=1).min() >= 0.999
        names = [*rule(), "torch"]
        assert any(
            line.split()[-1].rstrip(".") in names or any(f" {n} " in f"{line} " for n in names)
            for line in caplog.messages
        )
