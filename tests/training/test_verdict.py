"""Every finished run ends with one verdict: use the run, a starter as it is, hand-crafted vectors, or nothing."""

import csv
import dataclasses
import json
import shutil

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console
from tiny_runs import FAST, nnclr, recipe, stop_in_step

from nnclr_hub import load_encoder
from nnclr_hub.errors import InvalidRequest
from nnclr_hub.hub.layout import HEADS, read_config, read_weights
from nnclr_hub.hub.registry import default_model
from nnclr_hub.publish.export import export_model
from nnclr_hub.table_rows import LabelTable
from training import ablate, recorder
from training.evals.task import read_task
from training.monitor import read_lines, read_log
from training.pretrain import pretrain
from training.recipes import find_recipe
from training.recipes.auto import FREE_STARTER, HELPFUL_STEPS
from training.run import Callback
from training.run_export import export
from training.verdict import References, Verdict, judge

QUIET = Console(quiet=True)
WIDE = "channels=8,16,24,32"  # those of the fixture `model`
pytestmark = pytest.mark.usefixtures("without_graphs")


def verdict_of(done) -> Verdict:
    assert done.verdict is not None
    return done.verdict


class Forget(Callback):
    """Clear the weights after the last step, so that all images have one vector."""

    def on_step(self, run, result):
        if run.finished:
            for parameter in run.learner.backbone.parameters():
                parameter.data.zero_()


@pytest.fixture(scope="module")
def flat(photos, tmp_path_factory):
    """Copy the photos into one folder, and list the labels of 45 of them in a table next to it."""
    folder = tmp_path_factory.mktemp("flat") / "photos"
    folder.mkdir()
    rows = []
    for path in sorted(photos.rglob("*.jpg")):
        name = f"{path.parent.name}-{path.name}"
        shutil.copy(path, folder / name)
        if int(path.stem) < 15:
            rows.append((name, path.parent.name))
    table = folder.parent / "known.csv"
    with table.open("w", newline="") as file:
        csv.writer(file).writerows([("path", "label"), *rows])
    return folder, table


@pytest.fixture(scope="module")
def worse(photos, model, tmp_path_factory):
    """A finished run that is worse than its parent, with its verdict."""
    out = tmp_path_factory.mktemp("runs") / "worse"
    done = pretrain(recipe(WIDE, "epochs=1"), [photos], out, init=str(model), callbacks=[Forget()], console=QUIET)
    assert done.finished
    return out, verdict_of(done)


def test_a_run_that_is_worse_says_to_use_a_starter_first_everywhere(worse, model):
    out, verdict = worse
    assert (verdict.choice, verdict.below_parent, verdict.learned) == ("starter", True, False)
    assert verdict.use in (FREE_STARTER, default_model(), str(model))
    low, mean, high = verdict.interval or (0, 0, 0)
    assert low <= mean <= high < 0
    assert {"hog", "color", "hog+color", FREE_STARTER, default_model(), str(model), "run"} < verdict.scores.keys()
    assert verdict.labels == 60, "class folders without val/ are a labeled set"
    assert next(iter(json.loads((out / "run.json").read_text()))) == "verdict"
    stored = Verdict.read(out)
    assert stored is not None
    assert stored.sentence == verdict.sentence
    page = (out / "report.html").read_text()
    assert page.index(verdict.sentence.split(".")[0]) < page.index("<table")
    about = read_config(out / "encoder").nnclr
    assert about["verdict"]["sentence"] == verdict.sentence
    card = " ".join((out / "encoder" / "README.md").read_text().split())
    assert card.index("Verdict") < card.index("A resnet18 that turns")


