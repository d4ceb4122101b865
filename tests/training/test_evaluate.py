"""`nnclr eval` and `nnclr probe`, end to end."""

import csv
import json
import re
import shutil

import pytest
from tiny_runs import nnclr


def test_protocols_write_what_it_takes_to_repeat_them(data, model, tmp_path):
    """Of a folder whose name is the suffix of some scores."""
    data, out = shutil.copytree(data, tmp_path / "top5"), tmp_path / "results"
    call = ("eval", "knn,linear,few_shot,retrieval", model, f"random:{model}", "pixels", "--data", data, "--out", out)
    code, shown, err = nnclr(*call, "--set", "shots=1,5", "--set", "k=5")
    assert code == 0, err
    records = json.loads((out / "results.json").read_text())
    assert len(records) == 12
    first = records[0]
    assert first["images"] == {"train": 42, "test": 18}
    assert first["classes"] == 3
    assert first["settings"] == {"k": 5, "temperature": 0.07, "vectors": "raw"}
    assert {"torch", "timm", "nnclr_hub", "python"} <= first["versions"].keys()
    assert first["fingerprint"]
    assert first["date"]
    assert first["command"].startswith("nnclr ")
    curve = next(one["values"] for one in records if one["protocol"] == "few_shot")
    point, spread = (100 * curve[f"few_shot/{data.name}/5{end}"] for end in ("", "/std"))
    assert "top5 (top1), 5 per class" in (out / "results.md").read_text()
    assert f"| {point:.1f} ± {spread:.1f} |" in (out / "results.md").read_text()
    assert "pixels" in shown
    assert "retrieval" in shown
    assert "nan" not in shown
    score, (low, high) = first["values"][f"knn5/{data.name}"], first["intervals"][f"knn5/{data.name}"]
    assert 0 <= low <= score <= high <= 1
    assert low < high or score in (0, 1)
    assert "minus each other source" in (out / "results.md").read_text()
    fingerprints = {one["source"]: one["fingerprint"] for one in records}
    assert len(set(fingerprints.values())) == 3, "random weights are a different encoder"


def test_existing_results_are_not_computed_again(data, model, tmp_path):
    call = ("eval", "knn", model, "--data", data, "--out", tmp_path)
    nnclr(*call)
    code, _, err = nnclr(*call)
    assert code == 0
    assert "already" in err
    nnclr(*call, "--set", "k=3")
    assert len(json.loads((tmp_path / "results.json").read_text())) == 2


def test_tables_keep_scores_of_other_settings_and_differences_of_other_sources_apart(data, model, tmp_path):
    other = shutil.copytree(data, tmp_path / "other")
    calls = [
        (("pixels", "hog"), data, 20),
        (("hog", "pixels", "color"), data, 5),
        (("hog", "pixels"), other, 20),
    ]
    for sources, folder, k in calls:
        code, _, err = nnclr("eval", "knn", *sources, "--data", folder, "--set", f"k={k}", "--out", tmp_path / "o")
        assert code == 0, err
    tables: dict[str, list[list[str]]] = {}
    for block in (tmp_path / "o" / "results.md").read_text().split("## ")[1:]:
        title, *lines = block.splitlines()
        tables[title] = [line.strip("| ").split(" | ") for line in lines if line.startswith("| ")]
    for record in json.loads((tmp_path / "o" / "results.json").read_text()):
        head, *rows = tables[f"knn, k {record['settings']['k']}"]
        [row] = [row for row in rows if row[0] == record["source"]]
        score = 100 * next(iter(record["values"].values()))
        assert row[head.index(f"{record['data']} (top1)")].startswith(f"{score:.1f} ")
    minus = {title: [row[0] for row in rows[1:]] for title, rows in tables.items() if "minus" in title}
    assert minus == {
        f"knn, k {k}: {first} minus each other source, on the same images": others
        for k, first, others in ((20, "pixels", ["hog"]), (5, "hog", ["pixels", "color"]), (20, "hog", ["pixels"]))
    }


