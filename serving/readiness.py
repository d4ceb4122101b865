"""Startup: loads the model and the collections in the background, and reports whether the server is ready."""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, Field

from nnclr_hub.errors import NNCLRHubError, StoreError
from nnclr_hub.store.base import VectorStore
from nnclr_hub.workbench import Workbench
from nnclr_hub.workbench.privacy import without_paths

from .jobs import Jobs
from .models import Engines

log = logging.getLogger(__name__)


class Readiness(BaseModel):
    """Whether the server is ready, and its progress until then."""

    status: Literal["ready", "loading", "ill", "failed", "stopping"] = Field(
        description="`ill`: a thread of the default model, or the folder of the store, does not work. `stopping`: the "
        "server has received SIGTERM, and still answers requests"
    )
    detail: str | None = None
    read_only: bool = Field(description="every write is answered with 403")
    model_warm: bool
    threads_alive: bool = Field(
        description="whether the threads of all models run. `status` is `ill` only if a thread of the default model "
        "failed"
    )
    collections_loaded: int
    collections_total: int
    collection_states: dict[str, int] = Field(
        description="number of collections by state: ready, degraded, read-only, ..."
    )


class Startup:
    """Load the default model and open every collection. `report` works at any time, from any thread.

    Args:
        engines: the default model is loaded here.
        workbench: the collections of its store are opened.
        jobs: started last, because jobs use both.
    """

    def __init__(self, engines: Engines, workbench: Workbench, jobs: Jobs) -> None:
        self._jobs = jobs
        self._engines = engines
        self._workbench = workbench
        self._detail: str | None = "starting"
        self._failed = self._warm = False
        self._done, self._total = 0, 0
        self._store_fault = store_watch(workbench.store)
        self.stopping = False  # set at SIGTERM

    def run(self) -> None:
        """Load everything. Blocks until it is done or failed."""
        try:
            self._detail = "loading the model"
            self._engines.get()
            self._warm = True
            self._detail = "opening the collections"
            names = [info.name for info in self._workbench.store.list()]
            self._total = len(names)
            for name in names:
                try:
                    self._workbench.store.get(name)
                except StoreError as error:  # a damaged one does not keep the others from being served
                    log.error("collection %s: %s", name, error)
                self._done += 1
            self._detail = "resuming the jobs"
            self._jobs.start()
        except NNCLRHubError as error:
            log.error("not ready: %s", error)
            self._detail, self._failed = without_paths(str(error)), True
        except Exception as error:
            log.exception("not ready")
            self._detail, self._failed = f"Loading failed ({type(error).__name__}); see the server's log.", True
        else:
            self._detail = None

    def report(self) -> Readiness:
        """Return the state of the server. It names no collection, because clients without a key see it."""
        fault = self._engines.fault
        detail, states = self._detail, {}
        done, total = self._done, self._total
        status = "failed" if self._failed else "ready" if detail is None else "loading"
        if status == "ready":
            states = self._states()
            done = total = sum(states.values())  # collections may have been added since the start
            if fault is not None:
                if self._engines.default_works:
                    fault = f"a model other than the default: {fault}"
                else:
                    status = "ill"
                detail = without_paths(fault)
            if (store_fault := self._store_fault()) is not None:
                status, detail = "ill", store_fault
        if self.stopping:
            status, detail = "stopping", "The server is shutting down."
        return Readiness(
            status=status,
            detail=detail,
            read_only=self._workbench.read_only,
            model_warm=self._warm,
            threads_alive=fault is None,
            collections_loaded=done,
            collections_total=total,
            collection_states=states,
        )

    def _states(self) -> dict[str, int]:
        """Count the collections by state."""
        try:
            infos = self._workbench.store.list()
        except StoreError as error:
            log.error("the store does not respond: %s", error)
            return {"unreachable": self._total}
        return dict(Counter(info.state.partition(":")[0] for info in infos))


def store_watch(store: VectorStore) -> Callable[[], str | None]:
    """Return a function that returns what is wrong with the folder of a store, without a path; None if nothing is.

    The folder may be unmounted, replaced or become read-only while the server runs. A search would not notice: the
    index is in memory, and deleted files stay readable while they are open.
    """
    folder: Path | None = getattr(store, "folder", None)
    if folder is None:  # the store is on another server
        return lambda: None
    own, inner = _identity(folder), _identity(folder / "collections")

    def fault() -> str | None:
        nonlocal inner
        found = _identity(folder)
        if found is None:
            return "The folder of the store no longer exists; mount it again, and restart the server."
        collections = _identity(folder / "collections")
        inner = inner or collections  # the first collection creates it
        if (found, collections) != (own, inner):
            return "The folder of the store was replaced; restart the server."
        if not store.read_only and not os.access(folder, os.W_OK):  # also false on a read-only file system
            return "The folder of the store cannot be written; make it writable, and restart the server."
        return None

    return fault


def _identity(folder: Path) -> tuple[int, int] | None:
    try:
        found = os.stat(folder)
    except OSError:
        return None
    return found.st_dev, found.st_ino
