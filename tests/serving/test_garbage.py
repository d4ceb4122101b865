"""Garbage collection: the server freezes what stays, and unloaded models are collected."""

import gc

import pytest
from fastapi import FastAPI

from serving import run
from serving.settings import Settings


@pytest.fixture(autouse=True)
def frozen_as_before():
    yield
    gc.unfreeze()
    gc.freeze()  # as tests/conftest.py does


def test_the_server_freezes_its_objects_while_it_runs(monkeypatch):
    app, seen = FastAPI(), []

    def serve(server) -> None:
        app.state.on_loaded()
        seen.append(gc.get_freeze_count())

    monkeypatch.setattr(run.Server, "run", serve)
    run.run(app, Settings())
    assert seen[0] > 100_000
    assert gc.get_freeze_count() == 0
