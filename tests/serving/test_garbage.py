"""Garbage collection: the server freezes what stays, and unloaded models are collected."""

import gc
import weakref

import pytest
from fastapi import FastAPI

from nnclr_hub import load_encoder
from serving import run
from serving.models import Engines
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


def test_an_unloaded_model_is_collected_although_it_was_frozen(model, make_model):
    encoders = []

    def load(source):
        encoder = load_encoder(source, device="cpu")
        encoders.append(weakref.ref(encoder))
        return encoder

    engines = Engines(str(model), Settings(model_memory=500_000), load=load)  # more than one model, less than two
    engines.get()
    gc.collect()
    gc.freeze()
    engines.get(str(make_model(seed=1)))
    gc.collect()
    assert encoders[0]() is None
    engines.close()
