"""One server a module, and a client of it."""

import shutil
from collections.abc import Iterator

import httpx
import pytest
from fake_runs import write_run
from job_worlds import World

from nnclr_hub import load_encoder


@pytest.fixture(scope="module")
def server(model, photos, tmp_path_factory, serve) -> Iterator:
    folder = tmp_path_factory.mktemp("serving")
    shutil.copytree(photos, folder / "summer")
    write_run(folder / "runs" / "first")
    yield from serve(model, folder / "store", capacity=100, source_folders=[str(folder)], runs=folder / "runs")


@pytest.fixture(scope="module")
def strict(model, tmp_path_factory, serve) -> Iterator:
    """A server that takes bodies of 2 MB and waits a second for them, with a collection `c` of two numbers a vector."""
    folder = tmp_path_factory.mktemp("strict") / "store"
    for server in serve(model, folder, body_idle_s=0.3, body_s=1.0, max_bytes=2_000_000, bodies_bytes=2_500_000):
        httpx.put(f"{server.url}/api/v1/collections/c", json={"dim": 2})
        yield server


@pytest.fixture
def well_afterwards(strict) -> Iterator[None]:
    """Whatever a test has sent, the server is ready again."""
    yield
    assert httpx.get(f"{strict.url}/readyz").status_code == 200


@pytest.fixture(scope="module")
def encoder(model):
    """The server's own encoder, to compare with."""
    return load_encoder(model, device="cpu")


@pytest.fixture
def client(server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=120) as opened:
        yield opened


@pytest.fixture
def collection(client) -> Iterator[str]:
    """An empty collection for the server's model, dropped afterwards."""
    assert client.put("/api/v1/collections/photos", json={}).status_code == 201
    yield "/api/v1/collections/photos"
    client.delete("/api/v1/collections/photos")


@pytest.fixture
def make_world(tmp_path) -> Iterator:
    """make_world(**options of Jobs) -> a World, which is stopped at the end."""
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
