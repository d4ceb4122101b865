"""Read JSON that others may have written, damaged or too deeply nested, and say what is wrong with it."""

from __future__ import annotations

import json
import re
from typing import Any

MALFORMED = (ValueError, TypeError, AttributeError, LookupError)  # what reading the values of such JSON raises


def parse_json(text: str | bytes) -> Any:
    """Return the value of a JSON text; ValueError says why it has none."""
    try:
        return json.loads(text)
    except UnicodeDecodeError as error:
        raise ValueError("it is not UTF-8") from error
    except json.JSONDecodeError as error:
        raise ValueError(f"it is not JSON in line {error.lineno}, column {error.colno}") from error
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    except ValueError as error:  # Python refuses to read more than 4,300 digits
        raise ValueError("it has an integer of too many digits") from error


def what_is_wrong(error: Exception) -> str:
    """Return the reason of an error as a part of a sentence; Python's own errors name types and functions."""
    if isinstance(error, KeyError):
        return f"it lacks {error.args[0]!r:.80}"
    if isinstance(error, TypeError | AttributeError | LookupError):
        return "a part of it is missing or has another type"
    return " ".join(str(error).split())[:150]


def is_utf8(text: object) -> bool:
    """Return whether a path or another text is UTF-8; Python writes bytes that are not as halves of surrogates."""
    return re.search("[\ud800-\udfff]", str(text)) is None
