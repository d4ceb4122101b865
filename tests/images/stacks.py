"""A stack of a microscope, and the pixels that are read of a file of it."""

import numpy as np

from nnclr_hub.images.decode import decode_any
from nnclr_hub.images.reading import PLAIN

STACK = np.random.default_rng(0).integers(0, 4000, (3, 5, 40, 52), dtype=np.uint16)  # Z, C, Y, X
STACK[..., 0, 0] = 4095


def in_8_bits(values: np.ndarray) -> np.ndarray:
    return np.rint(values / 4095 * 255).astype(np.uint8)


def pixels(source, reading=PLAIN) -> np.ndarray:
    return np.asarray(decode_any(source, reading))
