"""Replicas of the whole server on a Ray cluster; docs/decisions/0014-replicas.md.

    with deployed(settings, "milvus://host:19530", None, replicas=2, address=None):
        until_told()

Each replica is the app of `nnclr serve` with an engine of its own. Ray starts them, shares the requests out, and
replaces one that dies or stays ill. Ray makes no batches, for the engine does.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from importlib import import_module
from typing import Any

from fastapi import FastAPI
from prometheus_client import CollectorRegistry, Metric

from nnclr_hub.errors import InvalidRequest, MissingDependency, NotReady, ServerUnreachable
from nnclr_hub.hub.sources import absolute
from nnclr_hub.store import open_store

from . import ray_proxy
from .api import opened_app
from .run import GRACE_S, KEEP_ALIVE_S, settle
from .settings import Settings

log = logging.getLogger(__name__)
NAME = "nnclr"
HOOK = "nnclr_hub.cli.programs.find_serving"  # in every process of Ray's before anything of ours is loaded
CONTROLLER = "SERVE_CONTROLLER_ACTOR"  # by which every program finds the Ray Serve of a cluster
CHECK_S = 5.0  # between two looks; Ray replaces a replica that is ill three times in a row
LOOK_S = 0.1
KNOCK_S = 10.0
HANG_UP_S = 5.0


# ------------------------------------------------------------------------------ one replica


class Replica:
    """One server, in a process of Ray's; its methods are those that Ray Serve looks for.

    Args:
        settings, store, model, shared: see `opened_app`.
    """

    def __init__(self, settings: Settings, store: str, model: str | None, shared: bool) -> None:
        serve = import_module("ray.serve")
        self._open = ExitStack()
        self._app = self._open.enter_context(opened_app(settings, store, model, shared=shared))
        settle(self._app, settings)
        metrics = self._app.state.metrics
        metrics.registry = Named(metrics.registry, replica=serve.get_replica_context().replica_id.unique_id)

    def __serve_build_asgi_app__(self) -> FastAPI:
        return self._app

    async def check_health(self) -> None:
        """Returns while it is well; the first time, before any request comes, not until all is loaded.

        Raises:
            NotReady: it could not be loaded, or its engine is ill.
        """
        look = self._app.state.readiness.report
        while (found := await asyncio.to_thread(look)).status == "loading":
            await asyncio.sleep(LOOK_S)
        if found.status != "ready":
            raise NotReady(found.detail or found.status)

    def close_streams(self) -> None:
        """Ends the streams of events, for which a drain would wait."""
        self._app.state.jobs.close_streams()

    def __del__(self) -> None:
        self._open.close()


class Named(CollectorRegistry):
    """What a registry holds, with a label more: who asks for /metrics gets one replica's, and sees whose."""

    def __init__(self, registry: CollectorRegistry, **label: str) -> None:
        super().__init__()
        self._registry, self._label = registry, label

    def collect(self) -> Iterator[Metric]:
        for family in self._registry.collect():
            family.samples = [one._replace(labels={**one.labels, **self._label}) for one in family.samples]
            yield family


# ------------------------------------------------------------------------------ all of them


@contextmanager
def deployed(
    settings: Settings, store: str, model: str | None, *, replicas: int, address: str | None
) -> Iterator[None]:
    """Replicas that are ready, behind a proxy on each of the cluster's machines; at the end they are drained.

    Args:
        replicas: how many.
        address: of a Ray cluster; None: one on this machine, for as long as this lasts.

    Raises:
        MissingDependency: Ray is not installed.
        InvalidRequest: so many cannot share the store, or Ray Serve is in use there already.
        ServerUnreachable: there is no such cluster.
        NotReady: the replicas do not start.
    """
    ray = _ray()
    shared = replicas > 1
    open_store(store, settings.read_only, shared=shared).close()  # what is wrong with it is said here, and once
    store = store if "://" in store else os.path.abspath(store)  # Ray's processes may work in another folder
    model = absolute(model) if model is not None else None
    with _cluster(ray, settings, replicas, address):
        try:
            _start(ray, (settings.sent(), store, model, shared), replicas)
            try:
                yield
            finally:
                _drain(ray, _drain_s(settings))
        finally:
            if address:  # or it ends with the cluster
                with _at_the_end(ray, "Ray Serve has not ended on the cluster"):
                    ray.serve.shutdown()


def until_told() -> None:
    """Returns at SIGTERM or Ctrl-C; a second signal ends the process at once."""
    told = threading.Event()

    def hear(*_: Any) -> None:
        for one in (signal.SIGINT, signal.SIGTERM):
            signal.signal(one, signal.SIG_DFL)
        told.set()

    for one in (signal.SIGINT, signal.SIGTERM):
        signal.signal(one, hear)
    told.wait()


