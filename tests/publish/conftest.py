"""A Hub on this machine that the real client is turned to, and model folders to publish on it."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import constants
from publish.hub_server import TOKEN, HubServer, running_hub

from nnclr_hub.publish.export import export_run


@pytest.fixture
def hub(monkeypatch, tmp_path) -> Iterator[HubServer]:
    """An empty Hub that takes large files of up to 64 KiB whole; the client is turned to it as HF_ENDPOINT would."""
    with running_hub(part=1 << 16) as server:
        monkeypatch.setattr(constants, "ENDPOINT", server.url)
        template = server.url + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub-cache"))
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        yield server


@pytest.fixture
def folder(model, tmp_path) -> Path:
    return export_run(model, tmp_path / "small")


@pytest.fixture
def another(make_model, tmp_path) -> Path:
    """The same architecture with other weights."""
    return export_run(make_model(seed=1), tmp_path / "another")