def test_an_encoder_below_its_parent_is_exported_only_with_force(worse, tmp_path):
    out, _ = worse
    with pytest.raises(InvalidRequest) as refused:
        export(out, tmp_path / "model")
    assert refused.value.code == "invalid_request"
    assert not (tmp_path / "model").exists()
    code, _, _ = nnclr("export", out, tmp_path / "model")
    assert code != 0
    code, printed, error = nnclr("export", out, tmp_path / "model", "--force")
    assert code == 0, error
    assert printed.startswith("Verdict:")
    card = " ".join((tmp_path / "model" / "README.md").read_text().split())
    assert "worse than its parent" in card
    with pytest.raises(InvalidRequest):
        export(tmp_path / "model", tmp_path / "again")


def test_a_run_that_equals_its_parent_learned_nothing(data, model, tmp_path):
    settings = (WIDE, "epochs=1", "base_lr=1e-9", "eval_size=48", "eval_crop=0.875", "heads_first=1")
    done = pretrain(recipe(*settings), [data], tmp_path / "run", init=str(model), console=QUIET)
    assert (verdict_of(done).learned, verdict_of(done).below_parent) == (False, False)
    assert "learned nothing" in verdict_of(done).sentence
    assert verdict_of(done).labels == 18, "the images of test/"


def test_the_report_shows_the_nearest_images_of_a_few(data, model, tmp_path):
    """Compare them with the vectors of the exported encoder."""
    pretrain(recipe(WIDE, "epochs=0.1"), [data], tmp_path / "run", init=str(model), console=QUIET)
    [line] = read_lines(tmp_path / "run" / "examples.jsonl")
    task = read_task(data)
    paths, trained = [*task.train.paths, *task.test.paths], len(task.train.paths)
    vectors = load_encoder(tmp_path / "run" / "encoder", device="cpu").embed(paths)
    similarity = vectors @ vectors[:trained].T  # fewer images than a transform is fitted on
    for query, found, values in zip(line["queries"], line["neighbors"], line["similarity"], strict=True):
        assert query >= trained
        np.testing.assert_allclose(similarity[query][found], np.sort(similarity[query])[::-1][: len(found)], atol=0.01)
        np.testing.assert_allclose(values, similarity[query][found], atol=0.01)
    assert line["thumbnails"].keys() == {str(i) for i in {*line["queries"]}.union(*line["neighbors"])}
    assert "Nearest images" in (tmp_path / "run" / "report.html").read_text()


def test_a_run_from_random_weights_is_compared_with_the_untrained_network(data, finished, tmp_path):
    verdict = Verdict.read(finished)
    assert verdict is not None
    assert "the untrained network" in verdict.scores
    assert verdict.use != "run"
    run = tmp_path / "run"
    with pytest.MonkeyPatch.context() as patch:
        stop_in_step(3, patch)
        assert pretrain(recipe(), [data], run, console=QUIET).verdict is None
    assert Verdict.read(run) is None
    assert verdict_of(pretrain(recipe(), [data], run, resume=True, console=QUIET)).record == verdict.record
    assert verdict_of(pretrain(recipe(), [data], run, resume=True, console=QUIET)) == Verdict.read(run), "finished"


def test_without_labels_the_verdict_says_what_the_log_shows(flat, tmp_path):
    done = pretrain(recipe("epochs=1", "log_every=1"), [flat[0]], tmp_path / "run", console=QUIET)
    assert (verdict_of(done).choice, verdict_of(done).scores, verdict_of(done).labels) == ("unknown", {}, 0)
    last = [line for line in read_log(tmp_path / "run") if "loss" in line][-1]
    assert "no labels" in verdict_of(done).sentence
    assert f"{last['loss']:.2f}" in verdict_of(done).sentence
    assert FREE_STARTER in verdict_of(done).sentence


def test_nothing_is_used_for_labels_that_no_vectors_predict(tmp_path):
    folder, random = tmp_path / "images", np.random.default_rng(0)
    for label in ("left", "right"):
        (folder / label).mkdir(parents=True)
    for number in range(50):
        pixels = random.integers(0, 256, (32, 32, 3), np.uint8)
        Image.fromarray(pixels).save(folder / ("left", "right")[number % 2] / f"{number}.png")
    done = pretrain(recipe("epochs=1", "pack_size=32"), [folder], tmp_path / "run", console=QUIET)
    assert verdict_of(done).choice == "nothing", "noise has no classes"
    assert verdict_of(done).use == ""


