"""The short form of the crash suite, which `make test` runs, and the long one of `make crash`.

NNCLR_CRASH_SECONDS makes it the long one and says how long the random kills go on; NNCLR_CRASH_SEED draws others.
"""

import os

SECONDS = float(os.environ.get("NNCLR_CRASH_SECONDS", "0"))
LONG = SECONDS > 0
SEED = int(os.environ.get("NNCLR_CRASH_SEED", "1"))
