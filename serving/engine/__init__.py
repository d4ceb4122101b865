"""The engine: batches the images of many requests through one encoder.

A request passes these stages:

    admission        grants permits for all images and bytes of the request, or raises Overloaded with a retry time
    stages           DecodeWorkers: images are decoded in other processes; an unreadable image fails alone
    batch_queue      BatchQueue: decoded images wait for the device
    stages           DeviceThread: the one thread that owns the device runs batches, and recovers from failed ones
    request          collects the results of its images, and answers once

Supporting parts:

    worker           ReplaceableWorker: a thread that can be replaced when it dies or stalls
    watchdog         replaces it, and reports a fault until a test image has passed all stages
    attention        attention maps as a task for these threads
    engine           Engine: all of it together, for threads and for the event loop

An idle device starts at once and never waits for a batch to fill. A busy one finds the next batch filled.
"""

from .engine import Engine
from .request import ImageTask, Result

__all__ = ["Engine", "ImageTask", "Result"]
