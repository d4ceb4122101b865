"""Servers, engines and jobs for the tests of serving.

`server` and `strict` are shared by all modules: a test deletes what it makes. Models that it loads stay.
"""

import shutil
from collections.abc import Iterator

import httpx
import pytest
from fake_runs import write_run
from job_worlds import World
from model_shelf import Shelf

from serving.engine import Engine
from serving.models import Engines
from serving.settings import Settings
from serving.telemetry import Metrics


@pytest.fixture(scope="module")
def server(model, photos, tmp_path_factory, serve) -> Iterator:
    folder = tmp_path_factory.mktemp("serving")
    shutil.copytree(photos, folder / "summer")
    write_run(folder / "runs" / "first")
    yield from serve(
        model,
        folder / "store",
        capacity=100,
        source_folders=[str(folder)],
        runs=folder / "runs",
        backup_to=str(folder / "backups"),
    )


@pytest.fixture(scope="module")
def strict(model, tmp_path_factory, serve) -> Iterator:
    """Run a server with a limit of 2 MB on bodies, and a collection `c` of 2-dimensional vectors."""
    folder = tmp_path_factory.mktemp("strict") / "store"
    for server in serve(model, folder, max_bytes=2_000_000, bodies_bytes=2_500_000):
        httpx.put(f"{server.url}/api/v1/collections/c", json={"dim": 2}, timeout=60)
        yield server


@pytest.fixture
def well_afterwards(strict) -> Iterator[None]:
    """Check that the server is ready after the test."""
    yield
    assert httpx.get(f"{strict.url}/readyz", timeout=60).status_code == 200


@pytest.fixture
def client(server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=120) as opened:
        yield opened


@pytest.fixture
def collection(client) -> Iterator[str]:
    """Create an empty collection for the model of the server, and delete it afterwards."""
    assert client.put("/api/v1/collections/photos", json={}).status_code == 201
    yield "/api/v1/collections/photos"
    client.delete("/api/v1/collections/photos")


@pytest.fixture
def make_world(tmp_path) -> Iterator:
    """Return make_world(**options of Jobs), which makes a World that is stopped at the end."""
    worlds: list[World] = []

    def make(**options) -> World:
        worlds.append(World(tmp_path / f"store{len(worlds)}", **options))
        return worlds[-1]

    yield make
    for world in worlds:
        world.jobs.stop()
        world.store.close()


@pytest.fixture
def world(make_world) -> World:
    return make_world()


# ---- engines


@pytest.fixture
def make_engine():
    """Return make_engine(encoder, **settings), which makes an engine that is closed at the end."""
    made = []

    def start(encoder, **settings) -> Engine:
        settings = {"decode_threads": 2, "max_batch": 8, "stall_s": 120, **settings}
        made.append(Engine(encoder, Settings(**settings), Metrics()))
        return made[-1]

    yield start
    for engine in made:
        engine.close(0.2)


@pytest.fixture
def make_engines():
    """Return make_engines(shelf, **settings), which makes Engines that load from it and are closed at the end."""
    made = []

    def start(shelf: Shelf, **settings) -> Engines:
        made.append(Engines("a", Settings(decode_threads=1, **settings), Metrics(), load=shelf))
        return made[-1]

    yield start
    for engines in made:
        engines.close(0.2)
