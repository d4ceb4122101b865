"""What the tests of the hub share: this checkout's last commit as torch.hub would have fetched it."""

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FETCHED = "OWNER/nnclr_hub:v0.1.0"


@pytest.fixture(scope="session")
def torch_home(tmp_path_factory) -> Path:
    """Make a TORCH_HOME that contains FETCHED, so torch.hub does not need a network."""
    home = tmp_path_factory.mktemp("torch")
    checkout = home / "hub" / "OWNER_nnclr_hub_v0.1.0"
    checkout.mkdir(parents=True)
    archive = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, check=True, capture_output=True)
    subprocess.run(["tar", "-x", "-C", checkout], input=archive.stdout, check=True)
    return home
