"""Replicas without Ray: health, resources, settings, drain, and the proxy; test_ray_serve.py runs real ones."""

import asyncio
import math
import pickle
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import httpx
import pytest
from prometheus_client import generate_latest
from starlette.responses import PlainTextResponse, Response
from typer.testing import CliRunner

from nnclr_hub.cli.app import app as cli
from nnclr_hub.client.transport import Answer, error_of
from nnclr_hub.errors import InvalidRequest, NotReady, Overloaded, ServerUnreachable
from nnclr_hub.store import open_store
from serving.ray_serve import NAME, LabeledRegistry, ProxyResponses, Replica, deployed, share
from serving.readiness import Readiness
from serving.settings import Settings
from serving.telemetry import Metrics

# ---- replicas without Ray: health, resources, settings, drain; test_ray_serve.py runs real ones


READY = Readiness(
    status="ready",
    detail=None,
    read_only=False,
    model_warm=True,
    threads_alive=True,
    collections_loaded=0,
    collections_total=0,
    collection_states={},
)


def checked(*reports: Readiness) -> None:
    """Call the health check of a replica whose readiness has these reports, one after another."""
    reports_left = iter(reports)
    state = SimpleNamespace(readiness=SimpleNamespace(report=lambda: next(reports_left)))
    asyncio.run(Replica.check_health(SimpleNamespace(_app=SimpleNamespace(state=state))))  # type: ignore[arg-type]


def test_a_replica_is_healthy_once_it_is_ready():
    loading = READY.model_copy(update={"status": "loading"})
    checked(READY)
    checked(loading, loading, READY)
    for status in ("failed", "ill"):
        with pytest.raises(NotReady, match="stalled"):
            checked(loading, READY.model_copy(update={"status": status, "detail": "the device thread has stalled"}))


@pytest.mark.parametrize(
    ("machines", "replicas", "cores", "gpu"),
    [
        ([(2, 0)], 2, 1, 0),
        ([(2, 0)], 3, 1, 0),  # more replicas than cores: one core each, and Ray waits for machines
        ([(64, 0)], 3, 21, 0),
        ([(5, 0), (5, 0)], 3, 2, 0),  # with three cores each, the third replica would not fit
        ([(8, 1)], 1, 8, 1),
        ([(8, 1)], 4, 2, 0.25),
        ([(16, 2)], 3, 5, 0.5),
        ([(64, 0), (8, 2)], 2, 4, 1),  # on the machine with the GPUs, not on the one with the cores
    ],
)
def test_each_replica_gets_the_most_with_which_all_fit(machines, replicas, cores, gpu):
    found = share([{"CPU": float(cpu), "GPU": float(gpus)} for cpu, gpus in machines], replicas)
    assert found == {"num_cpus": cores, "num_gpus": gpu}


def test_metrics_name_their_replica():
    metrics = Metrics()
    metrics.images.labels("m", "embedded").inc(3)
    text = generate_latest(LabeledRegistry(metrics.registry, replica="one")).decode()
    assert 'nnclr_images_total{model="m",outcome="embedded",replica="one"} 3.0' in text
    assert 'nnclr_images_in_work{replica="one"} 0.0' in text


def test_settings_for_other_machines_contain_hashes_of_the_keys(tmp_path):
    secret, other = "f3c19ab7e2d40586f3c1", "0586e2d49ab7f3c10586"
    file = tmp_path / "keys"
    file.write_text(f"read phone:{secret}\nwrite ci:{other}\n")
    sent = Settings(keys_file=file).portable()
    file.unlink()  # other machines do not have it
    assert not [one for one in (secret, other) if one.encode() in pickle.dumps(sent)]
    keys = sent.keys()
    assert {(key.name, key.scopes) for key in (keys.find(secret), keys.find(other)) if key} == {
        ("phone", ("read",)),
        ("ci", ("read", "write")),
    }


class RayError(Exception):
    """The base class of errors in the fake Ray."""


