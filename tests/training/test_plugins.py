"""A user's own parts of a run: plug-ins, arguments of `pretrain`, and callbacks."""

import hashlib
import json
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from tiny_runs import FAST, nnclr, recipe, weights

import nnclr_hub
from nnclr_hub.errors import CheckpointError, InvalidRequest, MissingDependency, UnknownSetting
from nnclr_hub.method import LEARNERS, OBJECTIVES, SUPPORT_SETS, Learner, SupportSet, info_nce
from training.data.views import View
from training.monitor import read_log
from training.plugins import load_plugins
from training.pretrain import pretrain
from training.run import Callback

EXAMPLES = Path(__file__).parents[2] / "examples"
EXAMPLE, TRACKERS = EXAMPLES / "mean_of_nearest.py", EXAMPLES / "trackers.py"
SHORT = ("epochs=1", "log_every=1", "checkpoint_every=1")


@pytest.fixture(autouse=True)
def registries():
    """Forget what a test registers."""
    ours = (LEARNERS, OBJECTIVES, SUPPORT_SETS, nnclr_hub.AUGMENTATIONS, nnclr_hub.CALLBACKS)
    before = [(one, dict(one)) for one in ours]
    loaded = set(sys.modules)
    yield
    for registry, entries in before:
        registry.clear()
        registry.update(entries)
    for name in [one for one in sys.modules if one.startswith("nnclr_plugin_") and one not in loaded]:
        del sys.modules[name]  # so that the next test runs the plug-in again


def test_the_example_is_used_by_a_run_and_recorded(data, tmp_path):
    run, plain = tmp_path / "run", tmp_path / "plain"
    chosen = [
        "--set",
        "epochs=1",
        "--set",
        "k=3",
        *(word for one in FAST for word in ("--set", one) if "epochs" not in one),
    ]
    code, _, err = nnclr(
        "pretrain",
        "small_cpu",
        "--data",
        data,
        "--out",
        run,
        "--plugin",
        EXAMPLE,
        *chosen,
        "--set",
        "support_set=mean_of_nearest",
    )
    assert code == 0, err
    about = json.loads((run / "run.json").read_text())
    assert about["plugins"] == {EXAMPLE.name: hashlib.sha256(EXAMPLE.read_bytes()).hexdigest()}
    assert about["support_set"] == "mean_of_nearest"
    pretrain(recipe(*SHORT, "k=3"), data, plain)
    assert not torch.equal(weights(run)["backbone.conv1.weight"], weights(plain)["backbone.conv1.weight"])


def test_the_example_averages_the_nearest_rows_of_other_images():
    load_plugins([EXAMPLE])
    Q = SUPPORT_SETS["mean_of_nearest"](20, 4, k=3)
    Q.enqueue(torch.randn(20, 4), ids=torch.arange(20))
    z, ids = torch.randn(5, 4), torch.arange(5)
    found = Q.lookup(z, ids)
    for row, id, target in zip(z, ids, found.embeddings, strict=True):
        others = [q for q, own in zip(Q.queue, Q.ids, strict=True) if own != id]
        best = sorted(others, key=lambda q: -float(q @ F.normalize(row, dim=0)))[:3]
        assert torch.allclose(target, F.normalize(sum(best), dim=0), atol=1e-6)


def test_parts_are_given_from_python(data, tmp_path):
    used = {"learner": 0, "queue": 0, "loss": 0, "pixels": 0}

    class Counted(Learner):
        def forward(self, *arguments, **named):
            used["learner"] += 1
            return super().forward(*arguments, **named)

    class Ring(SupportSet):
        def enqueue(self, *arguments, **named):
            used["queue"] += 1
            super().enqueue(*arguments, **named)

    def halved(targets, predictions, temperature, *, gather):
        used["loss"] += 1
        return info_nce(targets, predictions, temperature, gather=gather) / 2

    def darker(pixels, generator):
        used["pixels"] += 1
        assert pixels.dtype == torch.float32
        assert -1e-5 <= pixels.min() <= pixels.max() <= 1 + 1e-5
        return pixels * 0.5

    done = nnclr_hub.pretrain(
        "small_cpu",
        data,
        tmp_path / "run",
        settings=[*FAST, *SHORT],
        learner=Counted,
        support_set=Ring,
        objective=halved,
        augmentation=(View(operation=darker), View()),
    )
    assert done.finished
    assert used["learner"] == used["queue"] == used["pixels"] == done.step
    assert used["loss"] == 2 * done.step, "both views"
    about = json.loads((tmp_path / "run" / "run.json").read_text())
    assert (about["learner"], about["support_set"], about["objective"]) == ("Counted", "Ring", "halved")


def test_a_plug_in_that_fails_is_named_with_its_line(data, tmp_path):
    broken = tmp_path / "broken.py"
    for text, line in (("import torch\n\nundefined\n", "line 3"), ("x = (\n", "line 1")):
        broken.write_text(text)
        with pytest.raises(InvalidRequest, match=line):
            pretrain(recipe(), data, tmp_path / "run", plugins=[broken])
    with pytest.raises(InvalidRequest, match="missing"):
        pretrain(recipe(), data, tmp_path / "run", plugins=[tmp_path / "missing.py"])
    assert not (tmp_path / "run").exists()