def test_results_of_another_backend_are_separate_and_name_it(data, model, tmp_path, monkeypatch):
    """By flag or by environment."""
    pytest.importorskip("openvino")
    call = ("eval", "knn", model, "--data", data, "--out", tmp_path, "--device", "cpu")
    nnclr(*call)
    code, _, err = nnclr(*call, "--backend", "openvino")
    assert (code, "already" in err) == (0, False), err
    monkeypatch.setenv("NNCLR_BACKEND", "openvino")
    code, _, err = nnclr(*call)
    assert (code, "already" in err) == (0, True), err
    records = json.loads((tmp_path / "results.json").read_text())
    assert {one["source"] for one in records} == {str(model), f"{model}, openvino"}


@pytest.mark.parametrize(
    ("protocol", "source", "backend"), [("knn", "hog", "tensorflow"), ("finetune", None, "openvino")]
)
def test_backends_that_do_not_exist_or_cannot_train_are_refused(protocol, source, backend, data, model, tmp_path):
    code, _, err = nnclr("eval", protocol, source or model, "--data", data, "--out", tmp_path, "--backend", backend)
    assert code == 2
    assert "Traceback" not in err


def test_finetune_writes_an_encoder_that_is_a_source_and_keeps_earlier_ones(data, model, tmp_path):
    call = ("--data", data, "--out", tmp_path, "--json", "--set", "epochs=1", "--set", "workers=0", "--device", "cpu")
    for seed, protocols in ((0, ["finetune", "linear_images"]), (1, ["finetune"])):
        code, shown, err = nnclr("eval", ",".join(protocols), model, *call, "--set", f"seed={seed}")
        assert code == 0, err
        assert [one["protocol"] for one in json.loads(shown)] == protocols
    folders = [one["made"][0] for one in json.loads((tmp_path / "results.json").read_text()) if one["made"]]
    assert len(set(folders)) == 2
    for tuned in folders:
        code, _, err = nnclr("eval", "knn", tuned, "--data", data, "--out", tmp_path)
        assert code == 0, err


def test_transfer_uses_the_metric_of_a_set_and_reports_missing_sets(data, model, tmp_path, monkeypatch):
    def offline(name, *rest):
        from nnclr_hub.errors import NoImages

        raise NoImages(f"{name} could not be fetched: no network.")

    pets = shutil.copytree(data, tmp_path / "pets")
    code, shown, err = nnclr("eval", "transfer", model, "--data", pets, "--out", tmp_path / "out", "--json")
    assert code == 0, err
    (record,) = json.loads(shown)
    assert record["metric"] == "mean_per_class"
    assert next(iter(record["values"])) == "transfer/pets"
    import training.data.named_sets  # noqa: F401
    from nnclr_hub.cli.programs import load_program

    monkeypatch.setattr(load_program("training", "data.named_sets"), "fetch", offline)
    code, _, err = nnclr("eval", "transfer", model, "--out", tmp_path / "none")
    assert code == 0
    assert all(f"skipped {name}:" in err for name in ("food101", "birdsnap", "voc2007", "flowers"))


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["eval", "knn", "{model}"], "--data"),
        (["eval", "knn", "--data", "{data}"], "encoder"),
        (["eval", "", "{model}"], "protocol"),
        (["eval", "knnn", "{model}", "--data", "{data}"], "'knn'"),
        (["eval", "finetune", "pixels", "--data", "{data}"], "trains a network"),
        (["eval", "knn", "{model}", "--data", "{photos}"], "train/"),
        (["eval", "linear", "{model}", "--data", "{data}", "--set", "k=3"], "No setting is named"),
        (["probe", "eval", "{data}", "--probe", "{photos}"], "probe"),
        (["probe", "fit", "{photos}/cat", "--model", "{model}"], "no labels"),
    ],
)
def test_invalid_calls_end_with_one_error(arguments, sentence, data, photos, model, tmp_path):
    call = [one.format(data=data, photos=photos, model=model) for one in arguments]
    if call[0] == "eval":
        call += ["--out", str(tmp_path / "results")]
    code, _, err = nnclr(*call)
    assert code == 2
    assert sentence in err
    assert "Traceback" not in err
    assert list(tmp_path.iterdir()) == [], "no file is written"


