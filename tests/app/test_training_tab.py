"""The Training tab in a real browser: the progress of runs, and their reports in a sandboxed frame."""

from collections.abc import Iterator

import pytest
from fake_runs import write_run
from page_actions import PHONE

from app.widgets import outputs

pytestmark = [pytest.mark.browser, pytest.mark.slow]
SCRIPT = "<!doctype html><h1>bad</h1><img src=/api/v1/collections><script>parent.document.title = 'taken'</script>"


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def served(model, runs, tmp_path_factory, serve) -> Iterator:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(outputs, "RUNS_POLL_MS", 300)
        yield from serve(model, tmp_path_factory.mktemp("training") / "store", page=True, runs=runs)


def test_a_run_and_its_report_are_updated_without_a_reload(opened, runs):
    page = opened("Training")
    page.wait_for_selector("#runs .runs-empty pre")
    write_run(runs / "photos", step=20, report="")
    page.wait_for_selector("#runs .run-state.running")
    assert "step 20 of 100" in page.inner_text("#runs .run-facts")
    assert page.locator("#runs iframe").count() == 0
    write_run(runs / "photos", step=40)
    report = page.frame_locator("#runs iframe")
    report.get_by_text("Epoch 4").wait_for()
    assert page.locator("#runs iframe").get_attribute("sandbox") == ""
    write_run(runs / "photos", step=100)
    report.get_by_text("Epoch 10").wait_for()
    page.wait_for_selector("#runs .run-state.done")
    phone = opened("Training", **PHONE)
    phone.frame_locator("#runs iframe").get_by_text("Epoch 10").wait_for()
    assert phone.evaluate("document.documentElement.scrollWidth") <= 390


def test_scripts_in_a_report_do_not_run(opened, runs):
    write_run(runs / "bad", step=10, report=SCRIPT)
    page = opened("Training", allowed=("Blocked script execution", "Content Security Policy", "ERR_BLOCKED_BY_CSP"))
    page.locator("#runs .run", has_text="bad").click()
    page.frame_locator("#runs iframe").get_by_role("heading", name="bad").wait_for()
    assert page.title() == "nnclr_hub"
