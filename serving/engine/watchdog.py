"""Watchdog: notices threads that died or stalled and an encoder that only fails, and says when it is well again.

What is ill stays ill until a test image has come through everything, however little traffic there is.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future

from nnclr_hub.workbench.privacy import public_name

from ..telemetry import Metrics
from .decode_workers import DecodeWorkers
from .device_thread import DeviceThread

log = logging.getLogger(__name__)
FAILURES = 3  # forward passes in a row, of one image each
LONGEST_PAUSE_S = 1.0


class Watchdog:
    """See the module.

    Args:
        name: of the encoder.
        stall_s: how long a thread may be at one thing.
        look: wakes it before its time.
        test: sends a test image through and gives its future.
    """

    def __init__(
        self,
        name: str,
        decoding: DecodeWorkers,
        device: DeviceThread,
        stall_s: float,
        metrics: Metrics,
        look: threading.Event,
        test: Callable[[], Future],
    ) -> None:
        self.illness: str | None = None
        self._name = name
        self._decoding, self._device = decoding, device
        self._stall_s = stall_s
        self._restarts = metrics.device_restarts.labels(public_name(name))
        self._look = look
        self._test = test
        self._testing: Future | None = None
        self._ended = False
        self._thread = threading.Thread(target=self._run, name=f"watchdog of {name}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends it."""
        self._ended = True
        self._look.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended:
            self._look.wait(min(LONGEST_PAUSE_S, self._stall_s / 4))
            self._look.clear()
            try:
                self._check()
            except Exception:
                log.exception("the watchdog of %s failed", self._name)

    def _check(self) -> None:
        troubles: list[str] = []

        def told(trouble: str) -> None:
            troubles.append(trouble)
            self.illness = "; ".join(troubles)
            log.error("%s: %s", self._name, trouble)

        self._restarts.inc(self._device.crew.mend(self._stall_s, told))
        self._decoding.crew.mend(self._stall_s, told)
        if self._device.failures_in_a_row >= FAILURES:
            self._device.failures_in_a_row = 0
            told("the encoder fails on every image")
        if troubles:
            self._testing = None  # it may have been lost with a thread
        if self.illness is not None:
            self._convalesce()

    def _convalesce(self) -> None:
        """Well again when a test image has come through; one that failed is followed by another, in a while."""
        if self._testing is not None and self._testing.done():
            if self._testing.exception() is None:
                log.warning("%s is well again", self._name)
                self.illness = self._testing = None
                return
            self._testing = None
        if self._testing is None:
            self._testing = self._test()
            self._testing.add_done_callback(lambda test: self._look.set() if test.exception() is None else None)
