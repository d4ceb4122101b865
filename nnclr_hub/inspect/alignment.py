"""How well the details of two images agree, after one is cropped, scaled and mirrored to fit the other.

    aligned_correlation(small, pairs)           # (P,) float32, 1: the same image
    aligned_correlation(small, pairs, color)    # 0 for pairs that differ in color

Encoders and perceptual hashes see that two white shirts are alike. Fine structure at the same places shows that they
are the same photo. Two steps for each pair:

1. Coarse: normalized cross-correlation (Lewis, 1995) of one whole image with windows of the other, in both directions,
   and mirrored.
2. Fine: the best window is moved and resized in half pixels as long as the correlation of high-passed images grows.

Both steps see gray. Where colors are given, those inside the window must be the same, too.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np

SIDE = 48  # pixels of a small image
COARSE, FINE = 12, 32  # cells per side in the two steps
SCALES = (1.0, 0.9, 0.8, 0.7)  # sizes of a window over the image's, per axis
STEP = 2.5  # pixels between windows
ASPECT = 0.11  # largest difference of the two scales of a window
SMALLEST = 0.6  # share of a side to which the fine step may shrink a window
PROMISING = 0.8  # coarse correlation from which the fine step is tried
WORTHWHILE = 0.3  # fine correlation at its start from which it is continued
ROUNDS = 8  # most moves
BLUR = 5  # cells of the mean that a high-pass filter subtracts
FLAT = 1.0  # standard deviation of gray values below which an image has no details to compare
CHUNK = 256  # images or pairs at a time
COLOR_SIDE = 12  # cells per side of the colors of an image
RECOLORED = 0.1  # share of cells of another color from which two images differ
COLOR_STEP = 16.0  # distance of two colors, of Cb and Cr between 0 and 255, from which they differ
HALF = 2 * SIDE  # half pixels of a side

Progress = Callable[[int, int], None]


def aligned_correlation(
    small: np.ndarray,
    pairs: np.ndarray,
    color: np.ndarray | None = None,
    *,
    progress: Progress = lambda done, total: None,
) -> np.ndarray:
    """Return the correlation of the details of each pair, (P,) float32 in [-1, 1]; 0 for pairs that differ coarsely.

    Args:
        small: (N, 48, 48) uint8, gray images squashed to a square.
        pairs: (P, 2) int, positions in `small`.
        color: (N, 12, 12, 2) uint8, Cb and Cr of the images squashed to a square; None: colors are not compared.
        progress: called with (done, total), counted in pairs.
    """
    found = np.zeros(len(pairs), np.float32)
    if not len(pairs):
        return found
    total = 2 * len(pairs)  # both steps
    used, place = np.unique(pairs, return_inverse=True)
    small, pairs = small[used], place.reshape(pairs.shape)
    color = None if color is None else color[used]
    best, choice = _coarse(small, pairs, lambda done: progress(done, total))
    tried = np.flatnonzero(best >= PROMISING)
    for start in range(0, len(tried), CHUNK):
        some = tried[start : start + CHUNK]
        found[some] = _fine(small, choice[some], color)
        progress(len(pairs) + int(some[-1]), total)
    progress(total, total)
    return found


def _coarse(small: np.ndarray, pairs: np.ndarray, progress: Callable[[int], None]) -> tuple[np.ndarray, np.ndarray]:
    """Return the best coarse correlation of each pair, (P,), and where: (P, 4) of (a, b, is mirrored, window of b).

    The windows of each image are cut once, and compared with all images that it forms a pair with.
    """
    first, second = pairs.T
    wholes = np.concatenate([_wholes(small[i : i + CHUNK]) for i in range(0, len(small), CHUNK)])  # (N, 2, C)
    best, choice = np.full(len(pairs), -1.0, np.float32), np.zeros((len(pairs), 4), np.int64)
    searched, others, own = np.concatenate([second, first]), np.concatenate([first, second]), len(pairs)
    order = np.argsort(searched, kind="stable")
    images, starts = np.unique(searched[order], return_index=True)
    groups = np.split(order, starts[1:])
    done = 0
    for start in range(0, len(images), CHUNK):
        some = images[start : start + CHUNK]
        for image, group, windows in zip(some, groups[start:], _windows(small[some]), strict=False):
            other = others[group]
            scores = wholes[other] @ windows.T  # (G, 2, W)
            flat = scores.reshape(len(group), -1)
            place, pair = flat.argmax(axis=1), group % own
            score = flat[np.arange(len(group)), place]
            better = score > best[pair]
            best[pair[better]] = score[better]
            flip, window = np.divmod(place, scores.shape[2])
            choice[pair[better]] = np.stack([other, np.full_like(other, image), flip, window], axis=1)[better]
            done += len(group)
        progress(done // 2)
    return best, choice


def _fine(small: np.ndarray, choice: np.ndarray, color: np.ndarray | None) -> np.ndarray:
    """Return the correlation of details from the windows of `_coarse` on, (P,); 0 for other colors."""
    a, b, flip, window = choice.T
    first, second = small[a].astype(np.float32), small[b].astype(np.float32)
    is_flat = np.minimum(first.std(axis=(1, 2)), second.std(axis=(1, 2))) < FLAT
    first[flip == 1] = first[flip == 1][:, :, ::-1]
    windows = _window_table()[1][window]
    found = np.where(is_flat, 0, _refine(first, second, windows))
    if color is None:
        return found
    for i in np.flatnonzero(found >= WORTHWHILE):
        if not _same_color(color[a[i]], color[b[i]], windows[i], flip[i] == 1):
            found[i] = 0
    return found


def _same_color(first: np.ndarray, second: np.ndarray, window: np.ndarray, is_mirrored: bool) -> bool:
    """Return whether an image (12, 12, 2) has the colors of a window of another one."""
    top, height, left, width = window * (COLOR_SIDE / HALF)
    down = _resampling(top, height, COLOR_SIDE, COLOR_SIDE)
    across = _resampling(left, width, COLOR_SIDE, COLOR_SIDE)
    whole = (first[:, ::-1] if is_mirrored else first).astype(np.float32)
    inside = np.einsum("gy,yxc,hx->ghc", down, second.astype(np.float32), across)
    return float((np.linalg.norm(inside - whole, axis=2) > COLOR_STEP).mean()) < RECOLORED


def _wholes(images: np.ndarray) -> np.ndarray:
    """Return (U, 2, C) of whole images and of their mirror images, of length 1."""
    axis = _window_table()[0][0]
    grids = axis @ images.astype(np.float32) @ axis.T
    return _unit(np.stack([grids, grids[:, :, ::-1]], axis=1))


def _windows(images: np.ndarray) -> np.ndarray:
    """Return (U, W, C) of the windows of images, of length 1."""
    axes, _, (rows, columns) = _window_table()
    lines = np.einsum("vgy,nyx->nvgx", axes, images.astype(np.float32), optimize=True)  # (U, V, g, S)
    both = np.einsum("nvgx,uhx->nvugh", lines, axes, optimize=True)  # (U, V, V, g, g)
    return _unit(both[:, rows, columns])


def _refine(first: np.ndarray, second: np.ndarray, window: np.ndarray) -> np.ndarray:
    """Return the best correlation of the first images with windows of the second, from these windows on.

    Args:
        first, second: (P, S, S) float32.
        window: (P, 4) int64 of (top, height, left, width), in half pixels; moved in place.
    """
    table = _resampling_table()
    whole = np.tile([0, HALF, 0, HALF], (len(first), 1))
    # all of the image first: its details only agree once the window is right to a pixel
    _climb(table, _crop(table, first, whole), second, window, (2,))
    details = _crop(table, _high_pass(first), whole)
    best = _climb(table, details, _high_pass(second), window, (2, 1), WORTHWHILE)
    active = np.flatnonzero(best >= WORTHWHILE)
    # the search ran on details of the whole second image; the result compares details of the same scale
    crops = _crop(table, second[active], window[active])
    result = np.zeros(len(first), np.float32)
    if not len(active):
        return result
    wholes = _crop(table, first[active], whole[active])
    result[active] = (_unit(_high_pass(wholes)) * _unit(_high_pass(crops))).sum(axis=1)
    return result


def _climb(
    table: np.ndarray,
    target: np.ndarray,
    images: np.ndarray,
    window: np.ndarray,
    sizes: tuple[int, ...],
    least: float = -1.0,
) -> np.ndarray:
    """Move each window, in place, while the correlation with its target grows; return the correlations (P,).

    Args:
        target: (P, FINE, FINE).
        images: (P, S, S), of which the windows are cut.
        sizes: lengths of a move, in half pixels.
        least: windows that correlate less at their start stay there.
    """
    target = _unit(target)

    def score(at: np.ndarray, rows: np.ndarray) -> np.ndarray:
        return (target[rows] * _unit(_crop(table, images[rows], at))).sum(axis=1)

    best = score(window, np.arange(len(window)))
    active = np.flatnonzero(best >= least)
    for size in sizes:
        going = active
        for _ in range(ROUNDS):
            if not len(going):
                break
            improved = np.zeros(len(going), bool)
            origin = window[going].copy()
            for axis in range(4):
                for move in (-size, size):
                    at = origin.copy()
                    at[:, axis] += move
                    at = _inside(at)
                    scores = score(at, going)
                    better = scores > best[going] + 1e-4
                    best[going[better]] = scores[better]
                    window[going[better]] = at[better]
                    improved |= better
            going = going[improved]
    return best


def _inside(window: np.ndarray) -> np.ndarray:
    for start, length in ((0, 1), (2, 3)):
        window[:, length] = np.clip(window[:, length], int(SMALLEST * HALF), HALF)
        window[:, start] = np.clip(window[:, start], 0, HALF - window[:, length])
    return window


def _crop(table: np.ndarray, images: np.ndarray, window: np.ndarray) -> np.ndarray:
    """Return windows (P, 4) of images (P, S, S), resampled to (P, FINE, FINE)."""
    down = table[window[:, 0], HALF - window[:, 1]]  # (P, FINE, S)
    across = table[window[:, 2], HALF - window[:, 3]]
    return np.matmul(np.matmul(down, images), across.transpose(0, 2, 1))


def _high_pass(images: np.ndarray) -> np.ndarray:
    mean = _mean_filter(images.shape[1])
    return images - mean @ images @ mean.T


def _unit(images: np.ndarray) -> np.ndarray:
    """Return the last two axes as one, without their mean and of length 1."""
    flat = images.reshape(*images.shape[:-2], -1)
    flat = flat - flat.mean(axis=-1, keepdims=True)
    return flat / np.maximum(np.linalg.norm(flat, axis=-1, keepdims=True), 1e-3)


# ---- fixed tables


@cache
def _window_table() -> tuple[np.ndarray, np.ndarray, tuple[np.ndarray, np.ndarray]]:
    """Return the resampling of each interval (V, COARSE, S), windows (W, 4) in half pixels, and their intervals.

    The first window is the whole image.
    """
    intervals = []
    for scale in SCALES:
        length = round(scale * HALF)
        steps = int(np.ceil((HALF - length) / (2 * STEP)))
        intervals += [(round(start), length) for start in np.linspace(0, HALF - length, steps + 1)]
    axes = np.stack([_resampling(start / 2, length / 2, COARSE) for start, length in intervals])
    near = [
        (i, j)
        for i, (_, h) in enumerate(intervals)
        for j, (_, w) in enumerate(intervals)
        if abs(h - w) <= ASPECT * HALF
    ]
    rows, columns = np.array(near).T
    windows = np.array([(*intervals[i], *intervals[j]) for i, j in near])
    return axes, windows, (rows, columns)


@cache
def _resampling_table() -> np.ndarray:
    most = HALF - int(SMALLEST * HALF)
    table = np.zeros((most + 1, most + 1, FINE, SIDE), np.float32)
    for start in range(most + 1):
        for missing in range(start, most + 1):
            table[start, missing] = _resampling(start / 2, (HALF - missing) / 2, FINE)
    return table


@cache
def _mean_filter(side: int) -> np.ndarray:
    around = np.arange(side)[:, None] + np.arange(BLUR) - BLUR // 2
    matrix = np.zeros((side, side), np.float32)
    np.add.at(matrix, (np.arange(side)[:, None], np.clip(around, 0, side - 1)), 1 / BLUR)
    return matrix


def _resampling(start: float, length: float, cells: int, side: int = SIDE) -> np.ndarray:
    edges = start + np.arange(cells + 1) * length / cells
    pixel = np.arange(side)
    shared = np.minimum(edges[1:, None], pixel + 1) - np.maximum(edges[:-1, None], pixel)
    weights = np.maximum(shared, 0)
    return (weights / weights.sum(axis=1, keepdims=True)).astype(np.float32)