def test_a_probe_fits_scores_and_predicts(data, model, image_files, tmp_path):
    probe = tmp_path / "probe"
    code, shown, err = nnclr("probe", "fit", data, "--model", model, "--out", probe, "--balanced")
    assert code == 0, err
    assert "3 classes from 42 images" in shown
    assert re.search(r"top1 \d\.\d{3}.*\(9 images\)", shown), (
        "a fifth of each class is held out to score a second probe"
    )
    code, shown, err = nnclr("probe", "eval", data, "--probe", probe, "--json")
    verdict = json.loads(shown)
    assert verdict["scores"]["top1"] > 0.6
    assert verdict["images"] == 18
    (tmp_path / "bad.jpg").write_bytes(b"nothing")
    code, _, err = nnclr(
        "probe", "predict", image_files[0], tmp_path / "bad.jpg", "--probe", probe, "--out", tmp_path / "l.csv"
    )
    assert code == 0
    assert "skipped" in err
    rows = list(csv.DictReader((tmp_path / "l.csv").read_text().splitlines()))
    assert len(rows) == 1
    assert rows[0]["label"] in {"astronaut", "cat", "coffee"}
    assert sum(float(rows[0][name]) for name in ("astronaut", "cat", "coffee")) == pytest.approx(1, abs=1e-3)


def test_predictions_are_a_table_that_a_fit_can_read(photos, model, tmp_path):
    """The labels differ from the folder names."""
    table = tmp_path / "labels.csv"
    lines = [
        f"{path},{'person' if path.parent.name == 'astronaut' else 'thing'}" for path in sorted(photos.rglob("*.jpg"))
    ]
    table.write_text("\n".join(["path,label", *lines]) + "\n")
    assert nnclr("probe", "fit", table, "--model", model, "--out", tmp_path / "probe")[0] == 0
    nnclr("probe", "predict", photos, "--probe", tmp_path / "probe", "--out", tmp_path / "said.csv")
    code, shown, err = nnclr("probe", "fit", tmp_path / "said.csv", "--model", model, "--out", tmp_path / "again")
    assert code == 0, err
    assert "2 classes from 60 images" in shown


def test_labels_of_a_table_are_used(photos, model, tmp_path):
    names = [path.relative_to(photos) for path in sorted(photos.rglob("*.jpg"))]
    table = tmp_path / "labels.csv"
    table.write_text("\n".join(["path,label", *(f"{name},is {name.parts[0]}" for name in names)]) + "\n")
    options = ["--labels", table, "--model", model]
    code, shown, err = nnclr("probe", "fit", photos, *options, "--out", tmp_path / "probe")
    assert code == 0, err
    assert "3 classes from 60 images" in shown
    assert re.search(r"interval of top1: \d\.\d{3} to \d\.\d{3}", shown)
    code, shown, err = nnclr("probe", "eval", photos, "--labels", table, "--probe", tmp_path / "probe", "--json")
    assert code == 0, err
    result = json.loads(shown)
    assert result["interval"][0] <= result["scores"]["top1"] <= result["interval"][1]
    assert nnclr("probe", "fit", photos, *options, "--root", tmp_path, "--out", tmp_path / "no")[0] == 2
    assert nnclr("probe", "predict", photos, "--collection", "c", "--probe", tmp_path / "probe")[0] == 2


