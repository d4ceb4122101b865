"""Replicas of the whole server on a Ray cluster; see docs/decisions/0014-replicas.md.

    with deployed(settings, "milvus://host:19530", None, replicas=2, address=None):
        wait_for_signal()

Each replica is the app of `nnclr serve` with its engine. Ray starts the replicas, distributes the requests, and
replaces replicas that die or stay unhealthy. Batching stays in the engine.
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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from importlib import import_module
from typing import Any

from fastapi import FastAPI
from prometheus_client import CollectorRegistry, Metric
from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware import Middleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from nnclr_hub.errors import InvalidRequest, MissingDependency, NotReady, Overloaded, ServerUnreachable
from nnclr_hub.hub.sources import absolute
from nnclr_hub.store import open_store

from .api import opened_app
from .problems import problem
from .run import GRACE_S, KEEP_ALIVE_S, prepare_process
from .settings import Settings

log = logging.getLogger(__name__)
NAME = "nnclr"
CONTROLLER = "SERVE_CONTROLLER_ACTOR"  # the name by which programs find the Ray Serve of a cluster
CHECK_S = 5.0  # between health checks; Ray replaces a replica that fails three in a row
POLL_S = 0.1
CONNECT_S = 10.0
CLOSE_STREAMS_S = 5.0
RAY_PATHS = "/-/"  # the proxy's own health routes
FULL = (429, Overloaded.code, "All replicas are overloaded; try again in a moment.")
NONE = (503, NotReady.code, "No replica is available; try again in a moment.")
LOST = (503, ServerUnreachable.code, "The replica that processed this request ended; repeat the request.")


# ------------------------------------------------------------------------------ one replica


class Replica:
    """One server in a Ray process. Ray Serve calls its methods by name.

    Args:
        settings, store, model, shared: see `opened_app`.
        mount: adds the web app.
    """

    def __init__(
        self, settings: Settings, store: str, model: str | None, shared: bool, mount: Callable[[FastAPI], None]
    ) -> None:
        serve = import_module("ray.serve")
        self._open = ExitStack()
        self._app = self._open.enter_context(opened_app(settings, store, model, shared=shared))
        mount(self._app)
        prepare_process(self._app, settings)
        metrics = self._app.state.metrics
        metrics.registry = LabeledRegistry(metrics.registry, replica=serve.get_replica_context().replica_id.unique_id)

    def __serve_build_asgi_app__(self) -> FastAPI:
        return self._app

    async def check_health(self) -> None:
        """Return if the replica is healthy. The first call, before any request, waits until everything is loaded.

        Raises:
            NotReady: loading failed, or the engine has a fault.
        """
        report = self._app.state.readiness.report
        while (readiness := await asyncio.to_thread(report)).status == "loading":
            await asyncio.sleep(POLL_S)
        if readiness.status != "ready":
            raise NotReady(readiness.detail or readiness.status)

    def close_streams(self) -> None:
        """End the event streams, which would keep a drain waiting."""
        self._app.state.jobs.close_streams()

    def __del__(self) -> None:
        self._open.close()


class LabeledRegistry(CollectorRegistry):
    """A registry with an added label. /metrics answers for one replica, and the label shows which."""

    def __init__(self, registry: CollectorRegistry, **label: str) -> None:
        super().__init__()
        self._registry, self._label = registry, label

    def collect(self) -> Iterator[Metric]:
        for family in self._registry.collect():
            family.samples = [one._replace(labels={**one.labels, **self._label}) for one in family.samples]
            yield family


# ------------------------------------------------------------------------------ the proxy


def middlewares() -> list[Middleware]:
    """Return the middleware of Ray's proxy. RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH names this function."""
    return [Middleware(ProxyResponses)]


