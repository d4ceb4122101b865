"""The connection to Milvus: a time limit on every call, retries, and translation of every failure."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import unquote, urlsplit

from nnclr_hub.errors import (
    CollectionNotFound,
    InvalidRequest,
    MissingDependency,
    StoreError,
    StoreLocked,
    StoreReadOnly,
    StoreUnreachable,
)

CONNECT_TIMEOUT = 8.0
READ_TIMEOUT = 10.0
WRITE_TIMEOUT = 30.0
# building an index, loading a collection, flushing
SLOW_TIMEOUT = 300.0
# a server that has just started answers, but cannot use its collections yet
_PAUSES = (0.1, 0.3, 1.0, 3.0, 5.0)
# by default gRPC waits up to two minutes before it reconnects to a server, and all channels to one address wait
# together
_RECONNECTING = {
    "grpc.initial_reconnect_backoff_ms": 100,
    "grpc.min_reconnect_backoff_ms": 100,
    "grpc.max_reconnect_backoff_ms": 1000,
    "grpc.use_local_subchannel_pool": 1,
}
# seconds for which a call is retried
_RETRY_SECONDS = 9.0
# calls that write to the log of Milvus Lite, which two threads must not do at once: one of two rows would be lost by a
# crash, although both are acknowledged
_LOGGED = frozenset({"upsert", "delete", "flush", "drop_collection", "rename_collection"})
_CONNECT_FAILED, _NOT_FOUND, _NOT_LOADED = 2, 100, 101
_STARTING = ("not fully loaded", "not ready", "no available", "not available", "lack", "is not healthy", "not serving")


def import_pymilvus() -> ModuleType:
    """Import pymilvus, which takes a second.

    Raises:
        MissingDependency: it is not installed.
    """
    try:
        import pymilvus
    except ModuleNotFoundError as error:
        raise MissingDependency(
            "A store in Milvus needs the package pymilvus, which is not installed: pip install 'nnclr_hub[scale]'."
        ) from error
    # it logs each failure with a traceback before it raises
    logging.getLogger("pymilvus").setLevel(logging.CRITICAL)
    return pymilvus


class Connection:
    """A connection to a Milvus server, or to a Milvus Lite file with a server in this process.

    Args:
        uri: milvus://[user:password@]host:port[/database], or a path that ends in .milvus.db.
        create: whether a file may be created.

    Raises:
        InvalidRequest: the URI is invalid; or the file does not exist, and create is False.
        StoreUnreachable: nothing answers there.
        StoreLocked: another process has the file open.
        MissingDependency: pymilvus is not installed.
    """

    def __init__(self, uri: str, *, create: bool = True) -> None:
        self.pymilvus = import_pymilvus()
        self._file: Path | None = None
        self._log_lock: AbstractContextManager[Any] = nullcontext()
        self._closed = False
        if uri.startswith("milvus://"):
            address, options = _parsed(uri)
            self.name = f"milvus://{address}" + (f"/{options['db_name']}" if options["db_name"] else "")
        else:
            path = Path(uri)
            self.name = str(path)
            port, self._log_lock = _lite.start(path, create=create)
            address, options = f"127.0.0.1:{port}", {}
            self._file = path
        try:
            self.client: Any = self._guarded(
                "connect",
                lambda: self.pymilvus.MilvusClient(
                    uri=f"http://{address}",
                    dedicated=True,
                    timeout=CONNECT_TIMEOUT,
                    grpc_options=_RECONNECTING,
                    **options,
                ),
            )
            version = self.call("get_server_version")
        except BaseException:
            if self._file is not None:
                _lite.stop(self._file)
            raise
        # the standalone server of the package `milvus` calls itself v2.3.5-lite, Milvus Lite milvus_lite-3.2.2
        self.is_lite = version.startswith("milvus_lite")

    def call(self, method: str, *args: Any, timeout: float | None = None, **options: Any) -> Any:
        """Call a method of pymilvus's client with a time limit.

        All calls here can be repeated safely: reads, upserts and deletes by id, and steps that check whether they are
        done. pymilvus repeats them while the server cannot be reached and time remains. This method repeats them while
        a server that has just started has not loaded its collections.

        Raises:
            StoreUnreachable: no answer in time.
            CollectionNotFound: another client has dropped the collection.
            StoreError: the server refuses, with its reason.
        """
        if self._closed:
            raise StoreReadOnly(f"The store {self.name} is closed; open it again.")
        limit = READ_TIMEOUT if timeout is None else timeout
        with self._log_lock if method in _LOGGED else nullcontext():
            return self._guarded(method, lambda: getattr(self.client, method)(*args, timeout=limit, **options), args)

    @property
    def is_file(self) -> bool:
        """Whether this is a Milvus Lite file, served by this process."""
        return self._file is not None

    def close(self) -> None:
        """Close the connection, and stop the file's server if nothing else in this process uses it."""
        if self._closed:
            return
        self._closed = True
        self.client.close()
        if self._file is not None:
            _lite.stop(self._file)

    # ---- inside

    def _guarded(self, method: str, attempt: Callable[[], Any], args: tuple[Any, ...] = ()) -> Any:
        import grpc

        begun = time.monotonic()
        pauses = iter(_PAUSES)
        while True:
            try:
                return attempt()
            except (self.pymilvus.MilvusException, grpc.RpcError, grpc.FutureTimeoutError, ValueError) as error:
                fault = _fault(error)
                pause = next(pauses, None)
                # a first connection fails at once, because the address is probably wrong
                retry = fault in ("starting", "unloaded") or (fault == "unreachable" and method != "connect")
                if pause is None or not retry or time.monotonic() - begun + pause > _RETRY_SECONDS:
                    raise self._translated(method, fault, error) from error
                time.sleep(pause)
                if fault == "unloaded":  # after a restart Milvus Lite no longer knows which collections were loaded
                    self._guarded("load", lambda: self.client.load_collection(args[0], timeout=WRITE_TIMEOUT))

    def _translated(self, method: str, fault: str, error: Exception) -> StoreError:
        text = " ".join(str(getattr(error, "message", error)).split())
        if fault == "slow":
            return StoreUnreachable(
                f"Milvus at {self.name} did not answer `{method}` in time; check whether it is overloaded, and repeat "
                "the request. Upserts and deletes can be repeated safely."
            )
        if fault == "unreachable" and method == "connect":  # nothing has been sent yet that could be lost
            return StoreUnreachable(
                f"Milvus at {self.name} cannot be reached; start it, or correct the address, milvus://HOST:PORT."
            )
        if fault == "unreachable":
            return StoreUnreachable(
                f"Milvus at {self.name} cannot be reached; start it, or correct the address. Acknowledged changes are "
                "not lost, and upserts and deletes can be repeated safely."
            )
        if fault == "not milvus":
            return StoreUnreachable(f"The server at {self.name} is not Milvus; give the address of its gRPC port.")
        if fault == "starting":
            return StoreUnreachable(f"Milvus at {self.name} has started, but is not ready ({text:.300}); retry later.")
        if fault == "not found":
            return CollectionNotFound(f"Milvus at {self.name} no longer has that collection; open it again by name.")
        return StoreError(f"Milvus at {self.name} refuses `{method}`: {text:.300}")


