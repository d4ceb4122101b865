"""The connection to Milvus: addresses, names, a time limit on every call, retries, and translation of every failure."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

from nnclr_hub.errors import (
    CollectionNotFound,
    InvalidRequest,
    MissingDependency,
    NNCLRHubError,
    StoreClosed,
    StoreError,
    StoreLocked,
    StoreUnreachable,
)

CONNECT_TIMEOUT = 8.0
READ_TIMEOUT = 10.0
WRITE_TIMEOUT = 30.0
SLOW_TIMEOUT = 300.0  # building an index, loading a collection, flushing
ADDRESS = "milvus://HOST:PORT/DATABASE, or milvus+tls:// for a server with TLS"
# parameters of an index that an address may set, as Milvus calls them
INDEX_PARAMETERS = ("M", "efConstruction", "nlist", "m", "nbits")
# by default gRPC waits up to two minutes before it reconnects, and all channels to one address wait together
RECONNECTING = {
    "grpc.initial_reconnect_backoff_ms": 100,
    "grpc.min_reconnect_backoff_ms": 100,
    "grpc.max_reconnect_backoff_ms": 1000,
    "grpc.use_local_subchannel_pool": 1,
}
PREFIX = "nnclr_"  # before the names of our collections in Milvus
MAX_NAME = 255  # Milvus's limit
SAFE = " Upserts and deletes can be repeated safely."
# what an error contains (its type, code and texts), and what it means
FAULTS: tuple[tuple[str, type[NNCLRHubError], str], ...] = (
    ("UNAUTHENTICATED", InvalidRequest, "refuses the user, password or token; correct them in the address."),
    (
        "DEADLINE_EXCEEDED|timeout",
        StoreUnreachable,
        f"did not answer `{{method}}` in time; check whether it is overloaded, and repeat the request.{SAFE}",
    ),
    ("UNIMPLEMENTED", StoreUnreachable, f"is not Milvus; give the address of its gRPC port ({ADDRESS})."),
    (
        r"\(800\)|database not found",
        InvalidRequest,
        "has no database {database!r}; create it there, or leave it out of the address.",
    ),
    (
        r"\(2\)|UNAVAILABLE|StatusCode|FutureTimeoutError|ValueError",
        StoreUnreachable,
        f"cannot be reached; start it, or correct the address ({ADDRESS}).{SAFE}",
    ),
    (r"\(100\)", CollectionNotFound, "no longer has that collection; open it again by name."),
    (
        r"\(101\)|not (fully )?loaded|not ready|no available|not available|lack|is not healthy|not serving",
        StoreUnreachable,
        f"has started, but is not ready ({{text}}); repeat the request in some seconds.{SAFE}",
    ),
    ("", StoreError, "refuses `{method}`: {text}"),
)


class Address(NamedTuple):
    """Where a server is."""

    name: str  # the address without secrets
    uri: str  # for pymilvus, http://HOST:PORT or https://HOST:PORT
    database: str = ""  # "" for the default one
    secrets: Mapping[str, str] = {}  # user, password and token
    parameters: Mapping[str, int] = {}  # for the indexes of new collections


def parse_address(text: str) -> Address:
    """Read milvus[+tls]://[user:password@]host[:port][/database][?token=...&M=32]."""
    try:
        parts = urlsplit(text)
        port = parts.port or 19530
        query = dict(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query)))
        token = query.pop("token", "")
        parameters = {name: int(value) for name, value in query.items()}
    except ValueError:
        parts, port, token, parameters = urlsplit("milvus://"), 0, "", {}
    database = parts.path.strip("/")
    if not parts.hostname or "/" in database or parts.fragment or parameters.keys() - set(INDEX_PARAMETERS):
        scheme, _, rest = text.partition("://")
        raise InvalidRequest(
            f"'{scheme}://{rest.partition('?')[0].rpartition('@')[2]}' is not a valid address of Milvus; expected "
            f"{ADDRESS}, with USER:PASSWORD@ or ?token=TOKEN if it needs them. Index parameters are whole numbers: "
            f"{', '.join(INDEX_PARAMETERS)}."
        )
    host = f"[{parts.hostname}]:{port}" if ":" in parts.hostname else f"{parts.hostname}:{port}"
    secrets = {"user": unquote(parts.username or ""), "password": unquote(parts.password or ""), "token": token}
    name = f"{parts.scheme}://{host}" + (f"/{database}" if database else "")
    uri = f"{'https' if parts.scheme == 'milvus+tls' else 'http'}://{host}"
    return Address(name, uri, database, secrets, parameters)


def escape(text: str, keep: str = "") -> str:
    """Return the text with ASCII letters, digits and `keep`; every other byte becomes _xx."""
    safe = re.compile(f"[^A-Za-z0-9{re.escape(keep)}]".encode())
    return safe.sub(lambda byte: b"_%02x" % byte[0][0], text.encode()).decode()


def encode(name: str) -> str:
    """Return the name in Milvus of a collection or alias: "photos.v2" -> "nnclr_photos_2ev2".

    Milvus allows A-Z a-z 0-9 _. The prefix separates our collections from those of other programs.
    """
    if len(coded := PREFIX + escape(name)) > MAX_NAME:
        raise InvalidRequest(f"{name!r} is too long for Milvus, which takes 3 bytes for each that is not A-Z a-z 0-9.")
    return coded


