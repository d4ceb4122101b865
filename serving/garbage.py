"""What stays for as long as the server runs is not looked through for garbage again and again.

A full collection goes through every object of torch and of Gradio, and nobody is answered meanwhile.
"""

from __future__ import annotations

import gc


def keep() -> None:
    """All that is there now stays."""
    gc.collect()
    gc.freeze()


def let_go() -> None:
    """Some of it may go: a model that makes room for another, or everything, at the end."""
    gc.unfreeze()