def test_a_probe_of_a_different_encoder_is_refused(data, model, make_model, tmp_path):
    nnclr("probe", "fit", data, "--model", model, "--out", tmp_path / "probe")
    code, _, err = nnclr("probe", "eval", data, "--probe", tmp_path / "probe", "--model", make_model(seed=5))
    assert code == 1
    assert "fit a new probe" in err


def test_changed_images_are_evaluated_again(data, model, tmp_path):
    one = shutil.copytree(data, tmp_path / "one" / "set")
    two = shutil.copytree(data, tmp_path / "two" / "set")
    shutil.rmtree(two / "train" / "cat")
    shutil.copytree(two / "train" / "coffee", two / "train" / "cat")  # as many, but not cats
    out = tmp_path / "out"
    nnclr("eval", "knn", model, "--data", one, "--out", out)
    code, shown, err = nnclr("eval", "knn", model, "--data", two, "--out", out, "--json")
    assert code == 0, err
    assert "already" not in err
    assert len(json.loads((out / "results.json").read_text())) == 2
    _, shown, _ = nnclr("eval", "knn", model, "--data", one, "--data", two, "--out", tmp_path / "both", "--json")
    assert [record["data"] for record in json.loads(shown)] == ["set", "set-2"], "separate cells"


def test_every_protocol_reports_unreadable_and_unlabeled_images(data, model, tmp_path):
    folder = shutil.copytree(data, tmp_path / "set")
    for part in ("train", "test"):
        (folder / part / "cat" / "junk.jpg").write_bytes(b"nothing")
    shutil.copy(next(folder.rglob("*.jpg")), folder / "test" / "loose.jpg")
    options = ("--set", "epochs=1", "--set", "workers=0", "--device", "cpu", "--json")
    code, shown, err = nnclr("eval", "knn,finetune", model, "--data", folder, "--out", tmp_path / "o", *options)
    assert code == 0, err
    for record in json.loads(shown):
        assert any("2 files cannot be read" in note for note in record["left_out"]), record["protocol"]
        assert any("1 image without a label" in note for note in record["left_out"]), record["protocol"]


def test_impossible_combinations_are_skipped(data, model, tmp_path):
    table = ["path,labels"] + [f"{p.relative_to(data)},{p.parent.name};x" for p in sorted(data.rglob("*.jpg"))]
    folder = shutil.copytree(data, tmp_path / "several")
    (folder / "labels.csv").write_text("\n".join(table) + "\n")
    code, shown, err = nnclr("eval", "knn,linear", model, "--data", folder, "--out", tmp_path / "o", "--json")
    assert code == 0, err
    assert [record["protocol"] for record in json.loads(shown)] == ["linear"]
    assert "skipped knn" in err
    assert "skipped: knn" in (tmp_path / "o" / "results.md").read_text()
    code, _, err = nnclr("eval", "knn", "nosuch", model, "--data", data, "--out", tmp_path / "o")
    assert code == 2, "an unknown name is an error, not a skipped source"


def test_a_table_next_to_a_folder_does_not_label_it(data, model, tmp_path):
    (tmp_path / "a").mkdir()
    folder = shutil.copytree(data / "train", tmp_path / "a" / "photos")
    (tmp_path / "a" / "labels.csv").write_text("path,label\n" + f"{next(folder.rglob('*.jpg'))},wrong\n")
    code, shown, err = nnclr("probe", "fit", folder, "--model", model, "--out", tmp_path / "probe")
    assert code == 0, err
    assert "3 classes" in shown


def test_an_output_folder_that_is_not_writable_is_rejected(data, model, tmp_path):
    (tmp_path / "file").write_text("mine")
    for out in (tmp_path / "file", "/proc/x"):
        code, _, err = nnclr("eval", "knn", model, "--data", data, "--out", out)
        assert code == 2
        assert "--out" in err
    code, _, err = nnclr("probe", "fit", data, "--model", model, "--out", tmp_path / "file")
    assert code == 2
