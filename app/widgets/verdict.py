"""Verdict: what a probe says of an image, its most probable labels as bars.

verdict = Verdict(elem_id="probe-verdict")
return verdict_of(labeling)                # None: nothing is shown
"""

from __future__ import annotations

from typing import Any, ClassVar

from nnclr_hub.probe.labeling import Labeling

from .widget import Widget


class Verdict(Widget):
    """It has no events."""

    script: ClassVar[str] = "verdict.js"


def verdict_of(said: Labeling) -> dict[str, Any]:
    """What a Verdict shows: probabilities in [0, 1], the most probable label first."""
    given = said.label if isinstance(said.label, tuple) else () if said.label is None else (said.label,)
    sure = ", ".join(map(str, given)) or "None of its labels is probable enough."
    return {"said": sure, "top": [{"label": str(label), "probability": float(p)} for label, p in said.top]}