def decode(name: str) -> str | None:
    """Return the name that was encoded; None for a collection of another program."""
    try:
        text = re.sub("_(..)", lambda byte: chr(int(byte[1], 16)), name.removeprefix(PREFIX)).encode("latin-1").decode()
        return text if text and encode(text) == name else None
    except (ValueError, InvalidRequest):
        return None


class Connection:
    """A connection to a Milvus server, or to a Milvus Lite file with a server in this process (for tests).

    Args:
        uri: see `parse_address`; or a path that ends in .milvus.db.
        create: whether a file may be created.
    """

    def __init__(self, uri: str, *, create: bool = True) -> None:
        try:
            import pymilvus
        except ModuleNotFoundError as error:
            raise MissingDependency(
                "A store in Milvus needs the package pymilvus, which is not installed: pip install 'nnclr_hub[scale]'."
            ) from error
        logging.getLogger("pymilvus").setLevel(logging.CRITICAL)  # it logs each failure before it raises
        self.pymilvus: Any = pymilvus
        self.writing = threading.RLock()  # an edit reads and writes whole rows; no other write may come between
        self._closed = False
        self._lite: tuple[Any, Any, int] | None = None
        self.is_file = "://" not in uri
        if self.is_file:
            self._lite = _lite_server(Path(uri), create=create)
            self.address = Address(uri, f"http://127.0.0.1:{self._lite[2]}")
        else:
            self.address = parse_address(uri)
        self.name = self.address.name
        try:
            self.client: Any = self._translated("connect", self._connect)
            version = self.call("get_server_version")
            self.call("list_collections")  # fails if the database does not exist, or for a wrong password
        except BaseException:
            self._stop_lite()
            raise
        # the standalone server of the package `milvus` calls itself v2.3.5-lite, Milvus Lite milvus_lite-3.2.2
        self.is_lite = version.startswith("milvus_lite")
        self.version = "Milvus Lite" if self.is_lite else version.removeprefix("v")

    def is_at_least(self, major: int, minor: int) -> bool:
        """Return whether this is a server of at least a version."""
        found = re.match(r"(\d+)\.(\d+)", self.version)
        return found is not None and (int(found[1]), int(found[2])) >= (major, minor)

    def call(self, method: str, *args: Any, timeout: float | None = None, **options: Any) -> Any:
        """Call a method of pymilvus's client with a time limit.

        pymilvus repeats calls while the server cannot be reached and time remains, and so can callers: these are reads,
        upserts and deletes by id, and steps that check whether they are done.
        """
        if self._closed:
            raise StoreClosed(f"The store {self.name} is closed; open it again.")
        limit = READ_TIMEOUT if timeout is None else timeout
        return self._translated(method, lambda: getattr(self.client, method)(*args, timeout=limit, **options))

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self.client.close()
            self._stop_lite()

    def _stop_lite(self) -> None:
        if self._lite is not None:
            server, database, _ = self._lite
            server.stop(grace=2).wait()
            database.close()

    def _connect(self) -> Any:
        return self.pymilvus.MilvusClient(
            self.address.uri,
            db_name=self.address.database,
            dedicated=True,
            timeout=CONNECT_TIMEOUT,
            grpc_options=RECONNECTING,
            **self.address.secrets,
        )

    def _translated(self, method: str, call: Callable[[], Any]) -> Any:
        import grpc

        try:
            return call()
        except (self.pymilvus.MilvusException, grpc.RpcError, grpc.FutureTimeoutError, ValueError) as error:
            code = getattr(error, "code", None)
            text = " ".join(str(getattr(error, "message", error)).split())
            # pymilvus says about a wrong password that it cannot connect; the cause says why
            signs = f"{type(error).__name__} ({code() if callable(code) else code}) {text} {error.__cause__}"
            _, kind, sentence = next(fault for fault in FAULTS if re.search(fault[0], signs))
            said = sentence.format(method=method, text=text[:300], database=self.address.database)
            said = said.removesuffix(SAFE) if method == "connect" else said  # nothing was sent
            raise kind(f"Milvus at {self.name} {said}") from error


def _lite_server(path: Path, *, create: bool) -> tuple[Any, Any, int]:
    """Start a server of Milvus Lite in threads of this process, for tests; return it, its database and its port."""
    try:
        from milvus_lite.adapter.grpc.server import start_server_in_thread
        from milvus_lite.exceptions import DataDirLockedError, MilvusLiteError
    except ModuleNotFoundError as error:
        raise MissingDependency(
            f"The store {path} needs the package milvus-lite, which is not installed: pip install 'nnclr_hub[scale]'."
        ) from error
    if not create and not path.exists():
        raise InvalidRequest(f"{path} is not a store; index images first, or name another store.")
    try:
        return start_server_in_thread(str(path.absolute()))
    except DataDirLockedError as error:
        raise StoreLocked(f"The store {path} is open already; close it, or send your request to its server.") from error
    except (MilvusLiteError, OSError) as error:
        raise StoreError(f"The store {path} cannot be opened ({error}); choose a file that can be written.") from error
