"""What tests see and do on the tab Search."""

from pathlib import Path
from typing import Any

from browsing import wait_for


def captions(page: Any) -> list[str]:
    return [text.replace("\n", " ") for text in page.locator("#tiles .caption").all_inner_texts()]


def scores(page: Any) -> list[float]:
    return [float(text) for text in page.locator("#tiles .score").all_inner_texts()]


def ids(page: Any) -> list[str]:
    return page.eval_on_selector_all("#tiles .tile", "tiles => tiles.map(tile => tile.dataset.id)")


def upload(page: Any, path: Path) -> None:
    wait_for(page, "photos")  # a test is quicker than the page is there
    page.set_input_files("#query input[type=file]", str(path))
    wait_for(page, "most similar")
