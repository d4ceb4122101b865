"""A bulk run by Ray: the shards of a run without it, also when workers and machines die."""

import os
import signal
import threading
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from waiting import until

from nnclr_hub import load_encoder
from nnclr_hub.bulk import embed_shards, open_shards
from nnclr_hub.bulk import embed_shards_by_ray as by_ray
from nnclr_hub.errors import InvalidRequest, UnknownModel

ray = pytest.importorskip("ray")

pytestmark = [pytest.mark.scale, pytest.mark.filterwarnings("default")]


embed_shards_by_ray = partial(by_ray, backend="torch")


@pytest.fixture(scope="module")
def cluster():
    """A Ray cluster with two simulated machines of two processors each."""
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
    made.add_node(num_cpus=2)
    ray.init(made.address, log_to_driver=False)
    yield made
    ray.shutdown()
    made.shutdown()


def assert_equal_shards(folder: Path, other: Path) -> None:
    """Compare shards up to the last digits of vectors, which depend on the batch; workers have smaller batches."""
    for one, two in zip(open_shards(folder), open_shards(other), strict=True):
        assert (one.number, one.images, one.broken) == (two.number, two.images, two.broken)
        np.testing.assert_allclose(one.vectors, two.vectors, atol=1e-6)


@pytest.fixture(scope="module")
def alone(encoder, photos, tmp_path_factory):
    """The folder of a run without Ray."""
    folder = tmp_path_factory.mktemp("alone") / "v"
    embed_shards(folder, [photos], encoder, shard_size=4)
    return folder


def test_workers_write_the_shards_of_one_process(cluster, encoder, photos, alone, tmp_path):
    steps = []
    report = embed_shards_by_ray(
        tmp_path / "v", [photos], encoder, address="auto", workers=2, shard_size=4, progress=lambda *s: steps.append(s)
    )
    assert (report.images, report.missing) == (60, 0)
    assert (steps[0], steps[-1]) == ((0, 60), (60, 60))
    assert len(steps) > 10
    assert_equal_shards(tmp_path / "v", alone)


def test_a_run_continues_with_existing_shards(cluster, encoder, photos, alone, tmp_path):
    embed_shards(tmp_path / "v", [photos], encoder, shard_size=4, part=(1, 2))
    steps = []
    embed_shards_by_ray(
        tmp_path / "v", [photos], encoder, address="auto", shard_size=4, progress=lambda *s: steps.append(s)
    )
    assert steps[0] == (28, 60)
    assert_equal_shards(tmp_path / "v", alone)


def test_killed_workers_are_restarted_without_losing_shards(cluster, encoder, photos, alone, tmp_path):
    killed = []

    def kill() -> None:
        until(lambda: len([*(tmp_path / "v").glob("shard-*")]) >= 3)
        for pid in _workers():
            os.kill(pid, signal.SIGKILL)
            killed.append(pid)

    thread = threading.Thread(target=kill)
    thread.start()
    embed_shards_by_ray(tmp_path / "v", [photos] * 20, encoder, address="auto", workers=2, shard_size=40)
    thread.join()
    assert len(killed) == 2
    embed_shards(tmp_path / "w", [photos] * 20, encoder, shard_size=40)
    assert_equal_shards(tmp_path / "v", tmp_path / "w")


def test_an_error_in_a_worker_keeps_its_class(cluster, model, photos, tmp_path):
    encoder = load_encoder(model, device="cpu")
    encoder.name = "nnclr_no_such_model"
    with pytest.raises(UnknownModel):
        embed_shards_by_ray(tmp_path / "v", [photos], encoder, address="auto", shard_size=30)


def test_an_address_without_a_cluster_is_refused(encoder, photos, tmp_path):
    with pytest.raises(InvalidRequest):
        embed_shards_by_ray(tmp_path / "v", [photos], encoder, address="127.0.0.1:9")


def _workers() -> list[int]:
    """Process ids of the actors, by the names that Ray gives them."""
    return [
        int(path.parent.name) for path in Path("/proc").glob("[0-9]*/cmdline") if b"ray::MapWorker" in _content(path)
    ]


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:  # the process has ended
        return b""
