"""The program of a decoding process: it takes images from its parent, and decodes each within limits.

It imports NumPy, Pillow and the operations that its parent names, and never torch. The kernel ends it when an image
exceeds its CPU seconds, even inside a codec. It ends itself when its parent has ended.
"""

from __future__ import annotations

import json
import mmap
import os
import pickle
import select
import signal
import socket
from contextlib import suppress
from typing import Any

import numpy as np
from PIL import Image

from nnclr_hub.images import several_pages
from nnclr_hub.images.channels import ChannelImage
from nnclr_hub.images.process_memory import limit_memory

PARENT_S = 5.0  # seconds between two checks that the parent lives
QUICK_S, QUICK_S_PER_PIXEL = 0.25, 0.05e-6  # CPU seconds in the quick lane
QUICK_PIXELS = 13_000_000  # larger images belong to the heavy lane
QUICK_SCANS = 20  # so do JPEGs with more scans; encoders write about 10
LEAST = 0.05  # share of the CPU seconds that any image has, however small
NICE = 10  # of the heavy lane
STRIP = 250_000  # pixels
_LENGTH = 4  # bytes before each message


class HeavyImage(Exception):
    """Raised in the quick lane for an image that belongs to the heavy lane."""


class SharedBuffer:
    """Memory that a parent and its decoding process share: an unnamed file that both map.

    Args:
        fd: of the file, which the buffer then owns.

    Attributes:
        size: of the file in bytes; each side tells the other.
    """

    def __init__(self, fd: int) -> None:
        self.fd, self.size = fd, 0
        self._map: mmap.mmap | None = None

    def view(self, size: int) -> memoryview:
        """Return the first `size` bytes; the file grows if necessary. Release it before the next call."""
        if self.size < size or not self.size:  # an empty file cannot be mapped
            self.size = max(size, 1 << 18)
            os.ftruncate(self.fd, self.size)
        if self._map is None or len(self._map) != self.size:
            self._map = mmap.mmap(self.fd, self.size)
        return memoryview(self._map)[:size]

    def shrink(self, size: int) -> None:
        """Give memory beyond `size` bytes back. No view may exist."""
        if self.size > size:
            self._map, self.size = None, size
            os.ftruncate(self.fd, size)

    def close(self) -> None:
        self._map = None
        os.close(self.fd)


def send(connection: socket.socket, message: bytes) -> None:
    """Send a message after its length."""
    connection.sendall(len(message).to_bytes(_LENGTH, "big") + message)


def receive(connection: socket.socket) -> bytes:
    """Return the next message; b"" at the end of the connection."""
    data = bytearray(connection.recv(1 << 16))
    while data and len(data) < _LENGTH + int.from_bytes(data[:_LENGTH], "big"):
        more = connection.recv(1 << 20)
        if not more:
            return b""
        data += more
    return bytes(data[_LENGTH:])


def main(fd: int, memory: int, nice: int) -> None:
    """Serve the parent on standard input until it closes the connection.

    Args:
        fd: of the shared buffer.
        memory: bytes of address space on top of what the program itself needs.
        nice: added to the priority's number.
    """
    os.nice(nice)  # before the imports, which cost as much as a hundred small images
    if nice and hasattr(os, "SCHED_IDLE"):  # a process of another kind then gets the core at once, not after a slice
        with suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    for one in (signal.SIGINT, signal.SIGTERM):
        signal.signal(one, signal.SIG_IGN)  # the parent decides when its decoding processes end
    from nnclr_hub.images import decode as decoding
    from nnclr_hub.images.readers import readers

    parent = os.getppid()
    decoding.readable_formats()  # loads the codecs
    readers()
    limit_memory(memory)
    connection, buffer = socket.socket(fileno=0), SharedBuffer(fd)
    waiting = select.poll()
    waiting.register(connection, select.POLLIN)
    with suppress(ConnectionError):  # the parent was killed
        send(connection, b"ready")
        while True:
            while not waiting.poll(PARENT_S * 1000):
                if os.getppid() != parent:  # another child of it may hold the other end open
                    return
            message = receive(connection)
            if not message:
                return
            send(connection, json.dumps(_reply(message, buffer, decoding)).encode())


