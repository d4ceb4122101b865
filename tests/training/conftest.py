"""What the tests of training share: runs whose curves nobody looks at."""

import pytest


@pytest.fixture
def undrawn(monkeypatch) -> None:
    """Reports without curves, for tests of something else: to draw them takes longer than to train so small a net."""
    monkeypatch.setattr("training.report.page.draw_panels", lambda logs: "")
