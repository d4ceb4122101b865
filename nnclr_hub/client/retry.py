"""When a call is repeated, and when it fails.

Temporary refusals (429, 503) are repeated after the server's Retry-After, lost connections after an exponential pause
with jitter. At the deadline the last error is raised. If nothing answers at all, a few attempts are enough, since the
address is probably wrong.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count

from nnclr_hub.client.answers import error_of, retry_after
from nnclr_hub.client.steps import Answer, Attempt, Call, Pause, Steps, T
from nnclr_hub.errors import DeadlineExceeded, NNCLRHubError, NotReady, Overloaded, ServerUnreachable, ServiceError

log = logging.getLogger(__name__)

FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 10.0
LOST = 5  # attempts without an answer, for a call without `patience`


@dataclass(frozen=True)
class Policy:
    """Limits of a call.

    timeout: seconds from the call to its result, including all attempts and pauses.
    """

    timeout: float
    clock: Callable[[], float] = time.monotonic
    jitter: Callable[[], float] = random.random


def answered(call: Call[T], policy: Policy) -> Steps[T]:
    """Return the result of a call.

    Raises:
        NNCLRHubError: the server's error, or why there is no answer.
    """
    deadline = policy.clock() + policy.timeout + call.patience
    lost = False  # whether an attempt without an answer may have been executed
    for attempt in count():
        wait: float | None = None
        try:
            answer: Answer = yield Attempt(call, min(policy.timeout, deadline - policy.clock()))
        except (ServerUnreachable, DeadlineExceeded) as error:
            failure: NNCLRHubError = error
            lost = True
        else:
            if call.takes(answer):
                return _read(call, answer)
            failure, wait = error_of(answer), retry_after(answer)
            if lost and call.gone is not None and isinstance(failure, call.gone):
                return _read(call, answer)
            lost = lost or isinstance(failure, ServerUnreachable)  # from a proxy: the server may have died
        if call.once or (wait is None and not _is_temporary(failure, call, attempt)):
            raise failure
        if call.patience and attempt + 1 == LOST:
            left = deadline - policy.clock()
            log.warning(
                "%s Retrying for another %.0f s; an interrupted upload continues when it is repeated.", failure, left
            )
        pause = max(wait or 0.0, min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2**attempt) * (0.5 + policy.jitter() / 2))
        if policy.clock() + pause >= deadline:
            raise failure
        yield Pause(pause)
    raise AssertionError("count() does not end")


def _read(call: Call[T], answer: Answer) -> T:
    try:
        return call.read(answer)
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        raise ServiceError(
            f"The answer of {answer.url} does not have the expected form ({type(error).__name__}: {error}); server and "
            "client may have different versions."
        ) from error


def _is_temporary(failure: NNCLRHubError, call: Call[T], attempt: int) -> bool:
    """Return whether the same call may succeed a moment later."""
    if isinstance(failure, ServerUnreachable):
        return call.patience > 0 or attempt + 1 < LOST
    return isinstance(failure, Overloaded | NotReady) or (isinstance(failure, DeadlineExceeded) and call.patience > 0)
