"""AsyncClient: the methods of `Client` as coroutines. Each runs in a thread, of which there are as many as connections.

    async with AsyncClient("http://127.0.0.1:8000") as client:
        vectors = await client.embed(["cat.jpg", "dog.jpg"])
        matches = await client.collection("photos").search(vectors[0])

docs/decisions/0033-async-client.md says why the methods are not written twice.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from functools import partial, wraps
from inspect import isgeneratorfunction
from typing import Any, Self

from nnclr_hub.client.client import TIMEOUT_S, Client

THREADS = 64


class _Awaited:
    """An object whose methods are awaited."""

    def __init__(self, blocking: Any, pool: ThreadPoolExecutor) -> None:
        self._blocking, self._pool = blocking, pool

    def __repr__(self) -> str:
        return f"Async{self._blocking!r}"

    def __dir__(self) -> list[str]:
        return [name for name in dir(self._blocking) if not name.startswith("_")]

    def __getattr__(self, name: str) -> Any:
        if name == "name":
            return self._blocking.name
        method = getattr(type(self._blocking), name, None)  # not of the object: its properties make requests
        # a generator would make its requests outside of the threads
        if name.startswith("_") or not callable(method) or isgeneratorfunction(method):
            raise AttributeError(f"{self!r} has no method {name!r}.")

        @wraps(getattr(self._blocking, name))
        async def awaited(*args: Any, **kwargs: Any) -> Any:
            call = partial(method, self._blocking, *args, **kwargs)
            return await asyncio.get_running_loop().run_in_executor(self._pool, call)

        return awaited


class AsyncClient(_Awaited):
    """A server, for asyncio. The arguments and the methods are those of `Client`, and each method is awaited."""

    def __init__(
        self, url: str = "http://127.0.0.1:8000", api_key: str | None = None, timeout: float = TIMEOUT_S
    ) -> None:
        pool = ThreadPoolExecutor(THREADS, thread_name_prefix="nnclr-async-client")
        super().__init__(Client(url, api_key, timeout), pool)
        self.store = _Awaited(self._blocking.store, pool)
        self.probes = _Awaited(self._blocking.probes, pool)
        self.jobs = _Awaited(self._blocking.jobs, pool)

    def collection(self, name: str) -> _Awaited:
        """Return the collection of that name or alias. The first call fails if it does not exist."""
        return _Awaited(self._blocking.collection(name), self._pool)

    async def close(self) -> None:
        """Close the connections."""
        self._blocking.close()
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()
