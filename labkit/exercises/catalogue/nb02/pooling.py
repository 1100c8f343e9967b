"""Max pooling: the forward and the backward pass."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from labkit.exercises.exercise import Case, Exercise
from labkit.nn import ops


def max_pool(x, k):  # type: ignore[no-untyped-def]
    """Return the largest entry of each window. Shapes: x (N, C, H, W); result (N, C, H // k, W // k)."""
    n, c, height, width = x.shape[0], x.shape[1], x.shape[2] // k, x.shape[3] // k
    windows = x[:, :, : height * k, : width * k].reshape(n, c, height, k, width, k)
    return windows.max(axis=(3, 5))


def max_pool_backward(dy, x, k):  # type: ignore[no-untyped-def]
    """Return dx; of equal entries the first gets dy. Shapes: dy (N, C, H // k, W // k), x (N, C, H, W)."""
    dx = np.zeros_like(x)
    height, width = dy.shape[2:]
    left = np.ones(dy.shape, bool)  # windows whose largest entry has not been found yet
    y = max_pool(x, k)
    for i in range(k):
        for j in range(k):
            place = (slice(None), slice(None), slice(i, height * k, k), slice(j, width * k, k))
            found = left & (x[place] == y)
            dx[place] = dy * found
            left &= ~found
    return dx


def _images(with_dy: bool) -> Callable[[], Sequence[Case]]:
    """Return the cases of max_pool, or of its backward: also negative, odd sizes, equal entries."""

    def cases() -> Sequence[Case]:
        made = []
        for shape, k, what in (
            ((1, 1, 2, 2), 2, "one window"),
            ((1, 1, 2, 4), 2, "two windows"),
            ((2, 3, 4, 6), 2, "random numbers"),
            ((2, 2, 4, 4), 2, "negative numbers"),
            ((2, 2, 4, 4), 2, "equal entries"),
            ((1, 2, 7, 5), 2, "a last row and column outside of the windows"),
            ((2, 1, 9, 6), 3, "windows of 3 × 3"),
        ):
            for dtype in np.float64, np.float32:
                rng = np.random.default_rng(sum(shape))
                x = rng.normal(size=shape).astype(dtype)
                if what == "negative numbers":
                    x = -np.abs(x) - 1
                if what == "equal entries":
                    x = np.maximum(x.round(), 0)
                dy = rng.normal(1, 1, size=(*shape[:2], shape[2] // k, shape[3] // k)).astype(dtype)
                made.append(
                    Case(
                        f"{what}, x of shape {shape}, {dtype.__name__}",
                        ((*((dy,) if with_dy else ()), x, k),),
                    )
                )
        return made

    return cases


def _entries(x: np.ndarray, k: int) -> np.ndarray:
    """Return the entries of the windows (k², N, C, H', W'), place after place."""
    height, width = x.shape[2] // k * k, x.shape[3] // k * k
    return np.stack([x[:, :, i:height:k, j:width:k] for i in range(k) for j in range(k)])


def _pooled(how: Callable[[np.ndarray], np.ndarray]) -> Callable[[Case], Sequence[Any]]:
    """Return a suspect of max_pool: `how` makes one number of the first axis, the window's entries."""
    return lambda case: [how(_entries(*case.arguments[0]))]


def _without_windows(case: Case) -> Sequence[Any]:
    ((x, k),) = case.arguments
    n, c, height, width = x.shape[0], x.shape[1], x.shape[2] // k, x.shape[3] // k
    cut = np.ascontiguousarray(x[:, :, : height * k, : width * k])
    return [cut.reshape(n, c, height, width, k * k).max(axis=-1)]


def _over_windows(case: Case) -> Sequence[Any]:
    ((x, k),) = case.arguments
    return [_entries(x, k).max(axis=(3, 4)).transpose(1, 2, 0).reshape(*x.shape[:2], k, k)]


def _moved(case: Case) -> Sequence[Any]:
    ((x, k),) = case.arguments
    return [np.lib.stride_tricks.sliding_window_view(x, (k, k), axis=(2, 3)).max(axis=(4, 5))]


def _given(factor: Callable[[np.ndarray], np.ndarray]) -> Callable[[Case], Sequence[Any]]:
    """Return a suspect of max_pool_backward: the fraction of dy that each entry of a window gets."""

    def suspect(case: Case) -> Sequence[Any]:
        ((dy, x, k),) = case.arguments
        dx, fractions = np.zeros_like(x), factor(_entries(x, k))
        for n, fraction in enumerate(fractions):
            i, j = divmod(n, k)
            dx[:, :, i : dy.shape[2] * k : k, j : dy.shape[3] * k : k] = dy * fraction
        return [dx]

    return suspect


def _to_last(entries: np.ndarray) -> np.ndarray:
    last = len(entries) - 1 - entries[::-1].argmax(axis=0)
    return last == np.arange(len(entries)).reshape(-1, 1, 1, 1, 1)


def _is_largest(entries: np.ndarray) -> np.ndarray:
    return entries == entries.max(axis=0)


def _without_edges(case: Case) -> Sequence[Any]:
    ((dy, x, k),) = case.arguments
    cut = x[:, :, : dy.shape[2] * k, : dy.shape[3] * k]
    return [ops.maxpool_backward(dy, cut, ops.maxpool(cut, k), k)]


EXERCISES = [
    Exercise(
        reference=max_pool,
        title="Max pooling",
        difficulty=2,
        minutes=10,
        cases=_images(with_dy=False),
        expected=lambda case: [ops.maxpool(*case.arguments[0])],
        suspects={
            "this is the average of each window": _pooled(lambda entries: entries.mean(axis=0)),
            "this is the first entry of each window": _pooled(lambda entries: entries[0]),
            "the maximum starts from 0, so a window of negative numbers gives 0": _pooled(
                lambda entries: np.maximum(entries.max(axis=0), 0)
            ),
            "reshape alone does not bring a window together: its rows lie apart in memory. Use "
            "(N, C, H', k, W', k)": _without_windows,
            "the maximum is taken over the windows, not within each: take axes 3 and 5": _over_windows,
            "the windows overlap: they move by k, not by 1": _moved,
        },
        hints=(
            "Rows and columns that do not fill a window are left out: cut x first.",
            "reshape(N, C, H', k, W', k) gives each window two axes of its own.",
            "The maximum over axes 3 and 5. Or np.maximum of k² slices x[:, :, i::k, j::k].",
        ),
    ),
    Exercise(
        reference=max_pool_backward,
        title="The backward pass of max pooling",
        difficulty=3,
        minutes=15,
        cases=_images(with_dy=True),
        expected=lambda case: [
            ops.maxpool_backward(dy, x, ops.maxpool(x, k), k) for dy, x, k in case.arguments
        ],
        suspects={
            "equal entries of a window each get all of dy: only the first should": _given(_is_largest),
            "equal entries share dy. That is a subgradient, too, but here the first gets all of it": _given(
                lambda entries: _is_largest(entries) / _is_largest(entries).sum(axis=0)
            ),
            "of equal entries the last gets dy: the first should": _given(_to_last),
            "every entry gets its share of dy, as in average pooling: only the largest gets it": _given(
                lambda entries: np.full_like(entries, 1 / len(entries))
            ),
            "every entry gets dy: only the largest should": _given(np.ones_like),
            "dx has the shape of the windows only: rows and columns outside of them get 0": _without_edges,
        },
        hints=(
            "Start from zeros of the shape of x. Which entry of a window does y depend on?",
            "window.argmax() gives the first of equal entries, as a number 0 … k² - 1.",
            "np.unravel_index turns this number into a row and a column of the window. One loop over "
            "np.ndindex(*dy.shape) is enough.",
        ),
        prelude="import numpy as np\n\n\n" + inspect.getsource(max_pool),
    ),
]
