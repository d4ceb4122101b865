"""No verb overwrites files of another origin: --out is a new place, or holds an earlier result of the verb."""

import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from commands import error_line, nnclr, output_of

from nnclr_hub import CollectionSpec, Item, open_store

FOLDERS = [
    ("inspect photos --out out", "clusters.csv"),
    ("inspect c --store store --out out", "report.html"),
    ("probe fit photos --out out", "probe.json"),
    ("eval knn pixels --data photos --out out", "results.md"),
    ("ablate crop_only --data photos --out out", "crop_only/report.html"),
    ("embed photos --out out", "vectors.npy"),
    ("attention photos/astronaut/00.jpg --out out", "00-attention.png"),
    ("pretrain small_cpu --data photos --out out", "log.jsonl"),
    ("store backup out --store store", "mine.jpg"),
]
FILES = [
    ("embed photos --out out/labels.csv", "labels.csv"),
    ("embed photos --out out/mine.npy", "mine.npy"),
    ("search --id a --collection c --store store --out out/labels.csv", "labels.csv"),
    ("search --id a --collection c --store store --out out/page.html", "page.html"),
    ("probe predict photos --probe probe --out out/labels.csv", "labels.csv"),
    ("report run --out out/page.html", "page.html"),
    ("attention-grid photos/astronaut/00.jpg --out out/grid.png", "grid.png"),
]


@pytest.fixture(scope="module")
def place(tmp_path_factory, image_files) -> Path:
    """Sixteen images, a run and a store, which no test changes."""
    folder = tmp_path_factory.mktemp("outputs")
    (folder / "run").mkdir()
    for path in [*image_files[:8], *image_files[20:28]]:
        (folder / "photos" / path.parent.name).mkdir(parents=True, exist_ok=True)
        shutil.copy(path, folder / "photos" / path.parent.name / path.name)
    with open_store(folder / "store") as store:
        vectors = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)
        store.create("c", CollectionSpec(4)).upsert([Item(id, row) for id, row in zip("abcde", vectors, strict=True)])
    return folder


@pytest.fixture
def here(place, monkeypatch):
    monkeypatch.chdir(place)
    yield place
    shutil.rmtree(place / "out", ignore_errors=True)


@pytest.mark.parametrize(("words", "name"), FOLDERS + FILES)
def test_a_file_of_another_origin_stays(here, words, name):
    file = here / "out" / name
    file.parent.mkdir(parents=True)
    file.write_text("path,label\nmine.jpg,cat\n")

    answer = nnclr(*words.split())
    assert answer[0]
    assert re.search(r"\bout\b", error_line(answer, answer[0]))
    assert file.read_text() == "path,label\nmine.jpg,cat\n"
    assert [one.name for one in (here / "out").rglob("*") if one.is_file()] == [file.name]


# verbs, and what an earlier result of each looks like
IN_PLACE = {
    "inspect photos": "findings.json",
    "probe fit photos": "probe.safetensors",
    "eval knn pixels --data photos": "results.json",
    "embed photos": "",
    "pretrain small_cpu --data photos": "",
    "attention photos/astronaut/00.jpg": "00-attention.png",
}


@pytest.mark.parametrize("words", IN_PLACE)
def test_the_folder_of_the_images_is_no_place_for_results(here, words):
    """Not even if it holds what looks like an earlier result."""
    out = Path("photos/astronaut" if "attention" in words else "photos")
    for earlier in {"", IN_PLACE[words]}:
        if earlier:
            (out / earlier).touch()
        answer = nnclr(*words.split(), "--out", out)
        assert str(out) in error_line(answer, answer[0])
        if earlier:
            (out / earlier).unlink()
        assert [one.suffix for one in Path("photos").rglob("*") if one.is_file()] == [".jpg"] * 16


def test_earlier_results_are_replaced(here):
    for words in (
        "inspect c --store store --out out",
        "search --id a --collection c --store store --out matches.csv",
        "search --id a --collection c --store store --out matches.html",
    ):
        for _ in range(2):
            output_of(*words.split())