class Cluster:
    """A fake of ray and ray.serve that records calls.

    Args:
        fails: the calls that raise, and what.
        lasting: number of status calls until a deleted application disappears.
        message: of the deployment; None if there is no deployment.
    """

    def __init__(self, fails: dict[str, Exception] | None = None, lasting: float = 2, message: str | None = "") -> None:
        self.calls: list[str] = []
        self.sent: tuple[Any, ...] = ()
        self._fails, self._lasting, self._message = fails or {}, lasting, message
        self.exceptions = SimpleNamespace(RayError=RayError)
        self.util = SimpleNamespace(list_named_actors=lambda all_namespaces: [])
        self.serve = SimpleNamespace(
            exceptions=SimpleNamespace(RayServeException=RayError),
            start=self._noted("start"),
            ingress=lambda: lambda cls: cls,
            deployment=lambda cls: SimpleNamespace(options=lambda **given: SimpleNamespace(bind=self._bind)),
            run=self._noted("run"),
            get_app_handle=lambda name: SimpleNamespace(broadcast=self._broadcast),
            delete=self._noted("delete"),
            status=self._status,
            shutdown=self._noted("serve.shutdown"),
        )
        self.init, self.shutdown = self._noted("init"), self._noted("shutdown")

    def nodes(self) -> list[dict[str, Any]]:
        return [{"Alive": True, "Resources": {"CPU": 2.0}}]

    def _noted(self, name: str) -> Callable[..., None]:
        def call(*_: Any, **__: Any) -> None:
            self.calls.append(name)
            if name in self._fails:
                raise self._fails[name]

        return call

    def _bind(self, *given: Any) -> None:
        self.sent = given

    def _broadcast(self, method: str) -> SimpleNamespace:
        return SimpleNamespace(results=self._noted(method))

    def _status(self) -> SimpleNamespace:
        if "delete" in self.calls:
            self._lasting -= 1
        there = self._message is not None and self._lasting > 0
        about = SimpleNamespace(deployments={NAME: SimpleNamespace(message=self._message)})
        return SimpleNamespace(applications={NAME: about} if there else {})


@pytest.fixture
def stand_in(monkeypatch) -> Callable[..., Cluster]:
    """Return a function that replaces the package ray by a fake cluster."""
    monkeypatch.setenv("RAY_DEDUP_LOGS", "0")  # the command sets both; monkeypatch restores them
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")

    def put(**given: Any) -> Cluster:
        cluster = Cluster(**given)
        monkeypatch.setitem(sys.modules, "ray", cluster)
        monkeypatch.setitem(sys.modules, "ray.serve", cluster.serve)
        return cluster

    return put


def deploy(store: Path, *, model: str | None = None, address: str | None = "auto", deadline_s: float = 30.0) -> None:
    with deployed(Settings(deadline_s=deadline_s), str(store), model, replicas=1, address=address):
        pass


def test_a_drain_closes_streams_first_and_waits_for_the_replicas(stand_in, tmp_path):
    cluster = stand_in(lasting=3)
    deploy(tmp_path / "store")
    assert cluster.calls == ["init", "start", "run", "close_streams", "delete", "serve.shutdown", "shutdown"]
    assert NAME not in cluster.serve.status().applications


@pytest.mark.parametrize("fails", [{}, {"close_streams": TimeoutError("x")}, {"delete": RayError("x")}])
def test_a_drain_that_fails_or_takes_too_long_is_logged_and_ray_serve_shuts_down(
    stand_in, tmp_path, monkeypatch, caplog, fails
):
    monkeypatch.setattr("serving.ray_serve.GRACE_S", 0)
    cluster = stand_in(fails=fails, lasting=math.inf)
    deploy(tmp_path / "store", deadline_s=0.5)  # rounded up to 1 s
    assert cluster.calls[-2:] == ["serve.shutdown", "shutdown"]
    assert caplog.messages
    assert ("TimeoutError" in caplog.text or "after 1 s" in caplog.text) == ("delete" not in fails)


@pytest.mark.parametrize(
    ("fails", "message", "reason"),
    [
        ({"start": RayError("no proxy came up")}, None, "no proxy came up"),
        ({"run": RuntimeError("Deploying failed")}, None, "Deploying failed"),
        ({"run": RuntimeError("Deploying failed")}, "Traceback\nNotReady: out of memory", "out of memory"),
        ({"start": RayError("the first"), "serve.shutdown": RayError("the second")}, None, "the first"),
    ],
)
def test_a_failed_start_reports_the_reason_and_cleans_up(stand_in, tmp_path, fails, message, reason):
    cluster = stand_in(fails=fails, message=message)
    with pytest.raises(NotReady, match=reason):
        deploy(tmp_path / "store")
    assert "delete" not in cluster.calls, "there was nothing to delete"
    assert cluster.calls[-2:] == ["serve.shutdown", "shutdown"]


