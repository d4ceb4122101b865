"""Rates: token buckets compared with a simulation, and limits over REST."""

import asyncio
import random

import pytest
from access_control_requests import READER, WRITER, ask, bearer, control_of

from nnclr_hub.errors import RateLimited
from serving.edge import limits
from serving.edge.limits import Allowance
from serving.security.authentication import REMEMBERED, TokenBuckets, caller_of
from serving.settings import Settings


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_bucket_agrees_with_a_simulation():
    """The simulation adds a token every 60 / rate seconds, second by second."""
    clock, generator = Clock(), random.Random(0)
    buckets, tokens = TokenBuckets(30, clock=clock), 30.0
    for _ in range(2000):
        seconds = generator.choice([0, 0, 1, 5])
        clock.now += seconds
        for _ in range(seconds):
            tokens = min(30.0, tokens + 0.5)
        count = generator.randint(1, 4)
        wait = buckets.take("a", count)
        if tokens >= count:
            assert wait == 0
            tokens -= count
        else:
            assert wait == pytest.approx((count - tokens) / 0.5)


def test_after_the_reported_wait_there_are_enough_tokens():
    clock = Clock()
    buckets = TokenBuckets(60, clock=clock)
    assert [buckets.take("a", 20) for _ in range(3)] == [0, 0, 0]
    wait = buckets.take("a", 30)
    clock.now += wait - 0.01
    assert buckets.take("a", 30) > 0
    clock.now += 0.02
    assert buckets.take("a", 30) == 0
    assert buckets.take("b", 30) == 0, "each caller has its own bucket"


def test_the_memory_for_callers_is_bounded():
    buckets = TokenBuckets(10)
    for i in range(REMEMBERED + 100):
        buckets.take(str(i))
    assert len(buckets) == REMEMBERED


def test_all_addresses_of_an_ipv6_network_are_one_caller():
    assert caller_of(("2001:db8::1", 1)) == caller_of(("2001:db8::ffff:1", 9)) == "2001:db8::/64"
    assert caller_of(("2001:db8:0:1::1", 1)) != caller_of(("2001:db8::1", 1))
    assert caller_of(("::ffff:192.0.2.1", 1)) == caller_of(("192.0.2.1", 2)) == "192.0.2.1"
    assert caller_of(None) == caller_of(("unix socket\r\n", 0)) == "unknown"


def test_images_count_against_the_current_request_only():
    allowance = Allowance("a", TokenBuckets(0), TokenBuckets(10))

    async def request() -> None:
        limits.use(allowance)
        await asyncio.to_thread(limits.charge_images, 10)
        with pytest.raises(RateLimited, match="10 images"):
            await asyncio.to_thread(limits.charge_images, 1)

    asyncio.run(request())
    limits.charge_images(1000)


def test_requests_are_limited_for_each_key():
    control = control_of(Settings(api_keys=(f"phone:{READER}",), write_keys=(f"ci:{WRITER}",), rate_requests=3))
    answers = [ask(control, "/v1/models", client=f"192.0.2.{i}", **bearer(READER)) for i in range(4)]
    assert [answer.status for answer in answers] == [200, 200, 200, 429]
    assert [answer.headers["x-ratelimit-remaining-requests"] for answer in answers] == ["2", "1", "0", "0"]
    assert answers[0].headers["x-ratelimit-limit-requests"] == "3"
    assert 1 <= int(answers[3].headers["retry-after"]) <= 20
    assert b'"code":"rate_limited"' in answers[3].body
    assert ask(control, "/v1/models", **bearer(WRITER)).status == 200
    assert ask(control, "/healthz").status == 200


def test_without_keys_the_address_is_limited():
    control = control_of(Settings(rate_requests=2))
    answers = [ask(control, "/v1/models", client=client).status for client in ("192.0.2.1",) * 3 + ("192.0.2.2",)]
    assert answers == [200, 200, 429, 200]


def test_many_wrong_keys_block_an_address_but_never_a_right_key():
    """Also one that was not used before: after a restart, or by another client behind the same address."""
    control = control_of(Settings(api_keys=(READER, f"new:{WRITER}")))
    statuses = [ask(control, "/v1/models", **bearer(f"guess-{i}")).status for i in range(25)]
    assert statuses == [401] * 20 + [429] * 5
    assert [ask(control, "/v1/models", **bearer(key)).status for key in (WRITER, READER)] == [200, 200]
    assert ask(control, "/v1/models", client="192.0.2.9", **bearer("guess")).status == 401
    assert ask(control, "/v1/models").status == 401, "a request without a key is not a guess"


def test_images_are_limited_over_rest(model, tmp_path, serve, image_files):
    import httpx

    one = [("files", ("a.jpg", image_files[0].read_bytes(), "image/jpeg"))]
    for server in serve(model, tmp_path / "store", rate_images=1, max_images=4):
        with httpx.Client(base_url=server.url, timeout=120) as client:
            first = client.post("/api/v1/embed", files=one * 3)
            assert first.status_code == 200
            assert first.headers["x-ratelimit-remaining-images"] == "1"
            second = client.post("/api/v1/embed", files=one * 3)
            assert (second.status_code, second.json()["code"]) == (429, "rate_limited")
            assert int(second.headers["retry-after"]) > 60
            assert client.post("/api/v1/embed", files=one).status_code == 200
            client.put("/api/v1/collections/c", json={})
            assert client.post("/api/v1/collections/c/items", files=one).status_code == 429
            assert client.get("/api/v1/collections/c").json()["count"] == 0
