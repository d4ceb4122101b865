"""The frame of every report: one page that loads nothing and runs without scripts, in the colors of the web app.

path.write_text(report_page("Inspection of photos", f"<div class=sheet>{tile('cat.jpg', jpeg)}</div>"))
"""

from __future__ import annotations

import base64
from html import escape
from importlib.resources import files

STYLE = "report_page.css"
# of every report, by which a later one knows that it may replace the file
START = '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><meta name="generator" content="nnclr_hub">'


def report_page(title: str, body: str) -> str:
    """Return the page of a report with its title above the body, which is HTML."""
    style, name = files("nnclr_hub").joinpath(STYLE).read_text(encoding="utf-8"), escape(title)
    head = f'<meta name="viewport" content="width=device-width, initial-scale=1"><title>{name}</title>'
    content = f"<body><main><h1>{name}</h1>\n{body}\n</main></body>"
    return f"{START}{head}\n<style>\n{style}</style></head>\n{content}</html>\n"


def enlargeable(content: str, more: str = "") -> str:
    """Return HTML of an image or a plot that a click enlarges to the window, with `more` below it.

    A second click makes it small again.
    """
    return f"<details class=enlargeable><summary>{content}</summary>{more}</details>"


def tile(name: str, jpeg: bytes | str | None, caption: str = "", address: str = "") -> str:
    """Return an image of a contact sheet.

    Args:
        name: shown below it, cut where it is long, and whole when the image is open.
        jpeg: bytes, or their base64; None: there is no image.
        caption: shown between the image and its name.
        address: of the original, relative to the page.
    """
    text = (f"<b>{escape(caption)}</b>" if caption else "") + (f"<span>{escape(name)}</span>" if name else "")
    if jpeg is None:
        return f"<figure><span class=none></span>{text}</figure>"
    data = jpeg if isinstance(jpeg, str) else base64.b64encode(jpeg).decode()
    image = f'<img alt="{escape(name)}" src="data:image/jpeg;base64,{data}">'
    link = f'<a href="{escape(address)}">Original</a>' if address else ""
    return f"<figure>{enlargeable(image + text, link)}</figure>"
