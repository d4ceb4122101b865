"""`nnclr inspect`: a folder and a collection, with planted findings, through the command line."""

import csv
import io
import json
import shutil

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from nnclr_hub import CollectionSpec, Item, open_store
from nnclr_hub.cli.app import app
from nnclr_hub.encoder.hand_crafted import FLOORS
from nnclr_hub.errors import InvalidRequest
from nnclr_hub.probe.uncertainty import paired_difference
from nnclr_hub.table_rows import LabelTable
from nnclr_hub.workbench.inspection.comparison import (
    compare_on_collection,
    compare_vectors,
    count_clear,
    rankme,
    uniformity,
)
from nnclr_hub.workbench.inspection.subject import inspected_files

KEYS = {
    "left_out",
    "exact_duplicates",
    "near_duplicates",
    "outliers",
    "suspect_labels",
    "clusters",
    "leaks",
    "class_overlap",
    "label_next",
}


def pattern(kind, seed):
    """Return an image of one of two classes: stripes along either direction, each with a different texture."""
    random = np.random.default_rng(seed)
    wave = 60 * np.sin(np.arange(64) / (2 + random.random()) + random.random() * 6)
    texture = np.asarray(Image.fromarray(random.integers(60, 190, (20, 20), np.uint8)).resize((64, 64)), float)
    gray = np.clip(texture + (wave[:, None] if kind else wave[None]), 0, 255).astype(np.uint8)
    return Image.fromarray(np.stack([gray] * 3, axis=2))


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Make 60 images in train/ and test/, a table for 40 of them, and planted findings."""
    root = tmp_path_factory.mktemp("inspect") / "photos"
    rows = []
    for part in ("train", "test"):
        (root / part).mkdir(parents=True)
    for i in range(60):
        name = f"{'train' if i < 40 else 'test'}/{i:02d}.png"
        pattern(i % 2, i).save(root / name)
        rows.append((name, "rows" if i % 2 else "columns"))
    rows[4] = (rows[4][0], "rows")  # a wrong label
    shutil.copy(root / "train/10.png", root / "test/copy.png")
    pattern(0, 12).crop((2, 3, 63, 63)).save(root / "train/cropped.jpg", quality=90)
    Image.new("RGB", (64, 64), "white").save(root / "train/empty.png")
    (root / "train/broken.jpg").write_text("no image")
    for name in ("a.mov", "b.MOV", "c.xcf"):
        (root / name).write_text("left out")
    with (root / "labels.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("path", "label"), *rows[:40]])
    return root


def run(*arguments):
    return CliRunner().invoke(app, [str(one) for one in arguments])


@pytest.fixture(scope="module")
def report(photos, tmp_path_factory):
    out = tmp_path_factory.mktemp("out") / "report"
    done = run("inspect", photos, "--model", "pixels", "--out", out, "--json")
    assert done.exit_code == 0, done.output
    return out


def test_the_report_has_every_planted_finding(report):
    found = json.loads((report / "findings.json").read_text())
    assert set(found) >= KEYS
    assert found["left_out"] == {".mov": 2, ".xcf": 1}
    assert [one["item"] for one in found["broken"]] == ["train/broken.jpg"]
    assert [one["items"] for one in found["exact_duplicates"]] == [["test/copy.png", "train/10.png"]]
    assert [one["items"] for one in found["near_duplicates"]] == [["train/12.png", "train/cropped.jpg"]]
    assert [(one["items"], one["parts"]) for one in found["leaks"]] == [
        (["test/copy.png", "train/10.png"], ["test", "train"])
    ]
    assert found["outliers"][0]["item"] == "train/empty.png"
    scores = [one["score"] for one in found["outliers"]]
    assert scores == sorted(scores, reverse=True)
    assert {one["item"]: one["problems"] for one in found["image_problems"]} == {"train/empty.png": ["empty"]}
    assert len(found["suspect_labels"]) == 40
    assert {"label", "proposed", "score"} <= set(found["suspect_labels"][0])
    items = [item for one in found["clusters"] for item in one["items"]]
    assert len(items) == len(set(items)) == 63
    labeled = {one["item"] for one in found["suspect_labels"]}
    assert found["label_next"]
    assert not labeled & {one["item"] for one in found["label_next"]}
    assert found["accuracy"]["low"] <= found["accuracy"]["top1"] <= found["accuracy"]["high"]


def test_the_tables_name_their_items_first(report):
    for table in report.glob("*.csv"):
        with table.open(newline="") as file:
            assert next(csv.reader(file))[0] == "id"
    with (report / "duplicates.csv").open(newline="") as file:
        assert {row["id"] for row in csv.DictReader(file)} == {"train/10.png", "train/cropped.jpg"}


def test_the_page_loads_nothing(report):
    page = (report / "report.html").read_text()
    assert "http://" not in page
    assert "https://" not in page
    assert "{{" not in page
    steps = page[page.index("What to do next") : page.index("</ol>")]
    for anchor, number in (("duplicates", 2), ("leaks", 1), ("outliers", None), ("unreadable-files", 1)):
        assert f'href="#{anchor}"' in steps
        assert f'<section id="{anchor}">' in page
        assert number is None or f"</a> ({number}): " in steps


def test_a_second_run_reads_no_image_again(photos, report, monkeypatch):
    from nnclr_hub.workbench.inspection import scan

    monkeypatch.setattr(scan, "decode_any", lambda source, reading: pytest.fail("read again"))
    (photos / "train/broken.jpg").rename(photos / "broken.txt")  # errors are not kept
    try:
        assert run("inspect", photos, "--model", "pixels", "--out", report).exit_code == 0
    finally:
        (photos / "broken.txt").rename(photos / "train/broken.jpg")


def test_a_collection_is_inspected_by_its_vectors(tmp_path):
    random = np.random.default_rng(0)
    vectors = random.normal(size=(60, 8)).astype(np.float32)
    vectors[59] = vectors[3] + 1e-4
    with open_store(tmp_path / "store") as store:
        made = store.create("c", CollectionSpec(8))
        made.upsert([Item(f"i{k}", vector, {"label": "ab"[k % 2]}) for k, vector in enumerate(vectors)])
    done = run("inspect", "c", "--store", tmp_path / "store", "--out", tmp_path / "report")
    assert done.exit_code == 0, done.output
    found = json.loads((tmp_path / "report" / "findings.json").read_text())
    assert [one["items"] for one in found["near_duplicates"]] == [["i3", "i59"]]
    assert len(found["suspect_labels"]) == 60


def test_a_folder_is_preferred_to_a_collection_of_its_name_unless_a_store_is_given(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "c").mkdir()
    for i in range(3):
        pattern(0, i).save(tmp_path / "c" / f"{i}.png")
    with open_store(tmp_path / "nnclr-store") as store:
        store.create("c", CollectionSpec(4)).upsert([Item(f"i{k}", row) for k, row in enumerate(np.eye(4))])

    def images(*arguments):
        done = run("inspect", *arguments, "--out", "report", "--json")
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout)["images"], "--store nnclr-store" in done.stderr

    assert images("c", "--model", "pixels") == (3, True)
    assert images("./c", "--model", "pixels") == (3, False)
    assert images("c", "--store", "nnclr-store") == (4, False)
    for options in (("--out", "report"), ("--compare", "pixels")):
        done = run("inspect", "c", "--store", "elsewhere", *options)
        assert done.exit_code == 2
        assert "elsewhere" in done.stderr  # a typing error in --store is not passed over


def test_wrong_calls_are_refused(photos, tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "other.csv").write_text("path,label\nnowhere.png,a\n")
    for arguments in (
        ("no-such-folder", "--out", tmp_path / "r"),
        ("--compare", "pixels"),
        (photos, photos),
        (photos, "--out", tmp_path / "file"),
        (photos, "--parts", "halves", "--out", tmp_path / "r"),
        (photos, "--labels", tmp_path / "other.csv", "--model", "pixels", "--out", tmp_path / "r"),
    ):
        assert run("inspect", *arguments).exit_code == 2, arguments


def test_paths_of_a_table_are_relative_to_it_to_the_folder_or_to_root(photos, tmp_path):
    table = tmp_path / "labels.csv"
    for name, root in (
        ("train/00.png", None),
        ("train/00.png", photos),
        ("00.png", photos / "train"),
        (photos / "train/00.png", None),
    ):
        table.write_text(f"path,label\n{name},a\n")
        listed = inspected_files(photos, LabelTable(table, root))
        assert dict(zip(listed.names, listed.labels, strict=True)) == {
            name: "a" if name == "train/00.png" else None for name in listed.names
        }
    (tmp_path / "other").mkdir()
    shutil.copy(photos / "train/01.png", tmp_path / "other")
    with pytest.raises(InvalidRequest):
        inspected_files(tmp_path / "other", table)


def test_compared_sources_answer_for_the_same_images(photos):
    done = run("inspect", "--compare", "pixels", "hog", "--labels", photos / "labels.csv", "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    pixels, hog = found["scores"]
    assert found["labels"] == 40
    for one in (pixels, hog):
        assert one["linear"][1] <= one["linear"][0] <= one["linear"][2]
    assert hog["against_first"]["mean"] == pytest.approx(hog["linear"][0] - pixels["linear"][0])
    assert found["conclusion"]


def test_an_address_can_be_compared(photos):
    done = run("inspect", f"file://{photos}", "--compare", "pixels", "--labels", photos / "labels.csv", "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["labels"] == 40


def test_unreadable_thumbnails_and_classes_of_few_images_are_left_out_of_a_comparison(tmp_path):
    with open_store(tmp_path / "store") as store:
        collection = store.create("photos", CollectionSpec(2))
        for i in range(42):
            pattern(i % 2, i).save(jpeg := io.BytesIO(), "JPEG")
            content = b"\xff\xd8\xff no image" if i == 7 else jpeg.getvalue()
            label = "one" if i == 6 else "rows" if i % 2 else "columns"
            collection.upsert([Item(f"i{i}", np.ones(2, np.float32), {"label": label}, content)])
        found = compare_on_collection(collection, [("pixels", FLOORS["pixels"])])
        assert (found.images, found.labels, found.scores[0].linear is None) == (41, 40, False)
    vectors = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)
    found = compare_vectors(["a"], [vectors], ["rows"] * 39 + ["one"])
    assert (found.images, found.labels, found.scores[0].linear) == (40, 0, None)


def test_scores_without_labels_have_their_known_values():
    # orthogonal directions of equal size, and the value of the sphere's circle: E exp(-4 (1 - cos t)) = e^-4 I0(4)
    assert rankme(np.tile(np.eye(6, dtype=np.float32), (20, 1))) == pytest.approx(6, rel=1e-3)
    angle = np.linspace(0, 2 * np.pi, 2000, endpoint=False)
    circle = np.stack([np.cos(angle), np.sin(angle)], axis=1).astype(np.float32)
    assert uniformity(circle) == pytest.approx(np.log(np.exp(-4) * np.i0(4)), abs=0.05)


@pytest.mark.parametrize(
    ("ps", "clear"), [([], 0), ([0.04], 1), ([0.063], 0), ([0.04, 0.04], 0), ([0.001, 0.03, 0.02], 3), ([0.01, 0.2], 1)]
)
def test_several_differences_are_clear_by_holms_method(ps, clear):
    assert count_clear(ps) == clear


def test_equal_encoders_are_rarely_called_clearly_different():
    """Of 80 comparisons of four equal encoders on 120 images, at most 5 % (and chance) find any clear difference."""
    dice = np.random.default_rng(0)
    wrong = 0
    for _ in range(80):
        right = dice.random((5, 120)) < 0.7
        ps = [paired_difference(one.astype(float), right[0].astype(float)).p for one in right[1:]]
        wrong += count_clear(ps) > 0
    assert wrong <= 8
