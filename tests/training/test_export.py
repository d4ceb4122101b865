"""`nnclr export` of a run, with scores measured again on the exported weights."""

import json
import re
import shutil
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import torch
from commands import output_of
from safetensors.torch import load_file
from tiny_runs import recipe

from nnclr_hub import load_encoder
from nnclr_hub.errors import InvalidRequest, WeightsMismatch
from nnclr_hub.hub.layout import read_config
from training.checkpoint import load_checkpoint
from training.monitor import read_log
from training.pretrain import pretrain
from training.run import Callback
from training.run_export import export

pytestmark = pytest.mark.usefixtures("without_graphs")
SHORT = ("epochs=2", "checkpoint_every=1", "log_every=10")


@pytest.fixture(scope="module")
def run(data, tmp_path_factory) -> Path:
    """A finished run with two networks and a support set."""
    out = tmp_path_factory.mktemp("runs") / "two"
    assert pretrain(recipe(*SHORT, "method=momentum_nnclr"), [data], out).finished
    return out


def scored_by_eval(folder, data) -> float:
    """Return the 20-NN score of `nnclr eval`."""
    (record,) = json.loads(output_of("eval", "knn", folder, "--data", data, "--out", folder.parent / "out", "--json"))
    return record["values"][f"knn20/{data.name}"]


def test_the_score_is_measured_again_on_the_same_images(run, data, tmp_path):
    done = export(run, tmp_path / "model", data=[data])
    name = f"knn20/{data.name}"
    assert done.rechecked[name] == pytest.approx(done.metrics[name], abs=0.001)
    row = f"| {name} | test | {done.metrics[name]} | {done.rechecked[name]} |"
    assert row in (done.folder / "README.md").read_text()
    assert done.rechecked[f"linear/{data.name}"] is None
    assert scored_by_eval(done.folder, data) == pytest.approx(done.metrics[name], abs=1e-4)


def test_without_data_the_card_says_not_checked(run, tmp_path):
    done = export(run, tmp_path / "model")
    assert set(done.rechecked.values()) == {None}
    assert "not checked" in (done.folder / "README.md").read_text()


class StopAfterScores(Callback):
    """Stops a run two steps after its first scores."""

    scored = None

    def on_evaluation(self, run, scores):
        self.scored = run.step

    def on_step(self, run, result):
        if self.scored and run.step == self.scored + 2:
            run.stop()


@pytest.fixture(scope="module")
def stopped(data, tmp_path_factory) -> Path:
    """A run that was scored after its first epoch and stopped two steps later."""
    out = tmp_path_factory.mktemp("runs") / "stopped"
    assert not pretrain(recipe(*SHORT, "base_lr=1"), [data], out, callbacks=[StopAfterScores()]).finished
    return out


def test_the_encoder_of_a_stopped_run_has_no_scores(stopped, data, tmp_path):
    """The weights at the stop were never scored."""
    about = read_config(stopped / "encoder").nnclr
    (scored,) = [line for line in read_log(stopped) if f"knn20/{data.name}" in line]
    assert scored["step"] < about["step"] < about["steps"]
    assert "metrics" not in about
    assert "No results are recorded." in (export(stopped, tmp_path / "model").folder / "README.md").read_text()


def test_an_impossible_score_is_rejected(run, data, tmp_path):
    out = shutil.copytree(run, tmp_path / "run")
    config = json.loads((out / "encoder" / "config.json").read_text())
    config["nnclr"]["metrics"][f"knn20/{data.name}"] = 2.0
    (out / "encoder" / "config.json").write_text(json.dumps(config))
    with pytest.raises(WeightsMismatch, match="same images"):
        export(out, tmp_path / "other", data=[data])


def test_an_export_with_data_scores_the_weights_of_a_stopped_run(stopped, data, tmp_path):
    done = export(stopped, tmp_path / "model", data=[data])
    expected = {f"knn20/{data.name}": scored_by_eval(done.folder, data)}
    assert dict(done.metrics) == done.rechecked == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("change", ["an image less", "val/ in addition"])
