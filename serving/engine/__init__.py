"""The engine: one encoder for many requests at once.

    admission   permits for a whole request, images and bytes, or Overloaded with the time to come back
    request     the images that one caller asked for together, and their one answer
    line        works that wait: for a decoding thread, then for the device
    crew        threads that can be seen to be dead or stuck, and be replaced
    decoding    a thread a core; an image that cannot be read fails alone
    device      the one thread that owns the device: batches, buckets, what to do when a batch fails
    looking     attention through all this: what is done for each image, and what becomes of it
    watchdog    replaces threads that died or stalled, and says so until a test image has come through
    engine      Engine: all of it together, for threads and for the event loop

An idle device never waits for a batch to fill; a busy one finds the next batch filled.
"""

from .engine import Engine
from .request import Result, Task

__all__ = ["Engine", "Result", "Task"]
