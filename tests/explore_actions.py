"""What the screen Explore of the web app shows, for tests."""

from typing import Any

from nnclr_hub.workbench import SearchQuery


def ids(page: Any) -> list[str]:
    """Return the ids of the images on the screen, in order."""
    return page.eval_on_selector_all(
        ".tile",
        """tiles => tiles.sort((a, b) => a.ariaPosInSet - b.ariaPosInSet)
                         .map(tile => tile.dataset.id)""",
    )


def found(page: Any) -> list[str]:
    """Wait for the matches of a search, and return their ids."""
    page.wait_for_selector(".tile .score:not(:empty)")
    page.wait_for_selector("image-grid:not(.waiting)")
    return ids(page)


def search(page: Any, place: int = 0) -> list[str]:
    """Search for an image of the grid by the keyboard, and return the ids of the matches."""
    page.locator(".sheet").focus()
    page.keyboard.press("Home")
    for _ in range(place):
        page.keyboard.press("ArrowRight")
    page.keyboard.press("s")
    return found(page)


def option(page: Any, name: str) -> Any:
    """Return a control of the menu View, which is opened."""
    if page.locator(".menu:popover-open").count() == 0:
        page.get_by_role("button", name="View", exact=True).click()
    return page.locator(".menu").get_by_label(name)


def expected(served: Any, **query: Any) -> list[str]:
    """Return the ids that the library finds."""
    return [match.id for match in served.bench.search("photos", SearchQuery(**query, k=200))]
