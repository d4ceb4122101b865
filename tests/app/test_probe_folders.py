"""Class folders on the probe tab: a folder of images for each class, which serves for the fit alone."""

import shutil
import threading
import zipfile

import numpy as np
import pytest
from browsing import PHONE, open_tab, wait_for
from page_calls import call, post

from app.tabs.probe import FOLDERS
from nnclr_hub import Client
from nnclr_hub.cache import cache_folder
from nnclr_hub.workbench.probes import get_probe
from nnclr_hub.workbench.staging import unstage
from serving.jobs import kinds


@pytest.mark.slow
@pytest.mark.browser
def test_class_folders_are_fitted_on_and_not_kept(opened, served, photos, pictures, tmp_path):
    """As a folder, with a file that is no image and one that lies nowhere; the probe is that of REST's items."""
    folder = tmp_path / "classes"
    for name in ("cat", "coffee"):
        shutil.copytree(photos / name, folder / name)
    (folder / "cat" / "broken.jpg").write_bytes(b"no image")
    shutil.copy(pictures[0], folder / "nowhere.png")
    others = tickets()
    page = opened("Probe")
    page.get_by_label(FOLDERS).check()
    page.locator("#labeler").wait_for(state="hidden")
    page.set_input_files("#probe-uploader .choose-folder", str(folder))
    wait_for(page, "41 images of 2 classes wait: cat 21, coffee 20. 1 lie in no folder", "#probe-uploaded")
    page.fill("#probe-name input, #probe-name textarea", "folders")
    page.click("#probe-fit")
    wait_for(page, "folders is ready", "#probe-status")
    kept = get_probe(served.bench.store.records, "folders")
    assert kept.probe.classes == ("cat", "coffee")
    assert (kept.about["rows"], kept.about["left_out"]) == (40, {"unreadable": 1, "no label": 1})
    with Client(served.url) as client:
        files = [path for path in sorted(folder.glob("*/*")) if path.name != "broken.jpg"]
        job = client.probes.fit("same", images=files, labels=[path.parent.name for path in files])
        client.jobs.wait(job.id)
    same = get_probe(served.bench.store.records, "same").probe
    np.testing.assert_allclose(kept.probe.weight, same.weight, atol=1e-3)
    assert tickets() == others
    assert page.inner_text("#probe-uploaded").strip() == ""
    page.click("#probe-fit")
    page.wait_for_selector(".toast-body")
    assert "choose them again" in page.inner_text(".toast-body")


@pytest.mark.browser
@pytest.mark.slow
def test_folders_of_one_class_and_zips_that_lead_elsewhere_are_sentences(opened, served, photos, pictures, tmp_path):
    others = tickets()
    page = opened("Probe", allowed=("AbortError", "errored out"), **PHONE)  # what a reload breaks off
    page.get_by_label(FOLDERS).check()
    page.set_input_files("#probe-uploader .choose-files", [str(path) for path in pictures[:2]])
    page.wait_for_selector(".toast-body")
    assert "No image lies in a folder" in page.inner_text(".toast-body")
    with zipfile.ZipFile(tmp_path / "bad.zip", "w") as file:
        file.writestr("../cat/up.png", pictures[0].read_bytes())
    page.reload()
    open_tab(page, "Probe")
    page.get_by_label(FOLDERS).check()
    page.set_input_files("#probe-uploader .choose-files", str(tmp_path / "bad.zip"))
    page.wait_for_selector(".toast-body")
    assert "names a file outside of itself" in page.inner_text(".toast-body")
    assert tickets() == others
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


@pytest.mark.slow
def test_folders_that_a_job_has_are_left_to_it(served, photos, monkeypatch):
    """A second tab of the browser still remembers their ticket: it neither fits on them again nor takes them away."""
    before = tickets()
    at_work, go_on = threading.Event(), threading.Event()
    fit = kinds.fit_on_examples

    def waiting(*args, **options):
        at_work.set()
        assert go_on.wait(60)
        return fit(*args, **options)

    monkeypatch.setattr(kinds, "fit_on_examples", waiting)
    event = {"event_data": {"files": given(served, photos)}}
    kept = call(served.url, "_upload_folders", [None], **event).json()["data"][1]
    try:
        first = call(served.url, "_fit", ["{}", FOLDERS, None, None, "tabs", False, kept]).json()["data"]
        assert at_work.wait(60)
        again = call(served.url, "_fit", ["{}", FOLDERS, None, None, "tabs2", False, kept])
        assert "fitted on these folders already" in again.json()["error"]
        assert call(served.url, "_choose_source", [FOLDERS, kept]).json()["data"][5]["value"] == ""
        event = {"event_data": {"files": given(served, photos)}}
        others = call(served.url, "_upload_folders", [kept], **event).json()["data"][1]
    finally:
        go_on.set()
    with Client(served.url) as client:
        client.jobs.wait(first[2])
    assert get_probe(served.bench.store.records, "tabs").about["rows"] == 8
    assert (
        "fitted on these folders already"
        in call(served.url, "_fit", ["{}", FOLDERS, None, None, "tabs2", False, kept]).json()["error"]
    )
    event = {"event_data": {"files": given(served, photos)}}
    assert call(served.url, "_upload_folders", [others], **event).status_code == 200
    assert len(tickets() - before) == 1, "those that no job had were kept beside the new ones"
    for ticket in tickets() - before:
        unstage(ticket)


def tickets() -> set[str]:
    """Tickets of what waits for a job, of other modules' tests too."""
    return {folder.name for folder in (cache_folder() / "adding").glob("*")}


def given(served, photos) -> list[dict]:
    """Four images of two classes, uploaded as the uploader does."""
    paths = [path for name in ("cat", "coffee") for path in sorted((photos / name).iterdir())[:4]]
    files = [("files", (path.name, path.read_bytes())) for path in paths]
    there = post(f"{served.url}/ui/gradio_api/upload", files=files).json()
    return [{"name": f"{path.parent.name}/{path.name}", "parts": [one]} for path, one in zip(paths, there, strict=True)]
