"""The page's look: Gradio's theme with the contrast that WCAG AA requires, and our style sheets.

The page loads nothing from other hosts; it uses the system's fonts.
"""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

import gradio as gr

FOLDER = Path(__file__).parent / "style"
THEME = gr.themes.Default(
    primary_hue=gr.themes.colors.orange,
    neutral_hue=gr.themes.colors.stone,
    radius_size=gr.themes.sizes.radius_md,
    font=["system-ui", "sans-serif"],
    font_mono=["ui-monospace", "monospace"],
).set(
    button_primary_background_fill="*primary_700",
    button_primary_background_fill_dark="*primary_700",
    button_primary_background_fill_hover="*primary_800",
    button_primary_background_fill_hover_dark="*primary_800",
    button_primary_text_color="white",
    button_cancel_background_fill="#b91c1c",
    button_cancel_text_color="white",
    body_text_color_subdued="*neutral_600",
    body_text_color_subdued_dark="*neutral_300",
    checkbox_border_color="*neutral_500",
    checkbox_border_color_dark="*neutral_400",
    block_label_text_color="*neutral_600",
    block_label_text_color_dark="*neutral_300",
    block_title_text_color="*neutral_700",
    block_title_text_color_dark="*neutral_200",
)
HEAD = (
    f"<link rel='icon' href='data:image/svg+xml,{quote((FOLDER / 'favicon.svg').read_text())}'>"
    f"<script>{(FOLDER / 'page.js').read_text()}</script>"
)


def css() -> str:
    """Return all style sheets: those of the page and of each widget."""
    return "\n".join(path.read_text() for path in sorted(FOLDER.glob("*.css")))
