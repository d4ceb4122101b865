"""Every screen of the web app in both themes, at two widths: no finding of axe-core, and nothing is cut or covered."""

from collections.abc import Iterator

import pytest
from explore_actions import search
from fake_runs import write_run
from phone import PHONE

from nnclr_hub.store import open_store
from nnclr_hub.workbench.inspection.findings import inspect_collection
from nnclr_hub.workbench.inspections import keep_inspection

pytestmark = [pytest.mark.browser, pytest.mark.slow]

# what a person cannot use or read: a page that scrolls sideways, a text that its field cuts, a covered control
HIDDEN = """() => {
    const found = document.documentElement.scrollWidth > innerWidth ? ['the page scrolls sideways'] : [];
    const top = [...document.querySelectorAll('dialog:modal')].at(-1) ?? document;
    for (const one of top.querySelectorAll('a, button, input, select, summary')) {
        if (!one.checkVisibility({visibilityProperty: true, opacityProperty: true})) continue;
        const {left, top, width, height} = one.getBoundingClientRect(), name = one.outerHTML.slice(0, 200);
        if (one.value && one.scrollWidth > one.clientWidth + 1) found.push(`cut: ${name}`);
        const [x, y] = [left + width / 2, top + height / 2], over = document.elementFromPoint(x, y);
        let pane = one.parentElement;
        const isInside = box => x > box.left && x < box.right && y > box.top && y < box.bottom;
        while (pane && isInside(pane.getBoundingClientRect())) pane = pane.parentElement;
        if (pane || !over || over.closest('#messages')) continue;  // scrolled out of a pane or the screen
        if (!one.contains(over) && !one.labels?.[0]?.contains(over)) found.push(`covered: ${name}`);
    }
    return found;
}"""


@pytest.fixture(scope="module")
def served(model, photos, filled, tmp_path_factory, serve) -> Iterator:
    runs = tmp_path_factory.mktemp("runs")
    with open_store(str(filled)) as opened:
        keep_inspection(opened.records, inspect_collection(opened.get("photos")))
    write_run(runs / "photos", step=40)
    yield from serve(model, filled, page=True, source_folders=[str(photos)], runs=runs)


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("context", [{}, PHONE], ids=["desktop", "phone"])
def test_no_screen_has_findings(opened, served, axe, theme, context):
    page = opened(path="/#/explore/photos", color_scheme=theme, bypass_csp=True, **context)

    def findings() -> list[str]:
        page.evaluate(axe)
        violations = page.evaluate("axe.run(document, {resultTypes: ['violations']})")["violations"]
        seen = [f"{one['id']}: {node['html'][:200]}" for one in violations for node in one["nodes"]]
        return seen + page.evaluate(HIDDEN)

    page.wait_for_selector(".tile img")
    assert findings() == []
    search(page)
    page.locator(".sheet").focus()
    page.keyboard.press("Space")
    assert findings() == []
    page.keyboard.press("Escape")
    page.locator(".tile").first.click()  # next to the grid; on a phone on the whole screen
    page.wait_for_selector(".viewer[open] .neighbors li")
    assert findings() == []
    page.get_by_role("button", name="Close", exact=True).click()
    page.get_by_role("button", name="View", exact=True).click()
    assert findings() == []
    page.get_by_role("button", name="View", exact=True).click()
    for key in ("l", "v", "?"):
        page.locator(".sheet").focus()
        page.keyboard.press(key)
        page.wait_for_selector("dialog[open]")
        page.wait_for_timeout(300)  # the dialog fades in
        for folded in page.locator("dialog[open]:not(.viewer) summary").all():
            folded.click()
        assert findings() == []
        if key == "v":
            page.get_by_role("button", name="Where it looks").click()
            page.wait_for_selector("viewed-image .attention:not([hidden])")
            assert findings() == []
        page.keyboard.press("Escape")
    page.get_by_role("button", name="Probe").click()
    page.get_by_role("button", name="Fit").click()
    page.wait_for_selector(".probe table")
    assert findings() == []
    page.keyboard.press("Escape")
    for name in ("insights/photos", "collections", "training", "api"):
        page.goto(f"{served.url}/#/{name}")
        page.wait_for_selector(".facts" if name.startswith("insights") else ".page h1")
        assert findings() == []
    page.route("**/api/v1/collections", lambda route: route.fulfill(json={"collections": []}))
    page.goto(f"{served.url}/#/collections")
    page.reload()
    page.wait_for_selector(".zone")
    assert findings() == []
    page.unroute("**/api/v1/collections")
    page.goto(f"{served.url}/#/explore/photos")
    page.reload()
    page.wait_for_selector(".tile img")
    page.locator(".sheet").focus()
    for key, name in (("Delete", ""), ("Space", "Copy or move")):
        page.keyboard.press(key)
        if name:
            page.locator("selection-bar").get_by_role("button", name=name).click()
        page.wait_for_selector("dialog[open]")
        page.wait_for_timeout(300)
        assert findings() == []
        page.keyboard.press("Escape")
        page.locator(".sheet").focus()
    page.goto(f"{served.url}/#/collections")
    for name in ("Manage", "New collection", "Add a folder of the server"):
        page.get_by_role("button", name=name).first.click()
        page.wait_for_selector("dialog[open]")
        page.wait_for_timeout(300)
        assert findings() == []
        page.keyboard.press("Escape")
