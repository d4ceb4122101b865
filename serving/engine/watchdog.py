"""Watchdog: replaces a device thread that died or stalled, and reports an encoder that always fails.

A fault lasts until a test image has passed all stages. Without traffic, the replaced thread alone would not show
whether the engine works again.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future

from nnclr_hub.workbench.privacy import public_name

from ..telemetry import Metrics
from .stages import DeviceThread

log = logging.getLogger(__name__)
MAX_FAILURES = 3  # forward passes in a row, each of one image
MAX_PAUSE_S = 1.0


class Watchdog:
    """Checks the device thread of one engine.

    Args:
        name: of the encoder.
        stall_s: seconds that the thread may take for one step.
        wake: makes it check at once.
        test: sends a test image through the engine and returns its future.
    """

    def __init__(
        self,
        name: str,
        device: DeviceThread,
        stall_s: float,
        metrics: Metrics,
        wake: threading.Event,
        test: Callable[[], Future],
    ) -> None:
        self.fault: str | None = None
        self._name = name
        self._device = device
        self._stall_s = stall_s
        self._restarts = metrics.device_restarts.labels(public_name(name))
        self._wake = wake
        self._test = test
        self._running_test: Future | None = None
        self._closed = False
        self._thread = threading.Thread(target=self._run, name=f"watchdog of {name}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread."""
        self._closed = True
        self._wake.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._closed:
            self._wake.wait(min(MAX_PAUSE_S, self._stall_s / 4))
            self._wake.clear()
            try:
                self._check()
            except Exception:
                log.exception("the watchdog of %s failed", self._name)

    def _check(self) -> None:
        faults: list[str] = []

        def report(fault: str) -> None:
            faults.append(fault)
            self.fault = "; ".join(faults)
            log.error("%s: %s", self._name, fault)

        self._restarts.inc(self._device.worker.replace_if_faulty(self._stall_s, report))
        if self._device.failures_in_a_row >= MAX_FAILURES:
            self._device.failures_in_a_row = 0
            report("the encoder fails on every image")
        if faults:
            self._running_test = None  # it may have been lost with a thread
        if self.fault is not None:
            self._try_recovery()

    def _try_recovery(self) -> None:
        """Clear the fault when a test image has passed. If it failed, send another one at a later check."""
        if self._running_test is not None and self._running_test.done():
            if self._running_test.exception() is None:
                log.warning("%s works again", self._name)
                self.fault = self._running_test = None
                return
            self._running_test = None
        if self._running_test is None:
            self._running_test = self._test()
            self._running_test.add_done_callback(lambda test: self._wake.set() if test.exception() is None else None)
