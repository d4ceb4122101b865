"""Address: what stands behind the # of the page's address, so that a search is a link and the browser's Back goes back.

    address = Address(elem_id="address")
    page.on(address.back, self.reopen, [...], [...])    # event.fragment, when the person went back or forth
    return query.fragment()                             # a new value is a new entry in the browser's history

A browser sends nothing of what stands there to any server, unless our script does.
"""

from __future__ import annotations

from typing import ClassVar

from .widget import Widget


class Address(Widget):
    """Events: `back`. It shows a button that copies the link."""

    script: ClassVar[str] = "address.js"
