"""Jobs on a temporary store, whose steps a test allows one by one."""

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import waiting

from nnclr_hub.errors import InvalidRequest
from nnclr_hub.store import open_store
from nnclr_hub.store.records import Record
from nnclr_hub.workbench import Workbench
from serving.jobs import Jobs, Kind, Outcome
from serving.telemetry import Metrics


class Work:
    """A kind of job whose steps the test allows one by one."""

    def __init__(self) -> None:
        self.steps = threading.Semaphore(0)
        self.begun: list[str] = []
        self.cleaned: list[str] = []
        self.renewed: list[str] = []
        self.forgotten: list[str] = []
        self.inputs: list[bytes] = []
        self.noted: list[Mapping[str, Any]] = []

    def run(self, context) -> Outcome:
        self.begun.append(context.params["name"])
        self.inputs.append(context.input)
        self.noted.append(context.notes)
        context.keep({"begun": len(self.begun)})
        for step in range(context.params.get("steps", 3)):
            context.progress(step, context.params.get("steps", 3))
            while not self.steps.acquire(timeout=0.01):
                context.check()
        if context.params.get("fails"):
            raise InvalidRequest(f"No such thing in {Path(__file__).resolve()}.")
        if context.params.get("breaks"):
            raise ZeroDivisionError
        name = context.params["name"]
        return Outcome({"made": name}, lambda records: records.put(Record("made", name, {})))

    def clean(self, bench, params) -> None:
        self.cleaned.append(params["name"])

    def renew(self, params) -> None:
        self.renewed.append(params["name"])

    def forget(self, params) -> None:
        self.forgotten.append(params["name"])

    def let(self, steps: int) -> None:
        for _ in range(steps):
            self.steps.release()


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
        work = Kind(self.work.run, self.work.clean, self.work.renew, self.work.forget)
        kinds = {"work": work, "other": Kind(self.other.run)}
        return Jobs(bench, self.metrics, kinds=kinds, **self.options)

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
    seen = []

    def reached() -> bool:
        seen[:] = [job] = [jobs.get(id)]
        # a running job has a total once its work has started
        return job.state in states and (job.state != "running" or bool(job.total))

    waiting.until(reached)
    return seen[0]