def share(machines: Sequence[Mapping[str, float]], replicas: int) -> dict[str, float]:
    """What each replica reserves: as many cores and as much of a GPU as let all of them find room.

    Args:
        machines: "CPU" and "GPU" of each.
    """
    gpus = sum(int(machine.get("GPU", 0)) for machine in machines)
    on_one = math.ceil(replicas / gpus) if gpus else 0  # replicas on one GPU

    def room(cores: int) -> int:
        fitting = ((int(one.get("CPU", 0)) // cores, int(one.get("GPU", 0)) * on_one) for one in machines)
        return sum(min(by_cpu, by_gpu) if gpus else by_cpu for by_cpu, by_gpu in fitting)

    most = max((int(one.get("CPU", 0)) for one in machines), default=1)
    cores = next((cores for cores in range(most, 1, -1) if room(cores) >= replicas), 1)
    return {"num_cpus": cores, "num_gpus": 1 / on_one if on_one else 0}


# ------------------------------------------------------------------------------ Ray


def _ray() -> Any:
    """The package, which reads its environment while it is imported."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # a cluster would report to Ray's makers
    os.environ.setdefault("RAY_DEDUP_LOGS", "0")  # every request has its line
    try:
        ray = import_module("ray")
        import_module("ray.serve")
    except ModuleNotFoundError as error:
        raise MissingDependency(
            "Replicas need the package ray, which is not installed: pip install 'nnclr_hub[scale]'."
        ) from error
    logging.getLogger("ray.serve").setLevel(logging.ERROR)
    return ray


@contextmanager
def _cluster(ray: Any, settings: Settings, replicas: int, address: str | None) -> Iterator[None]:
    """A connection to the cluster, and what its proxies find in their environment."""
    environment = {
        "RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH": f"{ray_proxy.__name__}.{ray_proxy.middlewares.__name__}",
        "FORWARDED_ALLOW_IPS": ",".join(settings.trusted_proxies),
    }
    own = {} if address else {"num_cpus": max(os.cpu_count() or 1, replicas), "include_dashboard": False}
    runtime = {"env_vars": environment, "worker_process_setup_hook": HOOK}
    try:
        host, colon, port = (address or "").rpartition(":")
        if colon and port.isdecimal() and "/" not in host:
            socket.create_connection((host, int(port)), KNOCK_S).close()  # Ray would knock for many minutes
        ray.init(address or "local", runtime_env=runtime, logging_level=logging.ERROR, **own)
    except (OSError, ValueError, RuntimeError) as error:
        reason = _first_line(error)
        if not address:
            raise NotReady(f"Ray does not start on this machine: {reason}.") from error
        raise ServerUnreachable(
            f"No Ray cluster answers at {address} ({reason}): start one with `ray start --head`, set "
            "RAY_AUTH_MODE=token if it wants a token, or leave --ray-address out for one on this machine."
        ) from error
    try:
        if any(actor["name"] == CONTROLLER for actor in ray.util.list_named_actors(all_namespaces=True)):
            raise InvalidRequest(  # its proxies listen as others told them, and know no word of ours
                f"Ray Serve is in use already on the cluster at {address}: end it with `serve shutdown`, or take "
                "another cluster."
            )
        yield
    finally:
        ray.shutdown()


def _start(ray: Any, given: tuple[Settings, str, str | None, bool], replicas: int) -> None:
    """Returns when all replicas are ready."""
    settings = given[0]
    quiet = {"log_level": "CRITICAL", "enable_access_log": False}  # the replicas' own log tells all
    http = {"host": settings.host, "port": settings.port, "keep_alive_timeout_s": KEEP_ALIVE_S}
    machines = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    try:
        ray.serve.start(http_options=http, logging_config=quiet)
        replica = ray.serve.deployment(ray.serve.ingress()(Replica)).options(
            name=NAME,
            num_replicas=replicas,
            ray_actor_options=share(machines, replicas),
            max_ongoing_requests=settings.connections,
            max_queued_requests=settings.connections,
            backpressure_config={"status_code": 429},
            health_check_period_s=CHECK_S,
            graceful_shutdown_timeout_s=_drain_s(settings),
            logging_config=quiet,
        )
        ray.serve.run(replica.bind(*given), name=NAME)
    except _errors(ray) as error:
        raise NotReady(f"The replicas do not start: {_reason(ray, error)}") from error


def _reason(ray: Any, error: Exception) -> str:
    """The last line of what Ray says of the replicas, which tells more than the error, or else of the error."""
    try:
        told = ray.serve.status().applications[NAME].deployments[NAME].message
    except (KeyError, *_errors(ray)):  # it came no further than to an application without replicas, or not so far
        told = ""
    lines = (told.strip() or str(error).strip() or type(error).__name__).splitlines()
    return lines[-1].split(": ", 1)[-1]


def _drain_s(settings: Settings) -> int:
    """Seconds in which a replica answers what it has."""
    return math.ceil(settings.deadline_s) + GRACE_S


def _drain(ray: Any, seconds: float) -> None:
    """Returns when the replicas have answered what they had, or Ray has had to kill them after these seconds."""
    with _at_the_end(ray, "open streams of events are waited for, as nobody could end them"):
        told = ray.serve.get_app_handle(NAME).broadcast(Replica.close_streams.__name__)
        told.results(timeout_s=HANG_UP_S, return_exceptions=True)
    with _at_the_end(ray, "the replicas could not be told to end"):
        ray.serve.delete(NAME, _blocking=False)  # Ray's own wait gives up after 60 s, whatever a replica may take
        end = time.monotonic() + seconds + GRACE_S
        while NAME in ray.serve.status().applications:
            if time.monotonic() > end:
                raise TimeoutError(f"they are there after {seconds + GRACE_S:.0f} s")
            time.sleep(LOOK_S)


@contextmanager
def _at_the_end(ray: Any, what: str) -> Iterator[None]:
    """Logs what Ray refuses: the command ends all the same, and does what else is to be done."""
    try:
        yield
    except _errors(ray) as error:
        log.warning("%s (%s)", what, _first_line(error))


def _errors(ray: Any) -> tuple[type[Exception], ...]:
    """What Ray raises, which has no ancestor in common."""
    return (RuntimeError, OSError, ValueError, ray.exceptions.RayError, ray.serve.exceptions.RayServeException)


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).partition("\n")[0].rstrip(".")
