"""ProbeReport: the accuracy of a probe, its confusion matrix, and its accuracy with fewer labels.

report = ProbeReport(elem_id="probe-report")
return report_value(stored, href)           # of a KeptProbe; None hides the report
"""

from __future__ import annotations

from typing import Any, ClassVar

from nnclr_hub.workbench.probes import KeptProbe

from .widget import Widget

MAX_NAMED = 5


class ProbeReport(Widget):
    """The widget has no events."""

    script: ClassVar[str] = "probe_report.js"


def report_value(stored: KeptProbe, href: str) -> dict[str, Any]:
    """Return a ProbeReport value.

    Args:
        href: the download link of the probe.
    """
    about, several = stored.about, stored.probe.several
    score = about["scores"].get("map11" if several else "top1")
    return {
        "name": stored.name,
        "href": href,
        "score": score,
        "measure": "mean average precision" if several else "accuracy",
        "summary": _summary(stored, score),
        "classes": [{**one, "label": str(one["label"])} for one in about["per_class"]],
        "confusion": about.get("confusion"),
        "curve": [
            {"labels": one["labels"], "mean": sum(one["top1"]) / len(one["top1"]), "each": one["top1"]}
            for one in about.get("few_shot") or ()
        ],
    }


def _summary(stored: KeptProbe, score: float | None) -> list[str]:
    """Return sentences on what the numbers are measured on."""
    about = stored.about
    rows, held_out = about["rows"], about["held_out"]
    summary = [f"Fitted on {rows} images with {len(about['per_class'])} labels."]
    if score is None:
        summary.append("The accuracy was not measured; that requires at least 3 images per label.")
    else:
        chance = 1 / max(2, len(about["per_class"]))
        guessing = "" if stored.probe.several else f" Guessing would reach {chance:.0%}."
        summary.append(f"Measured on {held_out} of them, with a second probe that was not fitted on these.{guessing}")
    single = [str(one["label"]) for one in about["per_class"] if one["rows"] == 1]
    if single:
        names = ", ".join(single[:MAX_NAMED]) + (" and others" if len(single) > MAX_NAMED else "")
        summary.append(f"Only one image has the label: {names}. Label more images for it.")
    summary += [f"Skipped: {number} ({reason})." for reason, number in about["left_out"].items()]
    return summary
