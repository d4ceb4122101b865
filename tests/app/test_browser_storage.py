"""What a browser keeps over a reload: what two events change at once is changed by both."""

import threading

import pytest
from adding import choose, wait_for_jobs
from browsing import open_tab, wait_for
from labeling import ids_of
from page_calls import get

from app.probe_jobs import ProbeJobs

pytestmark = pytest.mark.browser


def test_an_event_changes_one_thing_of_what_is_kept(served):
    """And gives the whole of it: none writes back what it was given of the rest before another event changed that."""
    config = get(f"{served.url}/ui/config").json()
    slots = {one["id"] for one in config["components"] if one["type"] == "browserstate"}
    changed = [(event["api_name"], slots & set(event["outputs"])) for event in config["dependencies"]]
    assert set().union(*(one for _, one in changed)) == slots
    assert [name for name, one in changed if len(one) > 1] == []


@pytest.mark.slow
def test_a_fit_that_is_begun_while_a_collection_is_made_loses_neither(opened, served, monkeypatch):
    going = threading.Event()
    fit_labels = ProbeJobs.fit_labels
    monkeypatch.setattr(ProbeJobs, "fit_labels", lambda *given: (going.wait(30), fit_labels(*given))[1])
    page = opened("Probe", allowed=("AbortError", "errored out"))  # so Gradio calls what a reload breaks off
    try:
        page.wait_for_selector("#labeler .tile")
        page.locator("#labeler > * button", has_text="Show more images").click()
        page.wait_for_function("() => document.querySelectorAll('#labeler .tile').length === 60")
        for label in ("cat", "coffee"):
            page.fill("#labeler-label", label)
            for id in ids_of(served, label, 4):
                page.locator(f'#labeler .tile[data-id="{id}"] .image').click()
        page.fill("#probe-name input, #probe-name textarea", "slowly")
        page.click("#probe-fit")
        open_tab(page, "Collections")
        page.fill("#new-name input, #new-name textarea", "made")
        page.click("#create")
        wait_for(page, "made is empty", "#items-status")
        going.set()
        page.wait_for_function("() => localStorage.getItem('nnclr_hub_fit') !== null")
        page.reload()
        open_tab(page, "Collections")
        wait_for(page, "made is empty", "#items-status")
        open_tab(page, "Probe")
        wait_for(page, "slowly is ready", "#probe-status")
    finally:
        going.set()
        served.bench.drop("made")


@pytest.mark.slow
def test_jobs_that_are_hidden_in_one_instant_stay_hidden(opened, pictures):
    page = opened("Collections", allowed=("AbortError", "errored out"))
    wait_for(page, "of 60 in photos", "#items-status")
    for i in range(2):
        choose(page, pictures[i : i + 1])
        wait_for_jobs(page, i + 1)
    page.get_by_role("button", name="Hide").evaluate_all("buttons => buttons.forEach(one => one.click())")
    wait_for_jobs(page, 0)
    choose(page, pictures[2:3])
    wait_for_jobs(page, 1)
    page.reload()
    open_tab(page, "Collections")
    wait_for_jobs(page, 1)
    assert page.locator("#jobs .job").count() == 1
