"""Replicas without Ray: health, resources, settings, and the proxy; test_ray_serve.py runs real ones."""

import asyncio
import pickle
import sys
from types import SimpleNamespace

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
from serving.ray_serve import LabeledRegistry, ProxyResponses, Replica, share
from serving.readiness import Readiness
from serving.settings import Settings
from serving.telemetry import Metrics

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


@pytest.fixture(autouse=True)
def environment(monkeypatch) -> None:
    """The command sets both variables; monkeypatch restores them."""
    monkeypatch.setenv("RAY_DEDUP_LOGS", "0")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")


def test_a_store_for_one_process_is_refused_with_alternatives_for_several(tmp_path, monkeypatch):
    for package in ("ray", "ray.serve"):
        monkeypatch.setitem(sys.modules, package, SimpleNamespace(serve=None))
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
