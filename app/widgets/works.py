"""Works: background jobs as they go on, looked up by the browser at REST; a reload shows them again.

    works = Works(elem_id="works")
    page.on(works.cancel, self.cancel, [...], [...], writes=True)       # event.id
    page.on(works.ended, self.refresh, [...], [...])                    # event.ids, when some have come to their end
    page.on(works.forget, self.forget, [...], [...])                    # event.ids, which the person has seen
    return [job.id, ...]                                                # the jobs to show, the oldest first

While the server does not answer it says so, and goes on when it does.
"""

from __future__ import annotations

from typing import Any, ClassVar

from .widget import Widget


class Works(Widget):
    """Events: `cancel`, `ended`, `forget`."""

    script: ClassVar[str] = "works.js"

    def __init__(self, value: Any = (), **options: Any) -> None:
        super().__init__(list(value or ()), **options)
