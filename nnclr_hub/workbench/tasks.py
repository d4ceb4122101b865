"""Long operations. Each is a function, registered once, that runs behind a progress bar or as a job of a server.

    @dataclass(frozen=True)
    class VerifyRequest(Request):
        collection: str = option("name of the collection")

    @task("verify", VerifyRequest, path="/collections/{collection}/verify")
    def verify(bench: LocalBench, request: VerifyRequest, context: TaskContext) -> dict[str, Any]: ...

    bench.run("verify", VerifyRequest("photos"), progress=bar)      # here, or on a server; returns JSON

The command line, the routes of the server with their schemas, its jobs and the client are made from this table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

from nnclr_hub.errors import InvalidRequest
from nnclr_hub.store.base import Progress
from nnclr_hub.store.records import Records
from nnclr_hub.workbench.bench import LocalBench
from nnclr_hub.workbench.requests import Request

# modules of this package that register tasks
MODULES = ("maintenance", "file_import", "duplicates", "inspection.findings", "inspection.comparison", "probes")
MODULES += ("reembedding", "folder_index")
UNITS = 1000  # in which the progress of several parts is counted, see `portion`
F = TypeVar("F", bound=Callable[..., Any])


# These are not errors of the work. They derive from BaseException so that `except Exception` does not catch them.
class TaskStopped(BaseException):
    """Raised in a task that must end now."""


class Cancelled(TaskStopped):
    """Raised in a task that was cancelled. It removes its partial results."""


class Interrupted(TaskStopped):
    """Raised in a task when its server shuts down. It runs again at the next start, and keeps its partial results."""


# ---- what a task sees


class TaskContext:
    """What a task sees of the program that runs it. A task may run again, because a crash may interrupt it anywhere.

    folder: files that were uploaded for the task, and its notes; survives a restart. None where nothing is uploaded.
    state: what an earlier attempt saved with `save`; {} at the first.
    writes: see `at_end`.
    phase: what `begin` set last; "" at first.

    Args:
        report: called with (done, total).
        check: raises Cancelled or Interrupted if the task must end.
        save: makes a state durable.
    """

    def __init__(
        self,
        report: Progress = lambda done, total: None,
        check: Callable[[], None] = lambda: None,
        *,
        folder: Path | None = None,
        state: Mapping[str, Any] | None = None,
        save: Callable[[Mapping[str, Any]], None] = lambda state: None,
    ) -> None:
        self.folder = folder
        self.state: Mapping[str, Any] = state or {}
        self.writes: list[Callable[[Records], None]] = []
        self.phase = ""
        self._report, self._check, self._save = report, check, save

    def begin(self, phase: str) -> None:
        """Name what the task does from now on, such as `Arranging the map`. Clients see it with the progress."""
        self.phase = phase

    def progress(self, done: int, total: int) -> None:
        """Report progress; raise Cancelled or Interrupted if the task must end."""
        self._check()
        self._report(done, total)

    def raise_if_cancelled(self) -> None:
        """Raise Cancelled or Interrupted if the task must end."""
        self._check()

    def save(self, state: Mapping[str, Any]) -> None:
        """Keep a state for the next attempt; durable when it returns. Small JSON."""
        self._save(state)
        self.state = state

    def at_end(self, write: Callable[[Records], None]) -> None:
        """Call `write` in the transaction that records the end of the task. It may raise to refuse."""
        self.writes.append(write)


# ---- the table


@dataclass(frozen=True)
class Task:
    """A long operation.

    request: class of its requests.
    path: REST route below /api/v1 that starts it. Fields in braces are part of the path. The others are the body.
    query: the others are the query instead.
    run: (bench, request, context) -> its result as JSON.
    upload: field with the path of a file that a client sends before the task starts.
    """

    name: str
    request: type[Request]
    path: str
    query: bool
    run: Callable[[LocalBench, Any, TaskContext], Mapping[str, Any]]
    upload: str = ""

    def call(self, request: Request) -> tuple[str, dict[str, str], dict[str, Any] | None]:
        """Return the path, the query and the body of the REST request that starts the task."""
        values = request.as_json()
        for one in fields(request):
            if one.metadata.get("hidden") and values.pop(one.name) != one.default and one.name != self.upload:
                raise InvalidRequest(f"A server decides about {one.name!r} itself; leave it out, or use a local store.")
        path = self.path.format_map({name: quote(str(value), safe="") for name, value in values.items()})
        rest = {name: value for name, value in values.items() if f"{{{name}}}" not in self.path}
        if self.query:
            return path, {name: str(value) for name, value in rest.items() if value is not None}, None
        return path, {}, rest or None


TASKS: dict[str, Task] = {}


def task(name: str, request: type[Request], *, path: str, query: bool = False, upload: str = "") -> Callable[[F], F]:
    """Register a function as a task; see `Task`."""

    def register(run: F) -> F:
        TASKS[name] = Task(name, request, path, query, run, upload)
        return run

    return register


def find_task(name: str, request: Request) -> Task:
    """Return a task of the table. Raise InvalidRequest if there is none, or if the request is not one of its kind."""
    tasks = all_tasks()
    if name not in tasks:
        raise InvalidRequest(f"There is no task {name!r:.60}; use one of {', '.join(tasks)}.")
    if not isinstance(request, tasks[name].request):
        raise InvalidRequest(f"The task {name!r} takes a {tasks[name].request.__name__}, got {request!r:.80}.")
    return tasks[name]


def all_tasks() -> dict[str, Task]:
    """Return the table, after importing the modules that fill it."""
    for module in MODULES:
        import_module(f"nnclr_hub.workbench.{module}")
    return TASKS


def portion(progress: Progress, start: float, end: float) -> Progress:
    """Return the progress of a part of some work, which is from `start` to `end` of the whole, in [0, 1]."""
    return lambda done, total: progress(int(UNITS * (start + (end - start) * done / max(1, total))), UNITS)
