"""What a file may be called: any line of text.

Blanks of other scripts and joined letters are part of ordinary names, such as those of a Mac's screenshots, though
`str.isprintable` says no to them.
"""

from __future__ import annotations

import unicodedata

BREAKING = {"Cc", "Cs", "Zl", "Zp"}  # controls, halves of letters, ends of lines and of paragraphs


def is_a_line(name: str) -> bool:
    """Whether it is not empty, and nothing in it would end the line."""
    return bool(name) and not any(unicodedata.category(letter) in BREAKING for letter in name)