def test_other_images_of_the_same_name_do_not_count_as_a_check(run, data, tmp_path, capsys, change):
    """The scores of the run stay, with the split and the images that they are from."""
    changed = tmp_path / data.name
    shutil.copytree(data, changed)
    if change == "an image less":
        next((changed / "test").rglob("*.jpg")).unlink()
    else:
        shutil.copytree(data / "train", changed / "val")
    done = export(run, tmp_path / "model", data=[changed])
    before, after = (read_config(folder).nnclr for folder in (run / "encoder", done.folder))
    for field in ("metrics", "splits", "measured_on"):
        assert after[field] == before[field], field
    assert set(done.rechecked.values()) == {None}
    assert done.rechecked.keys() == done.metrics.keys() > {f"knn20/{data.name}"}
    card = (done.folder / "README.md").read_text()
    assert card.count("| not checked |") == len(done.metrics)
    assert re.search(f"{data.name}.* not checked", " ".join(capsys.readouterr().err.split()))


@pytest.mark.parametrize(("images", "rejected"), [(2, False), (3, True)])
def test_two_images_of_a_small_set_may_change_class(run, data, tmp_path, images, rejected):
    """With 18 images a tolerance of 0.1% would allow none, and rounding to fp16 changes some."""
    moved = tmp_path / "run"
    shutil.copytree(run, moved)
    config = json.loads((moved / "encoder" / "config.json").read_text())
    metrics, name = config["nnclr"]["metrics"], f"knn20/{data.name}"
    metrics[name] = round(metrics[name] + (-1 if metrics[name] > 0.5 else 1) * images / 18, 4)
    (moved / "encoder" / "config.json").write_text(json.dumps(config))
    with pytest.raises(WeightsMismatch, match="on the same images") if rejected else nullcontext():
        export(moved, tmp_path / "model", data=[data])
    assert (tmp_path / "model").exists() != rejected


def test_a_finished_run_writes_its_other_network_on_request(run, data, tmp_path):
    other = tmp_path / "run"
    shutil.copytree(run, other)
    settings = recipe(*SHORT, "method=momentum_nnclr", "encoder=momentum")
    done = pretrain(settings, [data], other, resume=True)
    saved = load_checkpoint(other)
    assert saved is not None
    for folder, place in ((run, "backbone."), (other, "momentum.encoder.0.")):
        written = load_file(folder / "encoder" / "model.safetensors")
        kept = {key.removeprefix(place): value for key, value in saved["learner"].items() if key.startswith(place)}
        assert written.keys() == kept.keys()
        for key, value in written.items():
            torch.testing.assert_close(value, kept[key], rtol=0, atol=0)
    assert read_config(other / "encoder").nnclr["encoder"] == "momentum"
    assert done.scores[f"knn20/{data.name}"] == pytest.approx(scored_by_eval(other / "encoder", data), abs=1e-4)
    exported = export(other, tmp_path / "model", data=[data])
    assert exported.rechecked[f"knn20/{data.name}"] is not None
    x = torch.randn(2, 3, 32, 32)
    one, two = (load_encoder(folder, device="cpu").embed(x) for folder in (run / "encoder", exported.folder))
    assert not np.allclose(one, two, atol=1e-4)


def test_the_same_export_gives_the_same_bytes(run, data, tmp_path):
    one, two = (export(run, tmp_path / name / "model", data=[data]).folder for name in "ab")
    files = sorted(path.name for path in one.iterdir())
    assert len(files) == 4
    for name in files:
        assert (one / name).read_bytes() == (two / name).read_bytes(), name


def test_images_without_labels_cannot_measure(run, data, tmp_path):
    with pytest.raises(InvalidRequest, match="labeled images"):
        export(run, tmp_path / "model", data=[data / "train" / "cat"])
