"""ProbeReport: how well a probe does, as a person reads it: accuracy, confusions, and what more labels would bring.

report = ProbeReport(elem_id="probe-report")
return report_of(kept, href)                # of a KeptProbe; None: nothing is shown
"""

from __future__ import annotations

from typing import Any, ClassVar

from nnclr_hub.workbench.probes import KeptProbe

from .widget import Widget


class ProbeReport(Widget):
    """It has no events."""

    script: ClassVar[str] = "probe_report.js"


def report_of(kept: KeptProbe, href: str) -> dict[str, Any]:
    """A probe as the report shows it.

    Args:
        href: where its files can be had.
    """
    about, several = kept.about, kept.probe.several
    score = about["scores"].get("map11" if several else "top1")
    return {
        "name": kept.name,
        "href": href,
        "score": score,
        "measure": "mean precision" if several else "right",
        "told": _told(kept, score),
        "classes": [{**one, "label": str(one["label"])} for one in about["per_class"]],
        "confusion": about.get("confusion"),
        "curve": [
            {"labels": one["labels"], "mean": sum(one["top1"]) / len(one["top1"]), "each": one["top1"]}
            for one in about.get("few_shot") or ()
        ],
    }


def _told(kept: KeptProbe, score: float | None) -> list[str]:
    """Sentences on what the figures are of, and what they are not."""
    about = kept.about
    rows, held = about["rows"], about["held_out"]
    told = [f"Learned from {rows} images of {len(about['per_class'])} labels."]
    if score is None:
        told.append("How well it does was not measured: that takes at least 3 images of a label.")
    else:
        chance = 1 / max(2, len(about["per_class"]))
        guessing = "" if kept.probe.several else f" Guessing would come to {chance:.0%}."
        told.append(f"Measured on {held} of them that a second probe, fitted for this alone, never saw.{guessing}")
    once = [str(one["label"]) for one in about["per_class"] if one["rows"] == 1]
    if once:
        names = ", ".join(once[:5]) + (" and others" if len(once) > 5 else "")
        told.append(f"Used only once: {names}. From one image nobody knows what a label means; give it a few more.")
    told += [f"Left out: {number} ({reason})." for reason, number in about["left_out"].items()]
    return told
