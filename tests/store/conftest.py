"""Fixtures of several tests of stores."""

import pytest


@pytest.fixture(params=["folder", "memory"])
def destination(request, tmp_path) -> str:
    return str(tmp_path / "backups") if request.param == "folder" else f"memory://{tmp_path.name}"