class ProxyResponses:
    """The layer around Ray's proxy: errors in the server's error format and with Retry-After.

    When a replica dies, Ray's proxy answers its requests with a bare 500. Nothing is wrong with those requests, so the
    response tells clients to repeat them. Responses of replicas pass unchanged.

    The HTTP parser of Ray's proxy would read the body of a request with `Upgrade` as the next request. Such a request
    is refused, and its connection is closed.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"].startswith(RAY_PATHS):
            await self._app(scope, receive, send)
            return
        if "upgrade" in Headers(scope=scope):
            detail = "Upgrade is not supported here; repeat the request without this header."
            error = problem(scope["path"], 400, InvalidRequest.code, detail, headers={"Connection": "close"})
            await error(scope, receive, send)
            return
        response = _Response(send)
        await self._app(scope, receive, response)
        if not response.from_replica:
            status, code, detail = response.replacement
            error = problem(scope["path"], status, code, detail, headers={"Retry-After": "1"})
            await error(scope, receive, send)


class _Response:
    """A `send` that passes the response of a replica, and withholds the proxy's own.

    replacement: status, code and detail to send in place of the proxy's own response.
    """

    def __init__(self, send: Send) -> None:
        self._send = send
        self.from_replica = False
        self.replacement = LOST

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            self.from_replica = "server-timing" in headers  # `RequestLog` adds it to every response of a replica
            if not self.from_replica:
                self.replacement = FULL if message["status"] == 429 else NONE
            ids = headers.getlist("x-request-id")  # one of the replica and one of the proxy
            if len(ids) > 1:
                headers["x-request-id"] = ids[0]
        if self.from_replica:
            await self._send(message)


# ------------------------------------------------------------------------------ all replicas


@contextmanager
def deployed(
    settings: Settings,
    store: str,
    model: str | None,
    *,
    replicas: int,
    address: str | None,
    mount: Callable[[FastAPI], None] = lambda app: None,
) -> Iterator[None]:
    """Start replicas behind a proxy on each machine of the cluster, and drain them when the context ends.

    Args:
        replicas: number of replicas.
        mount: adds the web app to each replica; a function of a module, which the other processes can import.
        address: address of a Ray cluster; None starts one on this machine for the duration of the context.

    Raises:
        MissingDependency: Ray is not installed.
        InvalidRequest: the store cannot be shared by several replicas, or the cluster runs Ray Serve already.
        ServerUnreachable: no cluster answers at the address.
        NotReady: the replicas did not start.
    """
    ray = _ray()
    shared = replicas > 1
    open_store(store, settings.read_only, shared=shared).close()  # reports a bad store once, not per replica
    store = store if "://" in store else os.path.abspath(store)  # Ray processes may have another working directory
    model = absolute(model) if model is not None else None
    with _cluster(ray, settings, replicas, address):
        try:
            _start(ray, (settings.portable(), store, model, shared, mount), replicas)
            try:
                yield
            finally:
                _drain(ray, _drain_s(settings))
        finally:
            if address:  # otherwise it ends with the cluster
                with _logging_errors(ray, "Ray Serve did not shut down on the cluster"):
                    ray.serve.shutdown()


def wait_for_signal() -> None:
    """Return at SIGTERM or Ctrl-C. A second signal ends the process at once."""
    received = threading.Event()

    def receive(*_: Any) -> None:
        for one in (signal.SIGINT, signal.SIGTERM):
            signal.signal(one, signal.SIG_DFL)
        received.set()

    for one in (signal.SIGINT, signal.SIGTERM):
        signal.signal(one, receive)
    received.wait()


def share(machines: Sequence[Mapping[str, float]], replicas: int) -> dict[str, float]:
    """Return the cores and the GPU share of each replica: the most with which all replicas fit.

    Args:
        machines: "CPU" and "GPU" of each.
    """
    gpus = sum(int(machine.get("GPU", 0)) for machine in machines)
    per_gpu = math.ceil(replicas / gpus) if gpus else 0

    def capacity(cores: int) -> int:
        fitting = ((int(one.get("CPU", 0)) // cores, int(one.get("GPU", 0)) * per_gpu) for one in machines)
        return sum(min(by_cpu, by_gpu) if gpus else by_cpu for by_cpu, by_gpu in fitting)

    most = max((int(one.get("CPU", 0)) for one in machines), default=1)
    cores = next((cores for cores in range(most, 1, -1) if capacity(cores) >= replicas), 1)
    return {"num_cpus": cores, "num_gpus": 1 / per_gpu if per_gpu else 0}


# ------------------------------------------------------------------------------ Ray


def _ray() -> Any:
    """Import Ray, which reads its environment variables at import time."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # no usage reports to Ray's developers
    os.environ.setdefault("RAY_DEDUP_LOGS", "0")  # every request needs its line in the log
    try:
        ray = import_module("ray")
        import_module("ray.serve")
    except ModuleNotFoundError as error:
        raise MissingDependency(
            "Replicas need the package ray; install it with: pip install 'nnclr_hub[scale]'."
        ) from error
    logging.getLogger("ray.serve").setLevel(logging.ERROR)
    return ray