def test_replicas_get_absolute_paths_of_store_and_model(stand_in, model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(model, tmp_path / "weights" / "x")
    for source in ("weights/x", "local-dir:weights/x", "weights/x/model.safetensors"):
        cluster = stand_in()
        deploy(Path("store"), model=source, address=None)
        _, store, sent, *_ = cluster.sent
        assert store == str(tmp_path / "store")
        assert str(tmp_path / "weights" / "x") in sent
        assert "serve.shutdown" not in cluster.calls, "Ray Serve ends with its cluster"


def test_a_store_for_one_process_is_refused_with_alternatives_for_several(stand_in, tmp_path):
    stand_in()
    folder = tmp_path / "store"
    flags = ["serve", "--store", str(folder), "--model", "random:test_resnet", "--port", "0", "--replicas", "2"]
    refused = CliRunner().invoke(cli, flags)
    assert refused.exit_code == 2, refused.output
    assert "--read-only" in refused.output
    assert "milvus://HOST:PORT" in refused.output
    assert not folder.exists()
    open_store(str(folder)).close()
    open_store(str(folder), read_only=True, shared=True).close()
    with pytest.raises(InvalidRequest, match="Milvus server"):
        open_store(str(tmp_path / "x.milvus.db"), read_only=True, shared=True)


def test_without_ray_the_error_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.setenv("RAY_DEDUP_LOGS", "0")  # the command sets both; monkeypatch restores them
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    store = tmp_path / "store"
    flags = ["serve", "--store", str(store), "--model", "random:test_resnet", "--port", "0", "--replicas", "1"]
    refused = CliRunner().invoke(cli, flags)
    assert refused.exit_code == 1, refused.output
    assert "pip install 'nnclr_hub[scale]'" in " ".join(refused.output.split())
    assert not store.exists(), "the command created a store although it failed"


# ---- what clients get where Ray's proxy answers in place of a replica


def response_of(app, path: str = "/api/v1/embed", **headers: str) -> httpx.Response:
    """Get the response of an app behind the proxy layer."""

    async def get() -> httpx.Response:
        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(ProxyResponses(app)), base_url="http://here"
        ) as client:
            return await client.get(path, headers=headers)

    return anyio.run(get)


async def died(scope, receive, send) -> None:
    """Return without a response, as Ray's proxy does when a replica dies."""


@pytest.mark.parametrize(
    ("app", "status", "kind"),
    [
        (died, 503, ServerUnreachable),
        (PlainTextResponse("Request dropped due to backpressure", 429), 429, Overloaded),
        (PlainTextResponse("Request dropped due to backpressure", 503), 503, NotReady),
        (PlainTextResponse("Path '/x' not found. Ping http://.../-/routes", 404), 503, NotReady),
    ],
)
def test_errors_of_the_proxy_are_problems_that_ask_for_a_retry(app, status, kind):
    response = response_of(app)
    assert (response.status_code, response.headers["retry-after"]) == (status, "1")
    assert response.headers["content-type"] == "application/problem+json"
    assert int(response.headers["content-length"]) == len(response.content)
    error = error_of(Answer("http://here", status, response.headers, response.content))
    assert type(error) is kind
    assert "Ray" not in str(error)
    openai = response_of(app, "/v1/embeddings").json()["error"]
    assert (openai["code"], openai["message"]) == (kind.code, str(error))


def test_a_response_of_a_replica_passes_with_a_single_request_id():
    for status in (200, 404, 429, 503):
        answer = Response(b"body", status, {"server-timing": "total;dur=1", "x-request-id": "a"})
        answer.headers.append("x-request-id", "a")
        response = response_of(answer)
        assert (response.status_code, response.content) == (status, b"body")
        assert response.headers.get_list("x-request-id") == ["a"]


def test_the_routes_of_ray_pass():
    assert response_of(PlainTextResponse("success"), "/-/healthz").text == "success"


@pytest.mark.parametrize("offer", ["websocket", "h2c"])
def test_an_offer_to_change_the_protocol_closes_the_connection(offer):
    """The parser of Ray's proxy would execute the body as the next request of this connection."""
    response = response_of(PlainTextResponse("never reached"), upgrade=offer, connection="upgrade")
    assert (response.status_code, response.json()["code"]) == (400, "invalid_request")
    assert response.headers["connection"] == "close"
