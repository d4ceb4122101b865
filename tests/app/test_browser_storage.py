"""Values that a browser keeps over a reload: two events at the same time do not undo each other's change."""

import threading

import pytest
from labeling import label, show_all
from page_actions import INTERRUPTED, open_tab, wait_for
from page_calls import get
from upload_actions import choose, wait_for_jobs

from app.probe_jobs import ProbeJobs

pytestmark = pytest.mark.browser


def test_each_event_changes_at_most_one_stored_value(served):
    config = get(f"{served.url}/ui/config").json()
    slots = {one["id"] for one in config["components"] if one["type"] == "browserstate"}
    changed = [(event["api_name"], slots & set(event["outputs"])) for event in config["dependencies"]]
    assert set().union(*(one for _, one in changed)) == slots
    assert [name for name, one in changed if len(one) > 1] == []


@pytest.mark.slow
def test_a_fit_and_a_new_collection_at_the_same_time_are_both_stored(opened, served, monkeypatch):
    going = threading.Event()
    fit_labels = ProbeJobs.fit_labels
    monkeypatch.setattr(ProbeJobs, "fit_labels", lambda *given: (going.wait(30), fit_labels(*given))[1])
    page = opened("Probe", allowed=INTERRUPTED)
    try:
        show_all(page)
        for name in ("cat", "coffee"):
            label(page, served, name, 4)
        page.fill("#probe-name input, #probe-name textarea", "slowly")
        page.click("#probe-fit")
        open_tab(page, "Collections")
        page.fill("#new-name input, #new-name textarea", "new")
        page.click("#create")
        wait_for(page, "new is empty", "#items-status")
        going.set()
        page.wait_for_function("() => localStorage.getItem('nnclr_hub_fit') !== null")
        page.reload()
        open_tab(page, "Collections")
        wait_for(page, "new is empty", "#items-status")
        open_tab(page, "Probe")
        wait_for(page, "slowly is ready", "#probe-status")
    finally:
        going.set()
        served.bench.drop("new")


@pytest.mark.slow
def test_jobs_that_are_hidden_at_the_same_time_stay_hidden(opened, image_files):
    page = opened("Collections", allowed=INTERRUPTED)
    wait_for(page, "of 60 in photos", "#items-status")
    for i in range(2):
        choose(page, image_files[i : i + 1])
        wait_for_jobs(page, i + 1)
    page.get_by_role("button", name="Hide").evaluate_all("buttons => buttons.forEach(one => one.click())")
    wait_for_jobs(page, 0)
    choose(page, image_files[2:3])
    wait_for_jobs(page, 1)
    page.reload()
    open_tab(page, "Collections")
    wait_for_jobs(page, 1)
    assert page.locator("#jobs .job").count() == 1
