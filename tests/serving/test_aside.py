"""Large bodies are worked on beside the event loop."""

import asyncio
import base64
import threading

import numpy as np

from serving.aside import LARGE, aside


def on_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def test_work_on_many_bytes_goes_to_a_thread():
    async def ask() -> None:
        assert await aside(LARGE, threading.get_ident) == threading.get_ident()
        assert await aside(LARGE + 1, threading.get_ident) != threading.get_ident()

    asyncio.run(ask())


def test_nothing_is_done_with_a_large_body_on_the_event_loop(client, collection, monkeypatch):
    seen: list[tuple[str, bool]] = []

    def watch(target: str) -> None:
        module, _, name = target.rpartition(".")
        work = getattr(__import__(module, fromlist=[name]), name)

        def watched(*arguments, **named):
            seen.append((name, on_a_loop()))
            return work(*arguments, **named)

        monkeypatch.setattr(target, watched)

    watch("serving.uploads.parse")
    watch("serving.uploads.decode_text")
    watch("serving.routes.items._named")
    watch("serving.idempotency._print")
    noise = base64.b64encode(np.random.default_rng(0).bytes(LARGE + 1)).decode()
    once = {"Idempotency-Key": "noise"}
    assert client.post(f"{collection}/items", json={"items": [{"image": noise}]}, headers=once).status_code == 422
    vectors = [{"id": f"i{i}", "vector": [0.123456789] * 32} for i in range(1000)]
    assert client.put(f"{collection}/items", json=vectors).status_code == 200
    assert {name for name, _ in seen} == {"parse", "decode_text", "_named", "_print"}
    assert not any(on for _, on in seen), seen