def _fault(error: Exception) -> str:
    """Classify a failure: unreachable, slow, not milvus, starting, unloaded, not found, or else refused."""
    import grpc

    text = str(getattr(error, "message", error))
    code = getattr(error, "code", None)
    code = code() if callable(code) else code
    if code is grpc.StatusCode.DEADLINE_EXCEEDED or "DEADLINE_EXCEEDED" in text or "timeout" in text:
        return "slow"
    if code is grpc.StatusCode.UNIMPLEMENTED or "UNIMPLEMENTED" in text:
        return "not milvus"
    if isinstance(code, grpc.StatusCode) or isinstance(error, grpc.FutureTimeoutError | ValueError):
        return "unreachable"
    if code == _CONNECT_FAILED or "UNAVAILABLE" in text:
        return "unreachable"
    if code == _NOT_FOUND:
        return "not found"
    if code == _NOT_LOADED or "not loaded" in text:
        return "unloaded"
    return "starting" if any(sign in text for sign in _STARTING) else "refused"


def _parsed(uri: str) -> tuple[str, dict[str, str]]:
    """Return the address, and database, user and password."""
    try:
        parts = urlsplit(uri)
        port = parts.port or 19530
    except ValueError:
        parts, port = None, 0
    database = parts.path.strip("/") if parts else ""
    if parts is None or not parts.hostname or "/" in database or parts.query or parts.fragment:
        raise InvalidRequest(
            f"{_without_password(uri)!r} is not a valid address of Milvus; expected milvus://HOST:PORT, with /DATABASE "
            "and USER:PASSWORD@ if the server needs them."
        )
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    user, password = unquote(parts.username or ""), unquote(parts.password or "")
    return f"{host}:{port}", {"db_name": database, "user": user, "password": password}


def _without_password(uri: str) -> str:
    scheme, _, rest = uri.partition("://")
    return f"{scheme}://{rest.rpartition('@')[2]}"


class _LiteServers:
    """The servers of Milvus Lite, which run in threads of this process: one per file, shared by all its stores."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: dict[Path, tuple[Any, Any, int, threading.Lock, int]] = {}

    def start(self, path: Path, *, create: bool) -> tuple[int, threading.Lock]:
        """Start the file's server if it is not running; return its port and the lock for writing to its log."""
        try:
            from milvus_lite.adapter.grpc.server import start_server_in_thread
            from milvus_lite.exceptions import DataDirLockedError, MilvusLiteError
        except ModuleNotFoundError as error:
            raise MissingDependency(
                f"The store {path} needs the package milvus-lite, which is not installed: "
                "pip install 'nnclr_hub[scale]'."
            ) from error
        key = path.absolute()
        with self._lock:
            if key in self._running:
                server, database, port, lock, users = self._running[key]
                self._running[key] = (server, database, port, lock, users + 1)
                return port, lock
            if not create and not key.exists():
                raise InvalidRequest(f"{path} is not a store; index images first, or name another store.")
            try:
                server, database, port = start_server_in_thread(str(key))
            except DataDirLockedError as error:
                raise StoreLocked(
                    f"Another process has the store {path} open; stop it, or send your request to that server."
                ) from error
            except (MilvusLiteError, OSError) as error:
                raise StoreError(
                    f"The store {path} cannot be opened ({error}); choose a file that can be written."
                ) from error
            self._running[key] = (server, database, port, lock := threading.Lock(), 1)
            return port, lock

    def stop(self, path: Path) -> None:
        """Stop the file's server when its last user stops it."""
        key = path.absolute()
        with self._lock:
            server, database, port, lock, users = self._running[key]
            if users > 1:
                self._running[key] = (server, database, port, lock, users - 1)
                return
            del self._running[key]
            server.stop(grace=2).wait()
            database.close()


_lite = _LiteServers()