def test_auto_starts_from_the_free_starter_and_keeps_its_input_and_heads(photos, tmp_path, capsys):
    settings = {"epochs": 0.15, "image_size": 32, "pack_size": 32, "batch_size": 8}
    done = pretrain("auto", [photos], tmp_path / "run", settings=settings, console=Console(stderr=True, width=400))
    assert done.finished
    about = json.loads((tmp_path / "run" / "run.json").read_text())
    assert about["init"] == FREE_STARTER
    assert (about["image_size"], about["eval_size"], about["eval_crop"]) == (32, 128, 1.0)
    assert (about["projection_hidden"], about["projection_dim"], about["prediction"]) == (2048, 256, "none")
    parents = read_config(tmp_path / "run" / "encoder").nnclr["parents"]
    assert [one["source"] for one in parents] == [FREE_STARTER]
    printed = capsys.readouterr().err
    first, scored, last = (printed.index(text) for text in ("auto:", "before the run", "verdict:"))
    assert first < scored < last
    assert "--set method=nnclr" in printed.partition("auto:")[2].partition("auto:")[0], "in the first line"
    assert "% raw)" in printed[scored:last]
    assert "cc-by-4.0" in printed
    assert "too few" in printed
    assert verdict_of(done).scores[FREE_STARTER] > 0.5


def auto_from(parent, photos, out, labels=None, callbacks=(), *, resume=False) -> Verdict:
    """Run a few steps of `auto` from an encoder."""
    settings = ["epochs=0.3", "batch_size=8", "image_size=32", "pack_size=32", "precision=fp32"]
    done = pretrain(
        "auto",
        [photos],
        out,
        settings=settings,
        init=str(parent),
        labels=labels,
        callbacks=callbacks,
        resume=resume,
        console=QUIET,
    )
    return verdict_of(done)


def fingerprint(folder) -> str:
    return load_encoder(folder, device="cpu").fingerprint


@pytest.mark.parametrize("labeled", [True, False])
def test_auto_keeps_the_encoder_that_it_does_not_improve(photos, flat, model, tmp_path, labeled):
    """Labels show it; without labels, so few steps have never helped."""
    verdict = auto_from(model, photos if labeled else flat[0], tmp_path / "run", callbacks=[Forget()])
    assert (verdict.kept, bool(verdict.scores)) == (str(model), labeled)
    assert str(HELPFUL_STEPS) in verdict.sentence
    assert fingerprint(tmp_path / "run" / "encoder") == fingerprint(model)
    assert fingerprint(tmp_path / "run" / "trained") != fingerprint(model)
    export(tmp_path / "run", tmp_path / "kept")
    assert fingerprint(tmp_path / "kept") == fingerprint(model)
    export(tmp_path / "run" / "trained", tmp_path / "trained", force=True)
    assert fingerprint(tmp_path / "trained") == fingerprint(tmp_path / "run" / "trained")
    about = read_config(tmp_path / "trained").nnclr
    assert (about["recipe"], about["verdict"]["kept"]) == ("auto", str(model))
    if labeled:
        with pytest.raises(InvalidRequest):
            export(tmp_path / "run" / "trained", tmp_path / "worse")


@pytest.mark.parametrize("where", ["keep_parent", "write_run_json"])
def test_a_run_that_was_killed_before_its_verdict_reaches_it_by_resume(flat, model, tmp_path, where):
    class Kill(Callback):
        def on_step(self, run, result):
            if run.finished:
                patch.setattr(recorder, where, stop)

    def stop(*_):
        raise KeyboardInterrupt

    run = tmp_path / "run"
    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        auto_from(model, flat[0], run, callbacks=[Forget(), Kill()])
    assert Verdict.read(run) is None
    verdict = auto_from(model, flat[0], run, resume=True)
    assert verdict.kept == str(model)
    assert verdict == Verdict.read(run)
    assert verdict.sentence in (run / "report.html").read_text()
    assert fingerprint(run / "encoder") == fingerprint(model)
    assert fingerprint(run / "trained") != fingerprint(model)
    assert not (run / "trained.part").exists()


