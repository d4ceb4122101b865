"""Fixtures of the training tests: a finished run."""

from pathlib import Path

import pytest
from tiny_runs import recipe

from training.pretrain import pretrain


@pytest.fixture(scope="session")
def finished(data, tmp_path_factory) -> Path:
    """Return a run that never stopped."""
    run = tmp_path_factory.mktemp("runs") / "whole"
    assert pretrain(recipe(), [data], run).finished
    return run
