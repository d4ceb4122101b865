"""A bulk run on a Ray cluster, or on this machine by Ray: each worker holds an encoder and makes shard after shard.

    embed_shards_by_ray(Path("/shared/vectors"), [Path("/shared/photos")], encoder, address="auto", workers=16)

Ray Data hands out the shards, and again those of a worker that died. What is done is told by the folder alone, so a run
whose driver died goes on where it was, by Ray or without. Every machine must see the images and the folder.
"""

from __future__ import annotations

import json
import logging
import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from nnclr_hub.bulk.local import Embedded, come_to, fill, to_make
from nnclr_hub.bulk.pictures import Picture, Source, list_pictures
from nnclr_hub.bulk.plan import SHARD_SIZE, Plan
from nnclr_hub.errors import BY_CODE, InvalidRequest, MissingDependency, NNCLRHubError
from nnclr_hub.progress import Advance

if TYPE_CHECKING:
    from nnclr_hub.encoder.encoder import Encoder

PATIENCE_S = 10


@dataclass(frozen=True)
class Job:
    """What every worker is told.

    folder, plan: to fill.
    sources: where the images lie.
    model: source of the encoder.
    backend: what runs it.
    """

    folder: Path
    plan: Plan
    sources: tuple[Source, ...]
    model: str
    backend: str


class Worker:
    """Loads the encoder once, then makes shards; an actor of Ray's."""

    def __init__(self, job: Job) -> None:
        self.job = job

    @cached_property
    def encoder(self) -> Encoder:
        """The driver's encoder."""
        from nnclr_hub.encoder.encoder import load_encoder

        encoder = load_encoder(self.job.model, backend=self.job.backend)
        if encoder.fingerprint != self.job.plan.fingerprint:
            raise InvalidRequest(
                f"{self.job.model} is another encoder on a worker ({encoder.fingerprint[:8]}) than here "
                f"({self.job.plan.fingerprint[:8]}): name one that all machines see, such as a folder that they share."
            )
        return encoder

    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Makes a shard.

        Args:
            batch: of one: its number, and its images as JSON.

        Returns:
            How many images were done; or else the error, its class and its sentence, for of what is raised here
            Ray hands on the text alone.
        """
        pictures = [Picture(*one) for one in json.loads(batch["pictures"][0])]
        done, error = len(pictures), ("", "")
        try:
            fill(self.job.folder, self.job.plan, self.job.sources, [(int(batch["number"][0]), pictures)], self.encoder)
        except NNCLRHubError as caught:
            done, error = 0, (caught.code, str(caught))
        return {"done": np.array([done]), "error": np.array([error[0]]), "sentence": np.array([error[1]])}


def embed_shards_by_ray(
    folder: Path,
    given: Sequence[Path],
    encoder: Encoder,
    *,
    backend: str = "auto",
    address: str = "local",
    workers: int | None = None,
    precision: str = "f32",
    shard_size: int = SHARD_SIZE,
    retry_broken: bool = False,
    progress: Advance = lambda done, total: None,
) -> Embedded:
    """`nnclr_hub.bulk.embed_shards` on a cluster; the folder it leaves is the same.

    Args:
        encoder: tells what to load; the workers load it by its name.
        backend: what runs it there; "auto" for the fastest of each machine.
        address: of the cluster; "auto" for the one that this machine belongs to, "local" for one of this machine alone.
        workers: how many encoders; None: one a GPU, or one a machine where there is none.

    Raises:
        MissingDependency: Ray is not installed.
        NNCLRHubError: what a worker met, as `embed_shards` raises it; or no such cluster.
    """
    sources, pictures = list_pictures(given)
    folder = folder.resolve()
    plan = Plan.of(encoder, sources, pictures, precision=precision, shard_size=shard_size).begin(folder)
    wanted = to_make(folder, plan, range(plan.shards), retry_broken=retry_broken)
    model = str(Path(encoder.name).resolve()) if Path(encoder.name).exists() else encoder.name
    job = Job(folder, plan, tuple(sources), model, backend)
    parts = [{"number": n, "pictures": json.dumps([astuple(one) for one in plan.part(pictures, n)])} for n in wanted]
    done = plan.pictures - sum(len(plan.part(pictures, number)) for number in wanted)
    progress(done, plan.pictures)
    if wanted:
        with _connected(address) as ray:
            for row in _results(ray, job, parts, workers):
                if row["error"]:
                    raise BY_CODE[row["error"]](row["sentence"])
                done += int(row["done"])
                progress(done, plan.pictures)
    return come_to(folder, plan, range(plan.shards))


def _results(ray: Any, job: Job, parts: list[dict[str, Any]], workers: int | None) -> Iterator[dict[str, Any]]:
    """A row for each shard that was made, as it is made."""
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    gpus = int(sum(node.get("GPU", 0) for node in nodes))
    workers = min(workers or gpus or len(nodes), len(parts))
    # torch takes the threads that Ray gives; where there is no GPU, the workers of a machine share all it has
    here = -(-workers // len(nodes))
    cpus = 1 if gpus else max(1, int(min(node.get("CPU", 1) for node in nodes)) // here)
    data = ray.data.from_items(parts, override_num_blocks=len(parts))
    made = data.map_batches(
        Worker,
        fn_constructor_args=(job,),
        batch_size=1,
        concurrency=workers,
        num_cpus=cpus,
        num_gpus=1 if gpus else 0,
    )
    try:
        yield from made.iter_rows()
    except ray.exceptions.RayError as error:
        reason = next((line for line in reversed(str(error).splitlines()) if "Error: " in line), str(error))
        raise NNCLRHubError(f"A worker failed ({reason[:300]}): call again, what is done stays.") from error


@contextmanager
def _connected(address: str) -> Iterator[Any]:
    """Ray, quiet, and given back at the end."""
    try:
        ray = import_module("ray")
        import_module("ray.data")
    except ImportError as error:
        raise MissingDependency(
            "Ray is not installed: pip install 'nnclr_hub[scale]', or leave --ray out to embed on this machine."
        ) from error
    mine = not ray.is_initialized()
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")  # its own lines on standard error, between ours
    try:
        _check_answers(address)
        ray.init(address, ignore_reinit_error=True, log_to_driver=False, logging_level=logging.ERROR)
    except (OSError, ValueError, RuntimeError) as error:
        raise InvalidRequest(
            f"No Ray cluster answers at {address!r} ({str(error).splitlines()[0][:150]}): start one with `ray start`, "
            "or say `--ray local`."
        ) from error
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    try:
        yield ray
    finally:
        if mine:
            ray.shutdown()


def _check_answers(address: str) -> None:
    """Ray itself asks an address without an answer for many minutes, and says so on every line.

    Raises:
        OSError: nobody listens there.
    """
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host, int(port)), timeout=PATIENCE_S).close()
