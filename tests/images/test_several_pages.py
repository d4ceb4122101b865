"""A file of several pages, of which the first is read, is never silent."""

import logging
import zipfile
from contextlib import nullcontext

import numpy as np
import pytest
import tifffile
from typer.testing import CliRunner

from nnclr_hub.cli.app import app
from nnclr_hub.images import several_pages
from nnclr_hub.images.decode import decode_image
from nnclr_hub.images.listing import image_files
from nnclr_hub.images.pool import decoding_processes


def test_files_of_several_pages_are_counted_and_named_once_per_folder(tmp_path, caplog):
    for number in range(3):
        tifffile.imwrite(tmp_path / f"{number}.tif", np.zeros((2, 20, 20), np.uint8), photometric="minisblack")
    tifffile.imwrite(tmp_path / "one.tif", np.zeros((20, 20), np.uint8))
    with caplog.at_level(logging.WARNING), decoding_processes(1):
        for path in sorted(tmp_path.iterdir()) * 2:
            decode_image(path)
    assert several_pages.counts()[str(tmp_path)] == 3
    assert [record.args[0] for record in caplog.records] == [str(tmp_path / "0.tif")]


@pytest.mark.parametrize("processes", [True, False])
def test_files_of_several_pages_in_an_archive_are_counted(tmp_path, processes):
    for number in range(2):
        tifffile.imwrite(tmp_path / f"{number}.tif", np.zeros((2, 20, 20), np.uint8), photometric="minisblack")
    with zipfile.ZipFile(tmp_path / "stacks.zip", "w") as file:
        for path in tmp_path.glob("*.tif"):
            file.write(path, path.name)
    with decoding_processes(1) if processes else nullcontext():
        for place in (tmp_path / "stacks.zip", f"file://{tmp_path}/stacks.zip"):
            for image in image_files([place]):
                decode_image(image)
            assert several_pages.counts()[str(place)] == 2


def test_files_of_several_pages_are_reported_by_a_verb_that_fails(model, tmp_path):
    folder = tmp_path / "stacks"
    folder.mkdir()
    for number in range(2):
        tifffile.imwrite(folder / f"{number}.tif", np.zeros((2, 20, 20), np.uint8), photometric="minisblack")
    done = CliRunner().invoke(app, ["embed", str(folder), "--model", str(model), "--channels", "7"])  # they have one
    assert done.exit_code == 1
    assert f"2 files of {folder}" in " ".join(done.output.split())
