"""axe-core on every state of the page, in both themes: no serious or critical finding that this project can fix."""

from collections.abc import Iterator

import pytest
from fake_runs import write_run
from labeling import fit_probe
from page_actions import PHONE, open_tab, wait_for, wait_for_images

from app.tabs.probe import FOLDERS
from nnclr_hub.store import open_store
from nnclr_hub.workbench import Encoders, Workbench

pytestmark = [pytest.mark.browser, pytest.mark.slow]
# in Gradio: the label of its upload buttons differs from their text
IN_GRADIO = {("label-content-name-mismatch", "upload-container")}


@pytest.fixture(scope="module")
def served(model, photos, tmp_path_factory, serve) -> Iterator:
    folder = tmp_path_factory.mktemp("accessible")
    with open_store(str(folder / "store")) as opened:
        bench = Workbench(Encoders(str(model), device="cpu"), opened)
        bench.index_folder("photos", photos)
        fit_probe(bench, "things", "photos", "label")
    write_run(folder / "runs" / "photos", step=40)
    yield from serve(model, folder / "store", page=True, source_folders=[str(photos)], runs=folder / "runs")


def findings(page, axe: str) -> list[str]:
    page.wait_for_function("!document.querySelector('.pending')")  # Gradio fades outputs of running events
    page.evaluate(axe)
    violations = page.evaluate("axe.run(document, {resultTypes: ['violations']})")["violations"]
    return [
        f"{one['id']}: {node['html'][:200]}"
        for one in violations
        if one["impact"] in ("serious", "critical")
        for node in one["nodes"]
        if not any(one["id"] == id and part in node["html"] for id, part in IN_GRADIO)
    ]


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("context", [{}, PHONE], ids=["desktop", "phone"])
def test_no_state_of_the_page_has_serious_findings(opened, axe, theme, context, image_files, tmp_path):
    page = opened(color_scheme=theme, **context)
    wait_for(page, "24 of the 60")
    assert findings(page, axe) == []
    page.locator("#tiles .image").first.click()
    wait_for(page, "most similar")
    page.locator("#options button").first.click()
    page.locator("#tiles .more").nth(2).click()
    page.wait_for_selector("#samples .tile")
    page.locator("#tiles .select input").nth(1).check(force=True)
    assert findings(page, axe) == []
    page.locator("#tiles .view").first.click()
    wait_for_images(page, "#viewer dialog[open] img")
    assert findings(page, axe) == []
    page.keyboard.press("Escape")
    open_tab(page, "Attention")
    page.locator("#attention-tries .image").first.click()
    wait_for_images(page, "#maps img")
    page.locator("#attention-options button").first.click()
    assert findings(page, axe) == []
    open_tab(page, "Collections")
    wait_for_images(page, "#items img")
    (tmp_path / "broken.jpg").write_bytes(b"no image")
    page.set_input_files("#uploader .choose-files", [str(image_files[0]), str(tmp_path / "broken.jpg")])
    page.wait_for_selector("#jobs .jobs-errors")
    page.locator("#items .select input").nth(1).check(force=True)
    page.click("#drop-ask")
    page.wait_for_selector("#drop:visible")
    assert findings(page, axe) == []
    open_tab(page, "Probe")
    page.wait_for_selector("#probe-report .confusion")
    page.fill("#labeler-label", "a cat")
    page.locator("#labeler .image").nth(1).click()
    page.set_input_files("#probe-image input[type=file]", str(image_files[3]))
    page.wait_for_selector("#probe-prediction .answer:visible")
    assert findings(page, axe) == []
    page.get_by_label(FOLDERS).check()
    page.wait_for_selector("#probe-uploader button:visible")
    assert findings(page, axe) == []
    for tab, ready in (("Training", "#runs iframe"), ("API", "#api-code pre")):
        open_tab(page, tab)
        page.wait_for_selector(ready)
        assert findings(page, axe) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= (390 if context else 1440)
