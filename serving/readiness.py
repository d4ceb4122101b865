"""Whether the server can do its work: loading in the background, and how far that is."""

from __future__ import annotations

import logging
from collections import Counter

from nnclr_hub.errors import NNCLRHubError, StoreError
from nnclr_hub.workbench import Workbench
from nnclr_hub.workbench.privacy import without_paths

from .jobs import Jobs
from .models import Engines
from .schemas.health import Readiness

log = logging.getLogger(__name__)


class Startup:
    """Warms the default model and opens every collection; `report` tells of it at any time, from any thread.

    Args:
        engines: their default model is loaded.
        workbench: its store's collections are opened.
        jobs: started last.
    """

    def __init__(self, engines: Engines, workbench: Workbench, jobs: Jobs) -> None:
        self._jobs = jobs
        self._engines = engines
        self._workbench = workbench
        self._detail: str | None = "starting"
        self._failed = self._warm = False
        self._done, self._total = 0, 0

    def run(self) -> None:
        """Loads; blocks until all is there or failed."""
        try:
            self._detail = "loading the model"
            self._engines.get()
            self._warm = True
            self._detail = "opening the collections"
            self._open_collections()
            self._detail = "taking up the jobs"
            self._jobs.start()
        except NNCLRHubError as error:
            log.error("not ready: %s", error)
            self._detail, self._failed = without_paths(str(error)), True
        except Exception as error:
            log.exception("not ready")
            self._detail, self._failed = f"Loading failed ({type(error).__name__}); the log says why.", True
        else:
            self._detail = None

    def report(self) -> Readiness:
        """How far the server is, and how its parts are; names no collection, for it is told without a key."""
        illness = self._engines.illness
        detail, states = self._detail, {}
        done, total = self._done, self._total
        status = "failed" if self._failed else "ready" if detail is None else "loading"
        if status == "ready":
            states = self._states()
            done = total = sum(states.values())  # of now, which are others than at the start
            if illness is not None:
                if self._engines.healthy:
                    illness = f"another model than the default: {illness}"
                else:
                    status = "ill"
                detail = without_paths(illness)
        return Readiness(
            status=status,
            detail=detail,
            read_only=self._workbench.read_only,
            model_warm=self._warm,
            threads_alive=illness is None,
            collections_loaded=done,
            collections_total=total,
            collection_states=states,
        )

    def _open_collections(self) -> None:
        """A damaged one keeps no other from being served."""
        names = [info.name for info in self._workbench.store.list()]
        self._total = len(names)
        for name in names:
            try:
                self._workbench.store.get(name)
            except StoreError as error:
                log.error("collection %s: %s", name, error)
            self._done += 1

    def _states(self) -> dict[str, int]:
        """How many collections are in which state."""
        try:
            infos = self._workbench.store.list()
        except StoreError as error:
            log.error("the store does not answer: %s", error)
            return {"unreachable": self._total}
        return dict(Counter(info.state.partition(":")[0] for info in infos))