def test_a_run_is_resumed_only_with_its_plug_in(data, tmp_path):
    options = {"settings": {"support_set": "mean_of_nearest"}, "device": "cpu"}
    short = recipe(*SHORT)
    with pytest.raises(UnknownSetting):
        pretrain(short, data, tmp_path / "run", **options)
    assert not pretrain(short, data, tmp_path / "run", plugins=[EXAMPLE], minutes=0, **options).finished
    with pytest.raises(CheckpointError):
        pretrain(short, data, tmp_path / "run", resume=True)
    assert pretrain(short, data, tmp_path / "run", plugins=[EXAMPLE], resume=True, **options).finished


def test_parts_need_a_name_of_no_other(data, tmp_path):
    taken = type("queue", (SupportSet,), {})
    with pytest.raises(InvalidRequest, match="queue"):
        pretrain(recipe(), data, tmp_path / "run", support_set=taken)
    with pytest.raises(InvalidRequest, match="lambda"):
        pretrain(recipe(), data, tmp_path / "run", objective=lambda *_, **__: None)


def tracked(service, data, out, **options):
    settings = [*FAST, *SHORT, f"callbacks={service}"]
    return nnclr_hub.pretrain("small_cpu", data, out, settings=settings, plugins=[TRACKERS], **options)


def test_a_missing_package_of_a_callback_is_named(data, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(MissingDependency, match="pip install wandb"):
        tracked("wandb", data, tmp_path / "run")


def test_an_objective_with_other_arguments_or_results_is_refused(data, tmp_path):
    def two_arguments(targets, predictions):
        return (targets - predictions).mean()

    def no_scalar(targets, predictions, temperature, *, gather):
        return (targets - predictions).mean(dim=-1)

    for number, objective in enumerate((two_arguments, no_scalar, torch.dot)):
        with pytest.raises(InvalidRequest):
            pretrain(recipe(), data, tmp_path / f"run{number}", objective=objective)


def test_an_objective_needs_targets_that_are_vectors(data, tmp_path):
    with pytest.raises(InvalidRequest, match="swav"):
        pretrain(recipe("method=swav"), data, tmp_path / "run", objective=info_nce)


# ---- callbacks


class Diary(Callback):
    """Writes down every call with the step."""

    def __init__(self, data: Path, stop_at: int | None = None) -> None:
        self.data = data.name
        self.calls: list[tuple[str, int]] = []
        self.stop_at = stop_at

    def note(self, name, run, *_):
        self.calls.append((name, run.step))

    def on_start(self, run):
        self.note("start", run)

    def on_step(self, run, result):
        assert result.loss.isfinite()
        self.note("step", run)
        if run.step == self.stop_at:
            run.stop()

    def on_log(self, run, line):
        assert line["step"] == run.step
        self.note("scores" if f"knn20/{self.data}" in line else "log", run)

    def on_evaluation(self, run, scores):
        assert 0 <= scores[f"knn20/{self.data}"] <= 1
        self.note("evaluation", run)

    def on_checkpoint(self, run):
        assert (run.out / "checkpoint.pt").exists()
        self.note("checkpoint", run)

    def on_end(self, run):
        self.note("finished" if run.finished else "stopped", run)


def test_callbacks_are_called_at_each_event(data, tmp_path):
    diary, out = Diary(data, stop_at=3), tmp_path / "run"
    settings = recipe("epochs=1", "checkpoint_every=1", "log_every=2")
    first = pretrain(settings, data, out, callbacks=[diary])
    assert not first.finished
    assert diary.calls == [
        ("start", 0),
        ("step", 1),
        ("step", 2),
        ("log", 2),
        ("step", 3),
        ("checkpoint", 3),
        ("stopped", 3),
    ]
    rest = Diary(data)
    steps = pretrain(settings, data, out, callbacks=[rest], resume=True).step
    assert rest.calls[0] == ("start", 3)
    end = [(name, steps) for name in ("step", "log", "scores", "evaluation", "checkpoint", "finished")]
    assert rest.calls[-6:] == end


def test_callbacks_see_the_end_of_a_run_that_fails(data, tmp_path):
    class Failing(Diary):
        def on_step(self, run, result):
            raise ZeroDivisionError

    diary = Failing(data)
    with pytest.raises(ZeroDivisionError):
        pretrain(recipe(), data, tmp_path / "run", callbacks=[diary])
    assert [name for name, _ in diary.calls] == ["start", "stopped"]


def test_a_run_of_mlflow_is_continued(data, tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "mlruns").as_uri())
    tracked("mlflow", data, tmp_path / "run", minutes=0)
    tracked("mlflow", data, tmp_path / "run", resume=True)
    [run] = mlflow.search_runs(search_all_experiments=True, output_format="list")
    assert run.info.status == "FINISHED"
    assert run.data.params["temperature"] == "0.1"
    history = mlflow.MlflowClient().get_metric_history(run.info.run_id, "loss")
    logged = {line["step"]: line["loss"] for line in read_log(tmp_path / "run") if "loss" in line}
    assert {metric.step: metric.value for metric in history} == logged


def test_a_run_of_weights_and_biases_is_written_offline(data, tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    tracked("wandb", data, tmp_path / "run")
    assert len(list((tmp_path / "run" / "wandb").glob("offline-run-*/*.wandb"))) == 1
