"""Numbers with their nouns, for messages: 1 item, 2 items."""


def counted(number: int, noun: str, plural: str = "") -> str:
    """Return a number with its noun; `plural`: its plural, if that is not the noun with an s."""
    return f"{number} {noun if number == 1 else plural or f'{noun}s'}"
