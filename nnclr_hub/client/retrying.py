"""When a call is asked again, and when it is given up.

Asked again is what the server refuses for the moment (429, 503: after the Retry-After that it names) and what the
connection lost. Between two attempts there is an exponential pause with jitter, and at the deadline the last error is
the answer. Where nothing answers at all, a few attempts are enough: more likely the address is wrong.
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
LOST = 5  # attempts without an answer, for a call without patience


@dataclass(frozen=True)
class Policy:
    """timeout: seconds from the call to its result, all attempts and pauses included."""

    timeout: float
    clock: Callable[[], float] = time.monotonic
    jitter: Callable[[], float] = random.random


def answered(call: Call[T], policy: Policy) -> Steps[T]:
    """The call's result.

    Raises:
        NNCLRHubError: the server's error, or why there is no answer.
    """
    deadline = policy.clock() + policy.timeout + call.patience
    lost = False  # whether an attempt may have been carried out, though nothing was heard of it
    for attempt in count():
        asked: float | None = None
        try:
            answer: Answer = yield Attempt(call, min(policy.timeout, deadline - policy.clock()))
        except (ServerUnreachable, DeadlineExceeded) as error:
            failure: NNCLRHubError = error
            lost = True
        else:
            if call.takes(answer):
                return _read(call, answer)
            failure, asked = error_of(answer), retry_after(answer)
            if lost and call.gone is not None and isinstance(failure, call.gone):
                return _read(call, answer)
            lost = lost or isinstance(failure, ServerUnreachable)  # a proxy, of a server that died over it
        if call.once or (asked is None and not _passes(failure, call, attempt)):
            raise failure
        if call.patience and attempt + 1 == LOST:
            left = deadline - policy.clock()
            log.warning(
                "%s Asking again for %.0f s more; what is interrupted goes on when it is repeated.", failure, left
            )
        pause = max(asked or 0.0, min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2**attempt) * (0.5 + policy.jitter() / 2))
        if policy.clock() + pause >= deadline:
            raise failure
        yield Pause(pause)
    raise AssertionError("count() does not end")


def _read(call: Call[T], answer: Answer) -> T:
    try:
        return call.read(answer)
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        raise ServiceError(
            f"The answer of {answer.url} lacks what this client looks for ({type(error).__name__}: {error}): server "
            "and client may be of different versions."
        ) from error


def _passes(failure: NNCLRHubError, call: Call[T], attempt: int) -> bool:
    """Whether the same call may succeed a moment later."""
    if isinstance(failure, ServerUnreachable):
        return call.patience > 0 or attempt + 1 < LOST
    return isinstance(failure, Overloaded | NotReady) or (isinstance(failure, DeadlineExceeded) and call.patience > 0)
