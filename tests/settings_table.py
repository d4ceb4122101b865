"""The table of settings in docs/reference/settings.md, generated from the code.

python tests/settings_table.py      # updates the page
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "reference" / "settings.md"
BEGIN, END = "<!-- settings: python tests/settings_table.py -->\n", "<!-- end of settings -->\n"


def table() -> str:
    """Return one row per setting: variable, description, default."""
    from serving.settings import Settings

    rows = ["| variable | what it is | default |", "|---|---|---|"]
    made = {"decode_threads": "the number of cores + 2", "session_secret": "random"}
    for name, field in Settings.model_fields.items():
        value = list(field.default) if isinstance(field.default, tuple) else field.default
        shown = made[name] if field.default_factory else f"`{value}`" if value not in (None, []) else "none"
        rows.append(f"| `NNCLR_{name.upper()}` | {field.description} | {shown} |")
    return "\n".join(rows) + "\n"


def written() -> str:
    """Return the page with the generated table."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    return before + BEGIN + table() + END + rest.partition(END)[2]


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    PAGE.write_text(written())