def test_a_kept_encoder_has_the_heads_of_its_parent(flat, model, tmp_path):
    encoder = load_encoder(model, device="cpu", backend="torch")
    heads = {"projection": {"0.weight": torch.ones(2, 3)}, "prediction": {"0.weight": torch.zeros(3, 2)}}
    parent = export_model(
        encoder.backbone,
        tmp_path / "parent",
        architecture="resnet18",
        model_args=read_config(model).model_args,
        preprocessing=encoder.transform.preprocessing,
        heads=heads,
        graph=False,
    )
    assert auto_from(parent, flat[0], tmp_path / "run").kept == str(parent)
    kept, given = (read_weights(folder, HEADS) for folder in (tmp_path / "run" / "encoder", parent))
    torch.testing.assert_close(kept, given, rtol=0, atol=0)


def test_auto_changes_an_encoder_that_it_improves(photos, tmp_path):
    class Succeed(Callback):
        def on_step(self, run, result):
            run.learner.backbone.load_state_dict(good.backbone.state_dict())

    good, bad = (load_encoder(FREE_STARTER, device="cpu", backend="torch") for _ in range(2))
    for parameter in bad.backbone.parameters():
        parameter.data.zero_()
    parent = export_model(
        bad.backbone,
        tmp_path / "parent",
        architecture="resnet18",
        preprocessing=bad.transform.preprocessing,
        graph=False,
    )
    verdict = auto_from(parent, photos, tmp_path / "run", callbacks=[Succeed()])
    assert (verdict.learned, verdict.kept) == (True, "")
    assert str(HELPFUL_STEPS) not in verdict.sentence, "these few steps did help"
    assert fingerprint(tmp_path / "run" / "encoder") == good.fingerprint
    assert not (tmp_path / "run" / "trained").exists()


@pytest.mark.parametrize("raw_too", [True, False])
def test_auto_changes_an_encoder_only_if_both_kinds_of_vectors_are_better(raw_too):
    right = np.arange(100) < 40
    references = References([], recipe(), None, QUIET)
    references.correct = dict.fromkeys(("hog", "color", "hog+color", "the most common class"), right * 0.0)
    references.correct |= {"parent": right * 1.0, "parent raw": right * 1.0}
    references.correct |= {"run": np.ones(100), "run raw": np.ones(100) if raw_too else right * 1.0}
    auto = dataclasses.replace(find_recipe("small_cpu"), name="auto")
    verdict = judge(references, "parent", auto, [{"step": 400, "loss": 1.0, "chance": 4.0}], 400, same_input=True)
    expected = ("run", "") if raw_too else ("starter", "parent")
    assert (verdict.choice, verdict.kept, verdict.learned) == (*expected, True)
    assert judge(references, "parent", auto, [], 400).kept == "", "another input size"


@pytest.mark.parametrize("how", ["none", "network"])
def test_auto_starts_from_random_weights_with_init_none_or_another_network(photos, tmp_path, how):
    settings = [one for one in FAST if not one.startswith("epochs")] + ["epochs=1"]
    settings = settings if how == "network" else [*settings[1:], "backbone=resnet10t", "channels="]
    init = "none" if how == "none" else None
    done = pretrain("auto", [photos], tmp_path / "run", settings=settings, init=init, console=QUIET)
    assert done.finished
    assert json.loads((tmp_path / "run" / "run.json").read_text())["init"] is None


