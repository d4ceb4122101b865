"""What tests do with the page in a browser."""

from collections.abc import Callable
from typing import Any

PHONE = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True, "device_scale_factor": 2}


def open_tab(page: Any, name: str) -> None:
    """Goes to a tab; on a telephone some stand behind a button."""
    page.wait_for_selector("#tabs button[role=tab]")
    shown = page.locator("#tabs button[role=tab]:visible", has_text=name)
    if not shown.count():
        page.locator(".overflow-menu > button").click()
        shown = page.locator(".overflow-dropdown button", has_text=name)
    shown.first.click()


def wait_for(page: Any, words: str, selector: str = "#status") -> None:
    """Until the words stand there."""
    script = "([selector, words]) => document.querySelector(selector)?.innerText.includes(words)"
    page.wait_for_function(script, arg=[selector, words])


def until_shown(page: Any, selector: str, act: Callable[[], object]) -> None:
    """Acts until something shows: the page may not have read yet what was typed, since a test types at once."""
    from playwright.sync_api import TimeoutError as NotShown

    for _ in range(40):
        act()
        try:
            return page.locator(selector).first.wait_for(timeout=3000)
        except NotShown:
            continue
    raise AssertionError(f"{selector} never shows")


def wait_for_images(page: Any, selector: str, count: int = 4) -> None:
    """Until the first images there have come."""
    script = """([selector, count]) => { const found = [...document.querySelectorAll(selector)].slice(0, count);
      return found.length > 0 && found.every(image => image.complete && image.naturalWidth > 0) }"""
    page.wait_for_function(script, arg=[selector, count])


def drag(
    page: Any, selector: str, start: tuple[float, float], end: tuple[float, float], *, touch: bool = False
) -> None:
    """Drags over an element, from and to shares of its width and height."""
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
    page.wait_for_selector(".toast-body")
    return page.inner_text(".toast-body")
