"""Reports in a browser without scripts: each begins with its verdict, and its images open on a click."""

import base64
import json
import re
from pathlib import Path

import pytest
from commands import nnclr
from fake_runs import write_run

from training.report import write_report


@pytest.fixture(scope="module")
def pretraining(photos, tmp_path_factory) -> Path:
    """Return the report of a run that has a verdict and a few images with their nearest others."""
    folder = write_run(tmp_path_factory.mktemp("runs") / "first", report="")
    verdict = {"choice": "starter", "sentence": "use the starter.", "use": "starter", "labels": 60}
    verdict |= {"scores": {"run": 0.4, "starter": 0.6}, "raw": {"run": 0.3}}
    (folder / "run.json").write_text(json.dumps({"verdict": verdict, "epochs": 10, "steps": 100}))
    jpeg = base64.b64encode(next((photos / "cat").iterdir()).read_bytes()).decode()
    line = {"queries": [0], "neighbors": [[1, 2]], "similarity": [[0.9, 0.8]], "thumbnails": {"0": jpeg, "1": jpeg}}
    (folder / "examples.jsonl").write_text(json.dumps(line) + "\n")
    return write_report([folder], folder / "report.html")


@pytest.fixture(scope="module")
def inspected(photos, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("inspected") / "report"
    code, _, error = nnclr("inspect", photos, "--model", "pixels", "--out", out)
    assert code == 0, error
    return out / "report.html"


@pytest.fixture(params=["pretraining", "inspected"])
def report(request) -> str:
    """Return the address of each report."""
    return request.getfixturevalue(request.param).as_uri()


@pytest.fixture
def page(report, chromium):
    """Return a report on the screen of a phone, without scripts."""
    context = chromium.new_context(viewport={"width": 390, "height": 844}, java_script_enabled=False)
    opened = context.new_page()
    opened.goto(report)
    yield opened
    context.close()


def test_a_report_begins_with_its_verdict(page):
    assert page.locator("h1 + *").inner_text().startswith("Verdict: ")


def test_an_image_opens_on_a_click_and_closes_on_another(page):
    summary = page.locator(".enlargeable summary", has=page.locator("img")).last
    image = summary.locator("img")
    small = image.bounding_box()["width"]
    for act in (summary.click, lambda: summary.press("Enter")):
        act()
        assert image.bounding_box()["width"] > 3 * small
        assert summary.bounding_box()["width"] == 390
        act()
        assert image.bounding_box()["width"] == small


def test_an_opened_image_of_a_folder_has_a_link_to_its_file(inspected, photos, chromium):
    page = chromium.new_page()
    page.goto(inspected.as_uri())
    page.locator(".enlargeable summary").first.click()
    page.get_by_role("link", name="Original").click()
    page.wait_for_url(re.compile(re.escape(photos.as_uri())))
    page.close()


def test_a_plot_opens_and_its_axes_begin_at_zero_unless_it_is_the_loss(pretraining, chromium):
    page = chromium.new_page()
    page.goto(pretraining.as_uri())
    for title, least in (("Loss", 4.2), ("20-NN accuracy", 0)):
        numbers = page.locator(f'svg[aria-label="{title}"] text[text-anchor=end]').all_text_contents()[:-1]
        assert float(numbers[0]) == least
        assert 3 <= len(numbers) <= 7
    plot = page.locator("svg").first
    before = plot.bounding_box()["width"]
    plot.click()
    assert plot.bounding_box()["width"] > 2 * before
    page.close()


def test_reports_pass_axe(report, axe, chromium):
    page = chromium.new_page()
    page.goto(report)
    page.evaluate(axe)
    found = page.evaluate("async () => (await axe.run()).violations.map(one => `${one.id}: ${one.nodes[0].html}`)")
    page.close()
    assert found == []