def test_a_resumed_run_keeps_the_encoder_that_it_started_from(data, model, tmp_path):
    run = tmp_path / "run"
    for options in ({"init": str(model)}, {"resume": True}):
        assert not pretrain(recipe(WIDE), [data], run, minutes=0, console=QUIET, **options).finished
    assert json.loads((run / "run.json").read_text())["init"] == str(model)


# ------------------------------------------------------------------------------ a table of labels


def test_a_run_with_a_table_has_a_held_out_curve_and_a_verdict(flat, model, tmp_path):
    folder, table = flat
    out = tmp_path / "run"
    done = pretrain(recipe(WIDE), [folder], out, labels=table, init=str(model), console=QUIET)
    assert {"knn20/known", "linear/known"} <= set(done.scores)
    curve = [line["knn20/known"] for line in read_log(out) if "knn20/known" in line]
    assert len(curve) == 3  # at the start, and at both checkpoints
    assert curve[-1] == done.scores["knn20/known"]
    assert verdict_of(done).labels == 45


def test_a_wrong_table_stops_before_the_images_are_read(flat, tmp_path):
    folder, table = flat
    wrong = tmp_path / "wrong.csv"
    wrong.write_text("path,label\nnowhere.jpg,a\n")
    same = tmp_path / "photos.csv"
    shutil.copy(table, same)
    for one in (wrong, same):
        with pytest.raises(InvalidRequest):
            pretrain(recipe(), [folder], tmp_path / "run", labels=one)
    assert not (tmp_path / "run").exists()


def test_missing_files_of_a_table_are_named_and_left_out(flat, tmp_path, caplog):
    folder, table = flat
    longer = tmp_path / "longer.csv"
    longer.write_text(table.read_text() + "lost-1.jpg,cat\nlost-2.jpg,cat\n")
    done = pretrain(recipe("epochs=1"), [folder], tmp_path / "run", labels=LabelTable(longer, folder))
    assert "knn20/longer" in done.scores
    assert verdict_of(done).labels == 45
    assert "lost-1.jpg" in caplog.text


def test_the_rows_of_a_table_are_scored_by_labels(flat, tmp_path):
    folder, table = flat
    base = recipe("epochs=1", "checkpoint_every=1")
    own = ["tau .2: temperature=0.2 k=2"]
    rows = ablate.ablate("own", base, [folder], tmp_path / "tables", rows=own, labels=table, console=QUIET)
    assert rows is not None
    assert [one.row.label for one in rows] == ["tau .2"]
    assert "knn20/known" in rows[0].scores
    about = json.loads((tmp_path / "tables" / "own" / "tau-2" / "seed-0" / "run.json").read_text())
    assert (about["temperature"], about["k"]) == (0.2, 2)


# ------------------------------------------------------------------------------ colors


def colored(folder, count=40):
    """Write images of two classes that differ in their color alone."""
    random = np.random.default_rng(0)
    for number in range(count):
        pixels = random.integers(0, 60, (48, 48, 3), np.uint8)
        bar = np.s_[:, 18:30] if random.integers(2) else np.s_[18:30, :]
        pixels[bar][..., number % 2] += 150
        (folder / f"kind{number % 2}").mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(folder / f"kind{number % 2}" / f"{number}.png")
    return folder


def test_colors_are_advised_where_they_beat_the_run_and_auto_keeps_them_by_folder_labels(tmp_path):
    folder = colored(tmp_path / "images")
    done = pretrain(recipe("epochs=1"), [folder], tmp_path / "run", callbacks=[Forget()], console=QUIET)
    assert verdict_of(done).scores["color"] > verdict_of(done).scores["run"]
    assert "augmentation=keep_color" in verdict_of(done).sentence
    auto = find_recipe("auto").with_settings([*FAST, "epochs=1"])
    pretrain(auto, [folder], tmp_path / "auto", console=QUIET)
    assert json.loads((tmp_path / "auto" / "run.json").read_text())["augmentation"] == "keep_color"
