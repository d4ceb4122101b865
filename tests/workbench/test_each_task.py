"""Each task of TASKS: run here and as a job, interrupted and cancelled, and resumed after kill -9."""

import os
import shutil
import sys
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import waiting
from server_process import ServerProcess

from nnclr_hub import Client, CollectionSpec, Item, load_encoder, open_store
from nnclr_hub.store.base import VectorStore
from nnclr_hub.workbench import Encoders, Workbench
from nnclr_hub.workbench.duplicates import DuplicatesRequest
from nnclr_hub.workbench.file_import import ImportRequest
from nnclr_hub.workbench.folder_index import IndexRequest
from nnclr_hub.workbench.inspection.comparison import ComparisonRequest
from nnclr_hub.workbench.inspection.findings import InspectionRequest
from nnclr_hub.workbench.maintenance import BackupRequest, CollectionRequest
from nnclr_hub.workbench.probes import ProbeFit
from nnclr_hub.workbench.reembedding import ReembedRequest
from nnclr_hub.workbench.requests import Request
from nnclr_hub.workbench.tasks import TaskContext, all_tasks

IMAGES = 24
STARTER = "nnclr_resnet18_free_starter"  # which each server has
# task: its request, given the files, and what its result holds. Each has its own collection, named after it
TASKS: dict[str, tuple[Callable[[dict[str, Path]], Request], dict[str, Any]]] = {
    "verify": (lambda files: CollectionRequest("verify"), {"ok": True, "items": IMAGES}),
    "compact": (lambda files: CollectionRequest("compact"), {"items": IMAGES}),
    "backup": (lambda files: BackupRequest(), {}),
    "duplicates": (lambda files: DuplicatesRequest("duplicates", 0.99999), {"found": 1, "surplus": 1}),
    "import": (
        lambda files: ImportRequest("import", str(files["zip"])),
        {"added": 5, "replaced": 0, "unchanged": 0, "errors_count": 0},
    ),
    "inspection": (lambda files: InspectionRequest("inspection", write_fields=True), {"items": IMAGES}),
    "comparison": (lambda files: ComparisonRequest("comparison", ["pixels", "color"]), {"images": IMAGES}),
    "probe_fit": (
        lambda files: ProbeFit(name="probe", collection="probe_fit", field="label"),
        {"classes": 2, "rows": IMAGES, "probe": "probe"},
    ),
    "reembed": (
        lambda files: ReembedRequest("reembed", STARTER),
        {"items": IMAGES, "kept": "reembed.old", "skipped_count": 0},
    ),
    "index": (lambda files: IndexRequest("index", folder="b"), {"added": IMAGES // 2, "replaced": 0, "unchanged": 0}),
}


def test_every_task_is_in_the_matrix():
    assert TASKS.keys() == all_tasks().keys()


@pytest.fixture(scope="module")
def files(image_files, tmp_path_factory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("tasks")
    for number, path in enumerate(image_files[:IMAGES]):
        target = folder / "photos" / "ab"[number % 2] / path.parent.name / path.name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)
    with zipfile.ZipFile(folder / "more.zip", "w") as archive:
        for path in image_files[-5:]:
            archive.write(path, f"x/{path.name}")
    return {"photos": folder / "photos", "zip": folder / "more.zip"}


def fill(store: VectorStore, model: Path, files: dict[str, Path]) -> None:
    """Make a collection for each task; that of the index and that of the import are empty."""
    bench = Workbench(Encoders(str(model), device="cpu"), store)
    bench.index_folder("verify", files["photos"])
    items = bench.collection("verify").scroll(limit=1000).items
    thumbnails = {item.id: bench.collection("verify").thumbnail(item.id) for item in items}
    for name in TASKS.keys() - {"verify", "backup"}:
        collection = store.create(name, CollectionSpec.of(load_encoder(model, device="cpu")))
        if name not in ("index", "import"):
            collection.upsert(
                [
                    Item(
                        item.id,
                        item.vector if i or name != "duplicates" else items[1].vector,
                        {**item.metadata, "label": "ab"[i % 2]},
                        thumbnails[item.id],
                    )
                    for i, item in enumerate(items)
                ]
            )


@pytest.fixture(params=["folder", "http"])
def there(request, model, files, tmp_path, serve):
    """Return a bench with a collection for each task, and the files as its requests name them."""
    folders, backups = [str(files["photos"])], str(tmp_path / "backups")
    if request.param == "folder":
        with open_store(str(tmp_path / "store")) as store:
            fill(store, model, files)
            bench = Workbench(
                Encoders(str(model), device="cpu"), store, source_folders=[files["photos"]], backup_to=backups
            )
            yield bench, files
        return
    for running in serve(model, tmp_path / "store", source_folders=folders, backup_to=backups):
        fill(running.bench.store, model, files)
        with Client(running.url, timeout=300) as client:
            yield client, files


class Paused:
    """Lets a task stop at its first step until it is released, cancelled or interrupted."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.inside, self.go_on = threading.Event(), threading.Event()
        progress = TaskContext.progress

        def wait(context: TaskContext, done: int, total: int) -> None:
            progress(context, done, total)
            self.inside.set()
            while not self.go_on.wait(0.01):
                context.raise_if_cancelled()

        patch.setattr(TaskContext, "progress", wait)


def run(bench: Any, name: str, request: Request) -> tuple[Any, list[tuple[int, int]]]:
    """Return the result of a task, and its progress."""
    seen: list[tuple[int, int]] = []
    return bench.run(name, request, lambda done, total: seen.append((done, total))), seen


def test_each_task_runs_and_is_interrupted_or_cancelled(there, monkeypatch):
    """An attempt that ended early changes nothing that a complete run afterwards reports."""
    bench, files = there
    for name, (make, expected) in TASKS.items():
        request = make(files)
        if isinstance(bench, Client):
            with monkeypatch.context() as patch:
                paused = Paused(patch)
                job = bench.start(name, request)
                assert paused.inside.wait(120), name
                assert bench.jobs.cancel(job.id).kind in (name, "add"), name
                waiting.until(lambda id=job.id: bench.jobs.get(id).has_ended)
                paused.go_on.set()
                assert bench.jobs.get(job.id).state == "cancelled", name
        else:

            def interrupt(done: int, total: int) -> None:
                raise KeyboardInterrupt

            with pytest.raises(KeyboardInterrupt):
                bench.run(name, request, interrupt)
        found, done = run(bench, name, request)
        if name in ("index", "import"):  # what an interrupted attempt stored stays, and counts as unchanged
            assert found["added"] + found["unchanged"] == expected["added"]
            continue
        assert {key: found[key] for key in expected} == expected, name
        assert done[-1][0] == done[-1][1], name


# patches each task to stop at a step while a file exists; Python imports it at its start
PAUSE = """
import os, time
from nnclr_hub.workbench.tasks import TaskContext
progress = TaskContext.progress
def wait(context, done, total):
    progress(context, done, total)
    if os.path.exists(os.environ["PAUSE"]):
        open(os.environ["PAUSE"] + f".{id(context)}", "a").close()
    while os.path.exists(os.environ["PAUSE"]):
        context.raise_if_cancelled()
        time.sleep(0.01)
TaskContext.progress = wait
"""


@pytest.mark.skipif(sys.platform != "linux", reason="sends SIGKILL to a server")
def test_each_task_resumes_after_kill_9(model, files, tmp_path, monkeypatch):
    """All of them at once; each result is that of a run without an interruption."""
    with open_store(str(tmp_path / "store")) as store:
        fill(store, model, files)
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "sitecustomize.py").write_text(PAUSE)
    pause = tmp_path / "pause"
    pause.touch()
    root = Path(__file__).parents[2]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path / "code"), str(root)]))
    monkeypatch.setenv("PAUSE", str(pause))
    options = {"backup_to": tmp_path / "backups", "source_folders": f'["{files["photos"]}"]'}
    running = ServerProcess(tmp_path / "store", model=str(model), **options)
    with running as server, Client(running.url, timeout=300) as client:
        made = {name: make(files) for name, (make, _) in TASKS.items()}
        jobs = {name: client.start(name, request).id for name, request in made.items()}
        waiting.until(lambda: len(list(tmp_path.glob("pause.*"))) == len(TASKS), patience_s=240)
        server.kill()
        pause.unlink()
        server.start()
        for name, id in jobs.items():
            result = client.jobs.wait(id, timeout=300).result
            expected = TASKS[name][1]
            assert {key: result[key] for key in expected} == expected, name
        assert len(client.collection("import").scroll().items) == 5
        assert [probe.name for probe in client.probes.list()] == ["probe"]
        assert client.collection("reembed").count() == IMAGES
