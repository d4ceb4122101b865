"""What the tests of training share: a whole run, and runs whose curves nobody looks at."""

from pathlib import Path

import pytest
from tiny_runs import recipe

from training.pretrain import pretrain


@pytest.fixture
def undrawn(monkeypatch) -> None:
    """Reports without curves, for tests of something else: to draw them takes longer than to train so small a net."""
    monkeypatch.setattr("training.report.page.draw_panels", lambda logs: "")


@pytest.fixture(scope="session")
def finished(data, tmp_path_factory) -> Path:
    """A run from the first step to the last, without a stop."""
    run = tmp_path_factory.mktemp("runs") / "whole"
    assert pretrain("small_cpu", recipe(), [data], run).finished
    return run
