"""The engine: batches the images of many requests through one encoder.

A request passes these stages:

    admission   grants permits for all images and bytes of the request, or raises Overloaded with a retry time
    stages      DecodeWorkers: images are decoded in other processes; an unreadable image fails alone
    stages      Device: the one thread that owns the device runs batches, recovers from failed ones, and is replaced
                when it dies or stalls
    worker      Worker: a thread that can be given up when it stalls
    request     collects the results of its images, and answers once; BatchQueue, in which images wait for a thread
    engine      Engine: all of it together, for threads and for the event loop

An idle device starts at once and never waits for a batch to fill. A busy one finds the next batch filled.
"""

from .engine import Engine
from .request import ImageTask, Result

__all__ = ["Engine", "ImageTask", "Result"]
