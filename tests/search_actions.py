"""Actions of tests on the Search tab, and what it shows."""

from pathlib import Path
from typing import Any

from page_actions import wait_for


def captions(page: Any) -> list[str]:
    """Return the captions of the results, with their scores."""
    return [text.replace("\n", " ") for text in page.locator("#tiles .caption").all_inner_texts()]


def scores(page: Any) -> list[float]:
    """Return the scores of the results."""
    return [float(text) for text in page.locator("#tiles .score").all_inner_texts()]


def ids(page: Any) -> list[str]:
    """Return the item ids of the results."""
    return page.eval_on_selector_all("#tiles .tile", "tiles => tiles.map(tile => tile.dataset.id)")


def upload(page: Any, path: Path) -> None:
    """Search by an uploaded image."""
    wait_for(page, "photos")  # until the page has loaded
    page.set_input_files("#query input[type=file]", str(path))
    wait_for(page, "most similar")
