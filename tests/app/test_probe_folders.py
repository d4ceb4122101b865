"""Class folders on the Probe tab: one folder of images per class, used for the fit and then deleted."""

import shutil
import threading
import zipfile
from functools import partial

import numpy as np
import pytest
from page_actions import INTERRUPTED, PHONE, open_tab, toast, wait_for
from page_calls import call, post

from app.tabs.probe import FOLDERS
from nnclr_hub import Client
from nnclr_hub.cache import cache_folder
from nnclr_hub.workbench.probes import get_probe
from nnclr_hub.workbench.staging import unstage
from serving.jobs import kinds


@pytest.mark.slow
@pytest.mark.browser
def test_class_folders_are_fitted_on_and_deleted(opened, served, photos, image_files, tmp_path):
    """With a broken file and an image without a folder; the probe equals one that REST fits on the same images."""
    folder = tmp_path / "classes"
    for name in ("cat", "coffee"):
        shutil.copytree(photos / name, folder / name)
    (folder / "cat" / "broken.jpg").write_bytes(b"no image")
    shutil.copy(image_files[0], folder / "nowhere.png")
    before = tickets()
    page = opened("Probe")
    page.get_by_label(FOLDERS).check()
    page.locator("#labeler").wait_for(state="hidden")
    page.set_input_files("#probe-uploader .choose-folder", str(folder))
    wait_for(page, "41 images in 2 classes are ready: cat 21, coffee 20. 1 images", "#probe-uploaded")
    page.fill("#probe-name input, #probe-name textarea", "folders")
    page.click("#probe-fit")
    wait_for(page, "folders is ready", "#probe-status")
    fitted = get_probe(served.bench.store.records, "folders")
    assert fitted.probe.classes == ("cat", "coffee")
    assert (fitted.about["rows"], fitted.about["left_out"]) == (40, {"unreadable": 1, "no label": 1})
    with Client(served.url) as client:
        files = [path for path in sorted(folder.glob("*/*")) if path.name != "broken.jpg"]
        job = client.probes.fit("same", images=files, labels=[path.parent.name for path in files])
        client.jobs.wait(job.id)
    same = get_probe(served.bench.store.records, "same").probe
    np.testing.assert_allclose(fitted.probe.weight, same.weight, atol=1e-3)
    assert tickets() == before
    assert page.inner_text("#probe-uploaded").strip() == ""
    page.click("#probe-fit")
    assert "again" in toast(page)


@pytest.mark.browser
@pytest.mark.slow
def test_invalid_folders_and_zips_are_rejected(opened, served, image_files, tmp_path):
    before = tickets()
    page = opened("Probe", allowed=INTERRUPTED, **PHONE)
    page.get_by_label(FOLDERS).check()
    page.set_input_files("#probe-uploader .choose-files", [str(path) for path in image_files[:2]])
    assert "two classes" in toast(page)
    with zipfile.ZipFile(tmp_path / "bad.zip", "w") as file:
        file.writestr("../cat/up.png", image_files[0].read_bytes())
    page.reload()
    open_tab(page, "Probe")
    page.get_by_label(FOLDERS).check()
    page.set_input_files("#probe-uploader .choose-files", str(tmp_path / "bad.zip"))
    assert "bad.zip" in toast(page)
    assert tickets() == before
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


@pytest.mark.slow
def test_folders_of_a_running_job_are_neither_used_again_nor_deleted(served, photos, monkeypatch):
    """A second tab of the browser still stores their ticket."""
    before = tickets()
    started, go_on = threading.Event(), threading.Event()
    fit = kinds.fit_on_examples

    def waiting(*args, **options):
        started.set()
        assert go_on.wait(60)
        return fit(*args, **options)

    monkeypatch.setattr(kinds, "fit_on_examples", waiting)

    def upload(stored) -> str:
        event = {"event_data": {"files": uploads(served, photos)}}
        return call(served.url, "_upload_folders", [stored], **event).json()["data"][1]

    start = partial(call, served.url, "_fit")
    ticket = upload(None)
    try:
        first = start(["{}", FOLDERS, None, None, "tabs", False, ticket]).json()["data"]
        assert started.wait(60)
        assert "already used" in start(["{}", FOLDERS, None, None, "tabs2", False, ticket]).json()["error"]
        assert call(served.url, "_choose_source", [FOLDERS, ticket]).json()["data"][5]["value"] == ""
        other = upload(ticket)
    finally:
        go_on.set()
    with Client(served.url) as client:
        client.jobs.wait(first[2])
    assert get_probe(served.bench.store.records, "tabs").about["rows"] == 8
    assert "already used" in start(["{}", FOLDERS, None, None, "tabs2", False, ticket]).json()["error"]
    upload(other)
    assert len(tickets() - before) == 1, "folders that no job has are replaced"
    for left in tickets() - before:
        unstage(left)


def tickets() -> set[str]:
    """Return the tickets of all stored uploads, including those of other tests."""
    return {folder.name for folder in (cache_folder() / "adding").glob("*")}


def uploads(served, photos) -> list[dict]:
    """Upload four images of each of two classes, as the uploader does."""
    paths = [path for name in ("cat", "coffee") for path in sorted((photos / name).iterdir())[:4]]
    files = [("files", (path.name, path.read_bytes())) for path in paths]
    parts = post(f"{served.url}/ui/gradio_api/upload", files=files).json()
    return [{"name": f"{path.parent.name}/{path.name}", "parts": [one]} for path, one in zip(paths, parts, strict=True)]
