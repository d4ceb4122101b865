"""The training tab in a real browser: runs as they go on, their reports in a frame that can do nothing."""

from collections.abc import Iterator

import pytest
from browsing import PHONE
from fake_runs import write_run

from app.widgets import outputs as widget

pytestmark = pytest.mark.browser
SCRIPT = "<!doctype html><h1>bad</h1><img src=/api/v1/collections><script>parent.document.title = 'taken'</script>"


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def served(model, runs, tmp_path_factory, serve) -> Iterator:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(widget, "RUNS_POLL_MS", 300)
        yield from serve(model, tmp_path_factory.mktemp("training") / "store", page=True, runs=runs)


@pytest.mark.slow
def test_a_run_appears_goes_on_and_its_report_with_it(opened, runs):
    """From the empty state, without a reload; then as a telephone."""
    page = opened("Training")
    page.wait_for_selector("#runs .runs-empty pre")
    assert "nnclr pretrain" in page.inner_text("#runs .runs-empty")
    write_run(runs / "photos", step=20, report="")
    page.wait_for_selector("#runs .run-state.running")
    assert "step 20 of 100" in page.inner_text("#runs .run-facts")
    assert "first checkpoint" in page.inner_text("#runs .report")
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


@pytest.mark.slow
def test_what_a_report_holds_is_not_run(opened, runs):
    write_run(runs / "bad", step=10, report=SCRIPT)
    page = opened("Training", allowed=("Blocked script execution", "Content Security Policy", "ERR_BLOCKED_BY_CSP"))
    page.locator("#runs .run", has_text="bad").click()
    page.frame_locator("#runs iframe").get_by_role("heading", name="bad").wait_for()
    assert page.title() == "nnclr_hub"