@contextmanager
def _cluster(ray: Any, settings: Settings, replicas: int, address: str | None) -> Iterator[None]:
    """Connect to the cluster, and set the environment of its proxies."""
    environment = {
        "RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH": f"{__name__}.{middlewares.__name__}",
        "FORWARDED_ALLOW_IPS": ",".join(settings.trusted_proxies),
    }
    own = {} if address else {"num_cpus": max(os.cpu_count() or 1, replicas), "include_dashboard": False}
    runtime = {"env_vars": environment}
    try:
        host, colon, port = (address or "").rpartition(":")
        if colon and port.isdecimal() and "/" not in host:
            socket.create_connection((host, int(port)), CONNECT_S).close()  # Ray itself would retry for many minutes
        ray.init(address or "local", runtime_env=runtime, logging_level=logging.ERROR, **own)
    except (OSError, ValueError, RuntimeError) as error:
        reason = _first_line(error)
        if not address:
            raise NotReady(f"Ray failed to start on this machine: {reason}.") from error
        raise ServerUnreachable(
            f"No Ray cluster answers at {address} ({reason}); start one with `ray start --head`, set "
            "RAY_AUTH_MODE=token if it needs a token, or omit --ray-address to start one on this machine."
        ) from error
    try:
        if any(actor["name"] == CONTROLLER for actor in ray.util.list_named_actors(all_namespaces=True)):
            # its proxies have the settings and the environment of the other program
            raise InvalidRequest(
                f"The cluster at {address} runs Ray Serve already; stop it with `serve shutdown`, or use another "
                "cluster."
            )
        yield
    finally:
        ray.shutdown()


def _start(ray: Any, arguments: tuple[Any, ...], replicas: int) -> None:
    """Start the replicas, and return when all of them are ready."""
    settings: Settings = arguments[0]
    quiet = {"log_level": "CRITICAL", "enable_access_log": False}  # the replicas log everything themselves
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
        ray.serve.run(replica.bind(*arguments), name=NAME)
    except _errors(ray) as error:
        raise NotReady(f"The replicas did not start: {_reason(ray, error)}") from error


def _reason(ray: Any, error: Exception) -> str:
    """Return the last line of Ray's message about the replicas, or of the error if there is none."""
    try:
        message = ray.serve.status().applications[NAME].deployments[NAME].message
    except (KeyError, *_errors(ray)):  # it failed before the deployment existed
        message = ""
    lines = (message.strip() or str(error).strip() or type(error).__name__).splitlines()
    return lines[-1].split(": ", 1)[-1]


def _drain_s(settings: Settings) -> int:
    """Return the seconds that a replica has to answer its requests at shutdown."""
    return math.ceil(settings.deadline_s) + GRACE_S


def _drain(ray: Any, seconds: float) -> None:
    """Return when the replicas have answered their requests, or Ray has killed them after these seconds."""
    with _logging_errors(ray, "cannot close event streams, so the drain waits for them"):
        responses = ray.serve.get_app_handle(NAME).broadcast(Replica.close_streams.__name__)
        responses.results(timeout_s=CLOSE_STREAMS_S, return_exceptions=True)
    with _logging_errors(ray, "cannot stop the replicas"):
        ray.serve.delete(NAME, _blocking=False)  # a blocking call gives up after 60 s
        end = time.monotonic() + seconds + GRACE_S
        while NAME in ray.serve.status().applications:
            if time.monotonic() > end:
                raise TimeoutError(f"they still run after {seconds + GRACE_S:.0f} s")
            time.sleep(POLL_S)


@contextmanager
def _logging_errors(ray: Any, what: str) -> Iterator[None]:
    """Log errors of Ray at shutdown, and continue: the remaining steps must run anyway."""
    try:
        yield
    except _errors(ray) as error:
        log.warning("%s (%s)", what, _first_line(error))


def _errors(ray: Any) -> tuple[type[Exception], ...]:
    """Return the exceptions that Ray raises, which have no common base class."""
    return (RuntimeError, OSError, ValueError, ray.exceptions.RayError, ray.serve.exceptions.RayServeException)


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).partition("\n")[0].rstrip(".")
