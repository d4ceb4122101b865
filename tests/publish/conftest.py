"""A local Hub for the real client, and model folders to publish."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hub_server import TOKEN, HubServer, running_hub
from huggingface_hub import constants

from nnclr_hub.publish.export import export_run


@contextmanager
def turned_to_own_hub(cache: Path) -> Iterator[HubServer]:
    """Run an empty Hub that accepts files up to 64 KiB in one piece, and point the client to it like HF_ENDPOINT."""
    with running_hub(part=1 << 16) as server, pytest.MonkeyPatch.context() as patch:
        patch.setattr(constants, "ENDPOINT", server.url)
        template = server.url + "/{repo_id}/resolve/{revision}/{filename}"
        patch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        patch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        patch.setattr(constants, "HF_HUB_CACHE", str(cache))
        patch.setenv("HF_TOKEN", TOKEN)
        yield server


@pytest.fixture
def hub(tmp_path) -> Iterator[HubServer]:
    with turned_to_own_hub(tmp_path / "hub-cache") as server:
        yield server


@pytest.fixture(autouse=True)
def no_graphs(without_graphs) -> None:
    """Export no network.onnx."""


@pytest.fixture
def folder(model, tmp_path) -> Path:
    return export_run(model, tmp_path / "small")


@pytest.fixture
def another(make_model, tmp_path) -> Path:
    """Export the same architecture with other weights."""
    return export_run(make_model(seed=1), tmp_path / "another")
