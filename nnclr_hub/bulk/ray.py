"""A bulk run on Ray, on a cluster or this machine: each worker loads an encoder and makes shards.

    embed_shards_by_ray(Path("/shared/vectors"), [Path("/shared/photos")], encoder, address="auto", workers=16)

Ray Data distributes the shards, and repeats those of a worker that died. The folder alone records what is done, so a
run can continue after its driver died, with or without Ray. Every machine must be able to read the images and the
folder.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from nnclr_hub.arguments import checked
from nnclr_hub.bulk.local import Embedded, fill, shards_to_make, summarize
from nnclr_hub.bulk.plan import SHARD_SIZE, Places, ShardPlan
from nnclr_hub.errors import BY_CODE, InvalidRequest, MissingDependency, NNCLRHubError
from nnclr_hub.images.pool import decoding_processes
from nnclr_hub.progress import Advance
from nnclr_hub.remote_files import is_address

if TYPE_CHECKING:
    from nnclr_hub.encoder.encoder import Encoder

CONNECT_TIMEOUT_S = 10


class ShardWorker:
    """A Ray actor that loads the encoder once and makes shards."""

    def __init__(self, folder: Path, plan: ShardPlan, places: Places, model: str, backend: str) -> None:
        self.folder, self.plan, self.places, self.model, self.backend = folder, plan, places, model, backend

    @cached_property
    def encoder(self) -> Encoder:
        """The same encoder as on the driver."""
        from nnclr_hub.encoder.loader import load_encoder

        encoder = load_encoder(self.model, backend=self.backend)
        if encoder.fingerprint != self.plan.fingerprint:
            raise InvalidRequest(
                f"{self.model} is another encoder on a worker ({encoder.fingerprint[:8]}) than on the driver "
                f"({self.plan.fingerprint[:8]}); use one that all machines share, such as a shared folder."
            )
        return encoder

    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Make the shard of this number.

        Returns:
            The number of images, or the code and message of an error; Ray passes on only the text of exceptions.
        """
        numbers = [int(batch["number"][0])]
        done, error = self.plan.images(numbers), ("", "")
        try:
            with decoding_processes(images=done):
                fill(self.folder, self.plan, self.plan.parts(self.folder, self.places, numbers), self.encoder)
        except NNCLRHubError as caught:
            done, error = 0, (caught.code, str(caught))
        return {"done": np.array([done]), "error": np.array([error[0]]), "message": np.array([error[1]])}


@checked
def embed_shards_by_ray(
    folder: str | Path,
    given: Sequence[str | Path],
    encoder: Encoder,
    *,
    backend: str = "auto",
    address: str = "local",
    workers: int | None = None,
    precision: str = "f32",
    shard_size: int = SHARD_SIZE,
    progress: Advance = lambda done, total: None,
) -> Embedded:
    """Run `nnclr_hub.bulk.embed_shards` on a cluster; the resulting folder is the same.

    Args:
        encoder: the workers load the same one by its name.
        backend: backend of the encoder on the workers; "auto" for the fastest on each machine.
        address: address of the cluster; "auto" for the one of this machine, "local" to start one on this machine.
        workers: number of encoders; None: one per GPU, or one per machine without GPUs.

    Raises:
        MissingDependency: Ray is not installed.
        NNCLRHubError: an error of `embed_shards` on a worker, or the cluster does not answer.
    """
    places = Places.of([one if is_address(str(one)) else Path(one).absolute() for one in given])
    folder = Path(folder).resolve()
    plan = ShardPlan.begin(folder, encoder, places, precision=precision, shard_size=shard_size)
    wanted = shards_to_make(folder, plan, range(plan.shards))
    model = str(Path(encoder.name).resolve()) if Path(encoder.name).exists() else encoder.name
    total = plan.images()
    done = total - plan.images(wanted)
    progress(done, total)
    if wanted:
        with _connected(address) as ray:
            for row in _results(ray, wanted, workers, (folder, plan, places, model, backend)):
                if row["error"]:
                    raise BY_CODE[row["error"]](row["message"])
                done += int(row["done"])
                progress(done, total)
    return summarize(folder, plan, range(plan.shards))


def _results(
    ray: Any, numbers: Sequence[int], workers: int | None, arguments: tuple[Any, ...]
) -> Iterator[dict[str, Any]]:
    """Yield a row for each shard when it is complete."""
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    gpus = int(sum(node.get("GPU", 0) for node in nodes))
    workers = min(workers or gpus or len(nodes), len(numbers))
    # torch uses as many threads as Ray assigns; without GPUs, the workers of a machine share its processors
    here = -(-workers // len(nodes))
    cpus = 1 if gpus else max(1, int(min(node.get("CPU", 1) for node in nodes)) // here)
    data = ray.data.from_items([{"number": number} for number in numbers], override_num_blocks=len(numbers))
    made = data.map_batches(
        ShardWorker,
        fn_constructor_args=arguments,
        batch_size=1,
        concurrency=workers,
        num_cpus=cpus,
        num_gpus=1 if gpus else 0,
    )
    try:
        yield from made.iter_rows()
    except ray.exceptions.RayError as error:
        reason = next((line for line in reversed(str(error).splitlines()) if "Error: " in line), str(error))
        raise NNCLRHubError(
            f"A worker failed ({reason[:300]}); call again to resume, existing shards are kept."
        ) from error


@contextmanager
def _connected(address: str) -> Iterator[Any]:
    """Connect to Ray without its log output, and disconnect at the end."""
    try:
        ray = import_module("ray")
        import_module("ray.data")
    except ImportError as error:
        raise MissingDependency(
            "Ray is not installed; pip install 'nnclr_hub[scale]', or leave --ray out to embed on this machine."
        ) from error
    mine = not ray.is_initialized()
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")  # hides Ray's own lines on standard error
    try:
        host, _, port = address.removeprefix("ray://").rpartition(":")
        if host and port.isdigit():  # Ray itself would retry for many minutes
            socket.create_connection((host, int(port)), timeout=CONNECT_TIMEOUT_S).close()
        ray.init(address, ignore_reinit_error=True, log_to_driver=False, logging_level=logging.ERROR)
    except (OSError, ValueError, RuntimeError) as error:
        raise InvalidRequest(
            f"No Ray cluster answers at {address!r} ({str(error).splitlines()[0][:150]}); start one with `ray start`, "
            "or use `--ray local`."
        ) from error
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    try:
        yield ray
    finally:
        if mine:
            ray.shutdown()
