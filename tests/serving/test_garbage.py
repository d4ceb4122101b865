"""What stays is not looked through for garbage, and what goes is gone."""

import gc
import weakref

import pytest
from fastapi import FastAPI

from serving import garbage, run
from serving.models import Engines
from serving.settings import Settings


@pytest.fixture(autouse=True)
def unfrozen():
    yield
    gc.unfreeze()


def test_the_server_keeps_what_is_there_to_stay_and_lets_go_of_it_at_the_end(monkeypatch):
    app, seen = FastAPI(), []

    def serve(server) -> None:
        app.state.on_loaded()
        seen.append(gc.get_freeze_count())

    monkeypatch.setattr(run.Server, "run", serve)
    run.run(app, Settings())
    assert seen[0] > 100_000
    assert gc.get_freeze_count() == 0


def test_a_model_that_makes_room_is_gone_though_it_was_kept(model, make_model):
    with_one = Engines(str(model), Settings())
    with_one.get()
    size = with_one.metrics.model_bytes._value.get()
    with_one.close()

    engines = Engines(str(model), Settings(model_memory=int(1.5 * size)))
    engines.get()
    [engine] = engines._memory.engines
    gone = weakref.ref(engine.encoder)
    del engine
    garbage.keep()
    engines.get(str(make_model(seed=1)))
    gc.collect()
    assert gone() is None
    engines.close()
