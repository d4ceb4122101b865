"""Performs scripts in forks that die at failpoints: one start of Python for many deaths.

Reads lines {"folder", "failpoint", "seed", "length"} and answers each with {"status": of the fork}; the fork leaves
its acknowledgements in FOLDER.acknowledged. Without a failpoint it lives, and counts in FOLDER.reached how often
each step was reached.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import traceback
from typing import Any

from store.crash.script import operations, run

import nnclr_hub.store.folder  # noqa: F401 - so that the forks need not
from nnclr_hub.store import failpoints

NEVER = 10**9


def _fork(order: dict[str, Any]) -> int:
    """Perform one order in a separate process; return its wait status."""
    child = os.fork()
    if child:
        return os.waitpid(child, 0)[1]
    try:
        _perform(order)
    except BaseException:  # noqa: BLE001 - a fork must not continue the loop of its parent
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def _perform(order: dict[str, Any]) -> None:
    os.environ["NNCLR_FAILPOINT"] = order["failpoint"] or f"{failpoints.STEPS[0]}:{NEVER}"
    importlib.reload(failpoints)
    with open(f"{order['folder']}.acknowledged", "wb", buffering=0) as answer:
        run(order["folder"], operations(order["seed"], order["length"]), answer.fileno())
    with open(f"{order['folder']}.reached", "w") as out:
        # it counts down, from zero for all steps but the one that is waited for
        reached = {step: (NEVER if step == failpoints.STEPS[0] else 0) - n for step, n in failpoints._countdown.items()}
        json.dump(reached, out)


if __name__ == "__main__":
    for line in sys.stdin:
        print(json.dumps({"status": _fork(json.loads(line))}), flush=True)  # noqa: T201
