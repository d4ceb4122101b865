"""The short form of the crash suite, which `make test` runs, and the long one of `make crash`.

NNCLR_CRASH_SECONDS selects the long form and the duration of its random kills, NNCLR_CRASH_SEED other kills.
"""

import os

SECONDS = float(os.environ.get("NNCLR_CRASH_SECONDS", "0"))
LONG = SECONDS > 0
SEED = int(os.environ.get("NNCLR_CRASH_SEED", "1"))
