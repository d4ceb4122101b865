"""Startup: loads the model and the collections in the background, and reports whether the server is ready."""

from __future__ import annotations

import logging
import os
from collections import Counter
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
        self._folder = _StoreFolder(workbench.store)
        self.stopping = False  # set at SIGTERM

    def run(self) -> None:
        """Load everything. Blocks until it is done or failed."""
        try:
            self._detail = "loading the model"
            self._engines.get()
            self._warm = True
            self._detail = "opening the collections"
            self._open_collections()
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
            if (store_fault := self._folder.fault()) is not None:
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

    def _open_collections(self) -> None:
        """Open all collections. A damaged one does not keep the others from being served."""
        names = [info.name for info in self._workbench.store.list()]
        self._total = len(names)
        for name in names:
            try:
                self._workbench.store.get(name)
            except StoreError as error:
                log.error("collection %s: %s", name, error)
            self._done += 1

    def _states(self) -> dict[str, int]:
        """Count the collections by state."""
        try:
            infos = self._workbench.store.list()
        except StoreError as error:
            log.error("the store does not respond: %s", error)
            return {"unreachable": self._total}
        return dict(Counter(info.state.partition(":")[0] for info in infos))


class _StoreFolder:
    """The folder of a store, which may be unmounted, replaced or become read-only while the server runs.

    A search would not notice: the index is in memory, and deleted files stay readable while they are open.
    """

    def __init__(self, store: VectorStore) -> None:
        self._folder = getattr(store, "folder", None)  # None: the store is on another server
        self._read_only = store.read_only
        self._identity = self._current_identity()
        self._collections = None if self._folder is None else _identity(self._folder / "collections")

    def fault(self) -> str | None:
        """Return what is wrong, without a path; None if nothing is."""
        if self._folder is None:
            return None
        identity = self._current_identity()
        if identity is None:
            return "The folder of the store no longer exists; mount it again, and restart the server."
        if identity != self._identity or self._collections_replaced():
            return "The folder of the store was replaced; restart the server."
        if not self._read_only and not os.access(self._folder, os.W_OK):  # also false on a read-only file system
            return "The folder of the store cannot be written; make it writable, and restart the server."
        return None

    def _current_identity(self) -> tuple[int, int] | None:
        return None if self._folder is None else _identity(self._folder)

    def _collections_replaced(self) -> bool:
        """Return whether the folder of the collections was removed or replaced. The first collection creates it."""
        assert self._folder is not None
        identity = _identity(self._folder / "collections")
        self._collections = self._collections or identity
        return identity != self._collections


def _identity(folder: Path) -> tuple[int, int] | None:
    try:
        found = os.stat(folder)
    except OSError:
        return None
    return found.st_dev, found.st_ino
