"""Actions of tests on the page in a browser."""

from collections.abc import Callable
from typing import Any

PHONE = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True, "device_scale_factor": 2}
# what Gradio's scripts report when a reload interrupts a request
INTERRUPTED = ("AbortError", "errored out", "network error", "Unexpected error 404")


def open_tab(page: Any, name: str) -> None:
    """Select a tab; on a phone, some tabs are in an overflow menu."""
    page.wait_for_selector("#tabs button[role=tab]")
    shown = page.locator("#tabs button[role=tab]:visible", has_text=name)
    if not shown.count():
        page.locator(".overflow-menu > button").click()
        shown = page.locator(".overflow-dropdown button", has_text=name)
    shown.first.click()


def wait_for(page: Any, text: str, selector: str = "#status") -> None:
    """Wait until an element contains a text."""
    script = "([selector, text]) => document.querySelector(selector)?.innerText.includes(text)"
    page.wait_for_function(script, arg=[selector, text])


def until_shown(page: Any, selector: str, act: Callable[[], object]) -> None:
    """Repeat an action until an element is shown: the page may not have read the typed text at the first attempt."""
    from playwright.sync_api import TimeoutError as NotShown

    for _ in range(40):
        act()
        try:
            return page.locator(selector).first.wait_for(timeout=3000)
        except NotShown:
            continue
    raise AssertionError(f"{selector} is not shown")


def wait_for_images(page: Any, selector: str, count: int = 4) -> None:
    """Wait until the first images are loaded."""
    script = """([selector, count]) => { const found = [...document.querySelectorAll(selector)].slice(0, count);
      return found.length > 0 && found.every(image => image.complete && image.naturalWidth > 0) }"""
    page.wait_for_function(script, arg=[selector, count])


def drag(
    page: Any, selector: str, start: tuple[float, float], end: tuple[float, float], *, touch: bool = False
) -> None:
    """Drag over an element; start and end are shares of its width and height."""
    page.locator(selector).scroll_into_view_if_needed()
    box = page.locator(selector).bounding_box()
    (x0, y0), (x1, y1) = ((box["x"] + x * box["width"], box["y"] + y * box["height"]) for x, y in (start, end))
    if not touch:
        page.mouse.move(x0, y0)
        page.mouse.down()
        page.mouse.move((x0 + x1) / 2, (y0 + y1) / 2)
        page.mouse.move(x1, y1)
        page.mouse.up()
        return
    session = page.context.new_cdp_session(page)
    for kind, points in (
        ("Start", [(x0, y0)]),
        ("Move", [((x0 + x1) / 2, (y0 + y1) / 2)]),
        ("Move", [(x1, y1)]),
        ("End", []),
    ):
        touches = [{"x": x, "y": y} for x, y in points]
        session.send("Input.dispatchTouchEvent", {"type": f"touch{kind}", "touchPoints": touches})


def toast(page: Any) -> str:
    """Return the text of the error message that the page shows."""
    page.wait_for_selector(".toast-body")
    return page.inner_text(".toast-body")
