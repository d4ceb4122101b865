"""Names and labels are printed as they are: no markup, and no control characters, in every verb that prints them."""

import io
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from commands import nnclr
from PIL import Image
from rich.console import Console

from nnclr_hub import open_store
from nnclr_hub.progress import bar
from nnclr_hub.store.base import CollectionSpec, Item

STARTER = "nnclr_resnet18_free_starter"
HARMFUL = "\x1b]0;title\x07\x1b[2J\x9b31m\u202e"
NAMES = ["[bold]", "[/x]", "shots/[final]/b].jpg", ":smile:", f"{HARMFUL}end"]


@pytest.fixture
def store(tmp_path) -> Path:
    with open_store(str(tmp_path / "s")) as opened:
        collection = opened.create("c", CollectionSpec(8))
        rows = np.eye(8, dtype=np.float32)[: len(NAMES)]
        collection.upsert(
            [
                Item(f"i{n}", rows[n], {"path": name, "label": name, "root": "/r", "pixel_sha256": "f" * 64})
                for n, name in enumerate(NAMES)
            ]
        )
    return tmp_path / "s"


@pytest.mark.parametrize(
    ("verb", "shown"),
    [
        (("search", "--id", "i0", "--collection", "c", "-k", "9"), NAMES[1:-1]),
        (("store", "facets", "c", "label"), NAMES[:-1]),
        (("store", "duplicates", "c"), NAMES[:-1]),
    ],
)
def test_stored_text_is_shown_as_it_is(verb, shown, store):
    code, out, err = nnclr(*verb, "--store", store)
    assert code == 0, err
    assert [name for name in shown if name not in out] == []
    assert "\\x1b]0;title" in out
    assert not set(HARMFUL) & {"\x1b", "\x07", "\x9b", "\u202e"} & set(out + err)


def test_names_of_files_are_shown_as_they_are(tmp_path, model):
    for name in ("[bold]", "[", f"a{HARMFUL}"):
        (tmp_path / "in" / name).mkdir(parents=True)
        for number in range(3):
            noise = np.random.default_rng(number).integers(0, 255, (40, 40, 3), np.uint8)
            Image.fromarray(noise).save(tmp_path / "in" / name / f"b]{number}.png")
        (tmp_path / "in" / name / "bad].png").write_bytes(b"no image")
    (tmp_path / "in" / "[bold]" / ("m\udcfc" + ".png")).write_bytes(b"no image")
    for verb in (
        ("index", tmp_path / "in", "--collection", "c", "--store", tmp_path / "s", "--model", model),
        ("probe", "fit", tmp_path / "in", "--out", tmp_path / "p", "--model", model),
        ("probe", "eval", tmp_path / "in", "--probe", tmp_path / "p"),
    ):
        code, out, err = nnclr(*verb)
        assert code == 0, err
        assert "[bold]/bad].png" in err
        assert "[bold]/m\\xfc.png" in err
        assert not {"\x1b", "\x07", "\x9b", "\u202e"} & set(out + err)
    assert "[bold]  " in out


def test_files_with_names_that_are_not_utf_8_are_written_and_read(tmp_path, model):
    """Reports and tables keep the bytes of names; exports go to such folders and come back."""
    raw = os.fsdecode(b"caf\xe9")
    query = tmp_path / f"{raw}.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (40, 40, 3), np.uint8)).save(query)
    (tmp_path / "in").mkdir()
    shutil.copy(query, tmp_path / "in" / "a.png")
    there = ("--store", tmp_path / "s")
    assert nnclr("index", tmp_path / "in", "--collection", "c", "--model", model, *there)[0] == 0
    for sheet in ("sheet.html", "sheet.csv"):
        assert nnclr("search", query, "--collection", "c", *there, "--out", tmp_path / sheet)[0] == 0
        assert b"caf\xe9.png" in (tmp_path / sheet).read_bytes()
    assert nnclr("store", "export", "c", tmp_path / raw, *there)[0] == 0
    assert nnclr("store", "import", tmp_path / raw, "--collection", "d", *there)[0] == 0
    shutil.copytree(model, tmp_path / f"m{raw}")
    code, _, err = nnclr("embed", query, "--model", tmp_path / f"m{raw}", "--out", tmp_path / "v.npy")
    assert code == 1
    assert "UTF-8" in err


def test_warnings_and_tables_of_a_process_are_safe(tmp_path):
    (tmp_path / "in").mkdir()
    Image.new("RGB", (40, 40)).save(tmp_path / "in" / f"x{HARMFUL}.png")
    (tmp_path / "in" / f"t.{HARMFUL}").write_text("x")
    Image.new("RGB", (40, 40)).save(tmp_path / "in" / "m\udcfc.png")
    done = subprocess.run(
        [sys.executable, "-m", "nnclr_hub.cli", "index", "in", "--collection", "c", "--model", STARTER],
        cwd=tmp_path,
        env={**os.environ, "NNCLR_BACKEND": "onnx"},  # needs no torch
        capture_output=True,
    )
    assert done.returncode == 0, done.stderr
    assert b"not read as images" in done.stderr
    assert b"\x1b" not in done.stdout + done.stderr


SLOW = """
import time, numpy as np, torch
from nnclr_hub import wrap_encoder

def embed(x):
    time.sleep(0.1)
    return x.mean((2, 3))

def tower():
    time.sleep(0.1)
    read = lambda image: torch.from_numpy(np.array(image.resize((8, 8)), np.float32) / 255).permute(2, 0, 1)
    return wrap_encoder(embed, read, "slow", 3)
"""


def test_progress_is_shown_once_its_total_is_known():
    shown = io.StringIO()
    console = Console(file=shown, width=80)
    with bar(console, "compacting", unit="items") as advance:
        advance(0, 0)
    assert shown.getvalue() == ""
    with bar(console, "compacting", unit="items") as advance:
        advance(0, 0)
        advance(3, 4)
    assert "3/4" in shown.getvalue()


def test_long_work_is_reported_in_a_pipe(tmp_path, photos, monkeypatch):
    """A line every few seconds, also while an encoder loads or computes a map."""
    monkeypatch.setattr("nnclr_hub.terminal.EVERY", 0.02)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "slow.py").write_text(SLOW)
    code, _, err = nnclr("probe", "fit", photos, "--model", "python:slow.py:tower", "--out", "p")
    assert code == 0, err
    for title in ("nnclr probe", "embedding", "fitting"):
        assert [line for line in err.splitlines() if line.startswith(title)], err
    code, _, err = nnclr("attention", sorted(photos.rglob("*.jpg"))[0], "--model", STARTER)
    assert code == 0, err
    assert err.startswith("nnclr attention is running"), err