def _reply(message: bytes, buffer: SharedBuffer, decoding: Any) -> dict[str, Any]:
    """Run an operation on several images; return what the parent needs to know."""
    operation, sources, arguments, seconds, quick, buffer.size = pickle.loads(message)
    pages: list[str] = []
    several_pages.note = pages.append
    images = []
    position = 0
    for source in sources:
        if isinstance(source, tuple):  # so many bytes in the buffer, and their name
            size, name = source
            with buffer.view(position + size) as view:
                images.append(several_pages.NamedBytes(view[position:], name))
            position += size
        else:
            images.append(source)
    results = []
    position = 0
    for image in images:
        result, position = _run(operation, image, arguments, seconds, quick, buffer, position, decoding)
        results.append(result)
    return {"results": results, "pages": pages, "size": buffer.size}


def _run(
    operation: Any,
    source: Any,
    arguments: tuple[Any, ...],
    seconds: float,
    quick: bool,
    buffer: SharedBuffer,
    position: int,
    decoding: Any,
) -> tuple[dict[str, Any], int]:
    """Run an operation on one image under the timer, which runs until the next image sets it.

    Returns:
        What the parent needs to know, and the position behind the results in the buffer.
    """
    from nnclr_hub.errors import ImageTooExpensive, NNCLRHubError

    def announce(pixels: int, scans: int = 1) -> None:
        """Set the CPU seconds as soon as the size is known."""
        if quick and (pixels > QUICK_PIXELS or scans > QUICK_SCANS):
            raise HeavyImage
        allowed = seconds * max(LEAST, pixels / decoding.MAX_PIXELS)
        signal.setitimer(signal.ITIMER_PROF, min(allowed, QUICK_S + QUICK_S_PER_PIXEL * pixels) if quick else allowed)

    decoding.announce_pixels = announce
    signal.setitimer(signal.ITIMER_PROF, min(QUICK_S, seconds) if quick else seconds * LEAST)
    try:
        values, position = _put(operation(source, *arguments), buffer, position)
    except HeavyImage:
        return {"heavy": True}, position
    except NNCLRHubError as error:
        return {"error": [error.code, str(error)]}, position
    except MemoryError:
        return {"error": [ImageTooExpensive.code, "Too little memory to decode the image."]}, position
    except Exception as error:  # noqa: BLE001 - the parent raises it
        return {"failed": f"{type(error).__name__}: {error}"}, position
    return {"values": values}, position


def _put(values: tuple[Any, ...], buffer: SharedBuffer, position: int) -> tuple[list[Any], int]:
    """Write arrays and images into the buffer; return a description of all values for JSON, and the next position."""
    described: list[Any] = []
    end = position
    values = tuple(value.pixels if isinstance(value, ChannelImage) else value for value in values)
    for value in values:
        if isinstance(value, Image.Image):
            described.append([end, "|u1", (value.height, value.width, 3)])
            end += value.width * value.height * 3
        elif isinstance(value, np.ndarray):
            described.append([end, value.dtype.str, value.shape])
            end += value.nbytes
        else:
            described.append(value)
    with buffer.view(end) as view:
        for value, about in zip(values, described, strict=True):
            if isinstance(value, Image.Image):
                _put_image(value, view, about[0])
            elif isinstance(value, np.ndarray):
                np.ndarray(value.shape, value.dtype, view, about[0])[:] = value
    return described, -(-end // 64) * 64


def _put_image(image: Image.Image, view: memoryview, position: int) -> None:
    """Write RGB pixels strip by strip, which stays in the processor's cache."""
    rows = max(1, STRIP // image.width)
    for top in range(0, image.height, rows):
        pixels = image.crop((0, top, image.width, min(top + rows, image.height))).tobytes()
        view[position : position + len(pixels)] = pixels
        position += len(pixels)
