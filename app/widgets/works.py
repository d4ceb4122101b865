"""Works: background jobs as they go on, looked up by the browser at REST; a reload shows them again.

    works = Works(elem_id="works")
    page.on(works.cancel, self.cancel, [...], [...], writes=True)       # event.id
    page.on(works.ended, self.refresh, [...], [...])                    # event.ids, when some have come to their end
    page.on(works.search, self.choose, [...], [...])                    # event.collection, which is to be searched
    return [job.id, ...]                                                # the jobs to show, the oldest first

While the server does not answer it says so, and goes on when it does. Which jobs a person has hidden, the browser alone
knows, and keeps.
"""

from __future__ import annotations

from typing import Any, ClassVar

from .widget import Widget


class Works(Widget):
    """Events: `cancel`, `ended`, `search`."""

    script: ClassVar[str] = "works.js"

    def __init__(self, value: Any = (), **options: Any) -> None:
        super().__init__(list(value or ()), **options)
