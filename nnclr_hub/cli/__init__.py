"""`nnclr`: the command line. Each verb group is a file; the work is done elsewhere.

python -m nnclr_hub.cli --help          # the same without installing
"""

from __future__ import annotations


def main() -> None:
    """Run the command line."""
    from nnclr_hub.cli.app import app

    app(prog_name="nnclr")
