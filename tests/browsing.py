"""What tests do with the page in a browser."""

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
