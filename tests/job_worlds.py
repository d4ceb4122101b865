"""Jobs on a temporary store, whose steps a test allows one by one."""

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import waiting

from nnclr_hub.errors import InvalidRequest
from nnclr_hub.store import open_store
from nnclr_hub.store.records import Record
from nnclr_hub.workbench import Workbench
from nnclr_hub.workbench.requests import Request, option
from nnclr_hub.workbench.tasks import Cancelled, Task, TaskContext
from serving.jobs import Jobs
from serving.telemetry import Metrics


@dataclass(frozen=True)
class WorkRequest(Request):
    """What a Work does."""

    name: str = option("name")
    steps: int = option("number of steps", 3)
    fails: bool = option("ends with an error of the library", False)
    breaks: bool = option("ends with another error", False)
    secret: str = option("what clients do not see", "", hidden=True)
    path: str = option("the uploaded file", "", hidden=True)


class Work:
    """A task whose steps the test allows one by one."""

    def __init__(self) -> None:
        self.steps = threading.Semaphore(0)
        self.begun: list[str] = []
        self.cleaned: list[str] = []
        self.secrets: list[str] = []
        self.states: list[Mapping[str, Any]] = []

    def run(self, bench: Workbench, request: WorkRequest, context: TaskContext) -> dict[str, Any]:
        try:
            context.raise_if_cancelled()
            self.begun.append(request.name)
            self.secrets.append(request.secret)
            self.states.append(context.state)
            context.save({"begun": len(self.begun)})
            context.begin("Stepping")
            for step in range(request.steps):
                context.progress(step, request.steps)
                while not self.steps.acquire(timeout=0.01):
                    context.raise_if_cancelled()
        except Cancelled:
            self.cleaned.append(request.name)
            raise

        def times(records: Any) -> int:
            made = records.get("made", request.name)
            return made.content["times"] if made else 0

        if request.fails:
            raise InvalidRequest(f"No such thing in {Path(__file__).resolve()}.")
        if request.breaks:
            raise ZeroDivisionError
        context.at_end(lambda records: records.put(Record("made", request.name, {"times": 1 + times(records)})))
        return {"made": request.name}

    def let(self, steps: int) -> None:
        self.steps.release(steps)


class World:
    """A store, its jobs, and their work."""

    def __init__(self, folder: Path, **options) -> None:
        self.store = open_store(str(folder))
        self.metrics = Metrics()
        self.work, self.other = Work(), Work()
        self.options = {"waiting": 3, "keep": 100, **options}
        self.jobs = self.new()
        self.jobs.start()

    def new(self) -> Jobs:
        bench = Workbench(None, self.store)  # type: ignore[arg-type]
        works = {"work": self.work, "other": self.other}
        tasks = {name: Task(name, WorkRequest, "/x", False, work.run) for name, work in works.items()}
        return Jobs(bench, self.metrics, tasks=tasks, **self.options)

    def restart(self) -> None:
        self.jobs.stop()
        self.jobs = self.new()
        self.jobs.start()

    def submit(self, name: str, kind: str = "work", **params):
        return self.jobs.submit(kind, {"name": name, **params})

    def made(self) -> list[str]:
        return [record.name for record in self.store.records.list("made")]


def until(jobs: Jobs, id: str, *states: str):
    """Return the job as it is once it reaches one of the states."""
    found = []

    def reached() -> bool:
        found.append(job := jobs.get(id))
        # a running job has a total once its work has started
        return job.state in states and (job.state != "running" or bool(job.total))

    waiting.until(reached)
    return found[-1]
