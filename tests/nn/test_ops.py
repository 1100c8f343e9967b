"""The operations on images and the activations: by hand, and every gradient against central differences."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from labkit.nn import numerical_gradient, ops, relative_error
from labkit.nn.ops import im2col, winograd
from labkit.nn.workspace import Workspace

Pair = tuple[Callable[..., np.ndarray], Callable[..., tuple[np.ndarray, ...]], list[tuple[int, ...]]]

# forward(*inputs) → y, backward(dy, *inputs) → a gradient for each input, the shapes of the inputs
PAIRS: dict[str, Pair] = {
    "relu": (ops.relu, lambda dy, x: (ops.relu_backward(dy, ops.relu(x)),), [(3, 4)]),
    "tanh": (ops.tanh, lambda dy, x: (ops.tanh_backward(dy, ops.tanh(x)),), [(3, 4)]),
    "flatten": (ops.flatten, lambda dy, x: (ops.flatten_backward(dy, x.shape),), [(2, 3, 4)]),
    "avgpool": (
        lambda x: ops.avgpool(x, 2),
        lambda dy, x: (ops.avgpool_backward(dy, x.shape, 2),),
        [(2, 2, 5, 4)],
    ),
    "maxpool": (
        lambda x: ops.maxpool(x, 2),
        lambda dy, x: (ops.maxpool_backward(dy, x, ops.maxpool(x, 2), 2),),
        [(2, 2, 5, 4)],
    ),
    "batch_norm": (
        lambda x, gamma, beta: ops.batch_norm(x, gamma, beta, *ops.batch_statistics(x)),
        lambda dy, x, gamma, beta: ops.batch_norm_backward(dy, x, gamma, *ops.batch_statistics(x)),
        [(3, 2, 4, 3), (2,), (2,)],
    ),
    **{
        f"conv2d k{k} s{s} p{p}": (
            lambda x, w, b, s=s, p=p: ops.conv2d(x, w, b, s, p),
            lambda dy, x, w, b, s=s, p=p: ops.conv2d_backward(dy, x, w, s, p),
            [(2, 3, 6, 5), (k, k, 3, 4), (4,)],
        )
        for k, s, p in [(1, 1, 0), (3, 1, 1), (3, 2, 1), (5, 1, 0)]
    },
}


@pytest.mark.parametrize("name", PAIRS)
def test_a_backward_is_the_gradient(name: str) -> None:
    forward, backward, shapes = PAIRS[name]
    rng = np.random.default_rng(1)
    inputs = [rng.normal(size=shape) for shape in shapes]
    dy = rng.normal(size=forward(*inputs).shape)
    for by_hand, array in zip(backward(dy, *inputs), inputs, strict=True):
        differences = numerical_gradient(lambda: float((dy * forward(*inputs)).sum()), array)
        assert relative_error(by_hand, differences).max() < 1e-8


@pytest.mark.parametrize("name", PAIRS)
def test_float32_stays_float32(name: str) -> None:
    forward, backward, shapes = PAIRS[name]
    inputs = [np.ones(shape, np.float32) for shape in shapes]
    y = forward(*inputs)
    assert {array.dtype for array in (y, *backward(y, *inputs))} == {np.dtype(np.float32)}


def test_a_convolution_by_hand() -> None:
    x = np.arange(9.0).reshape(1, 1, 3, 3)
    w = np.array([[1.0, 0.0], [0.0, -1.0]]).reshape(2, 2, 1, 1)
    assert ops.conv2d(x, w, np.array([10.0])).tolist() == [[[[6, 6], [6, 6]]]]  # x[i, j] - x[i+1, j+1] + 10
    dx, dw, db = ops.conv2d_backward(np.ones((1, 1, 2, 2)), x, w)
    assert dx[0, 0].tolist() == [[1, 1, 0], [1, 0, -1], [0, -1, -1]]
    assert dw[:, :, 0, 0].tolist() == [[8, 12], [20, 24]] and db.tolist() == [4]


def test_pooling_by_hand() -> None:
    x = np.array([[1.0, 2, 9], [4, 4, 9], [9, 9, 9]]).reshape(1, 1, 3, 3)  # the edge fills no window
    assert ops.maxpool(x, 2).tolist() == [[[[4]]]] and ops.avgpool(x, 2).tolist() == [[[[2.75]]]]
    dy = np.array([[[[8.0]]]])
    # Of the two equal maxima, the first has all of it.
    assert ops.maxpool_backward(dy, x, ops.maxpool(x, 2), 2)[0, 0].tolist() == [
        [0, 0, 0],
        [8, 0, 0],
        [0, 0, 0],
    ]
    assert ops.avgpool_backward(dy, x.shape, 2)[0, 0].tolist() == [[2, 2, 0], [2, 2, 0], [0, 0, 0]]


def test_batch_norm_leaves_mean_0_and_variance_1() -> None:
    x = np.random.default_rng(0).normal(3, 5, (40, 2, 9, 9))
    y = ops.batch_norm(x, np.ones(2), np.zeros(2), *ops.batch_statistics(x))
    np.testing.assert_allclose(y.mean(axis=(0, 2, 3)), 0, atol=1e-12)
    np.testing.assert_allclose(y.var(axis=(0, 2, 3)), 1, rtol=1e-6)


def test_the_variance_survives_a_large_mean() -> None:
    """The mean of squares minus the square of the mean would be lost to rounding here."""
    x = (1e4 + np.random.default_rng(0).normal(size=(64, 1, 8, 8))).astype(np.float32)
    _, var = ops.batch_statistics(x)
    assert var[0] == pytest.approx(x.astype(float).var(), rel=1e-3)


# The clever convolutions against the clear one, in every memory layout that a layer before may leave.
LAYOUTS = {"NCHW": (0, 1, 2, 3), "NHWC": (0, 2, 3, 1), "CNHW": (1, 0, 2, 3)}


def laid_out(x: np.ndarray, layout: str) -> np.ndarray:
    axes = LAYOUTS[layout]
    return np.ascontiguousarray(x.transpose(axes)).transpose(np.argsort(axes))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    ("shape", "outputs", "window"),
    [
        ((3, 2, 6, 8), 4, ops.Window(3, 1, 1)),
        ((3, 2, 7, 5), 40, ops.Window(3, 2, 1)),
        ((2, 6, 5, 5), 40, ops.Window(5, 1, 0)),
        ((3, 16, 2, 2), 24, ops.Window(3, 1, 1)),
        ((70, 3, 32, 32), 5, ops.Window(3, 1, 1)),  # more than one part of the images
    ],
)
def test_clever_convolutions_equal_the_clear_one(
    layout: str, shape: tuple[int, ...], outputs: int, window: ops.Window
) -> None:
    rng = np.random.default_rng(4)
    kernel, stride, pad = window.k, window.stride, window.pad
    wb = rng.normal(size=(kernel**2 * shape[1] + 1, outputs))
    w, b = wb[:-1].reshape(kernel, kernel, shape[1], outputs), wb[-1]
    x = laid_out(rng.normal(size=shape), layout)
    expected = ops.conv2d(x, w, b, stride, pad)
    dy = laid_out(rng.normal(size=expected.shape), layout)
    dx, dw, db = ops.conv2d_backward(dy, x, w, stride, pad)

    work = Workspace()
    for _ in range(2):  # the second time with work arrays that are not fresh
        y, seen = im2col.forward(x, wb, window, work)
        assert relative_error(y, expected).max() < 1e-13
        dwb = np.empty_like(wb)
        im2col.backward_weights(dy, seen, dwb)
        assert relative_error(dwb[:-1].reshape(w.shape), dw).max() < 1e-13
        assert relative_error(dwb[-1], db).max() < 1e-13
        again = im2col.backward_input(dy, wb, shape, window, work)
        assert relative_error(again, dx).max() < 1e-13

        if winograd.fits(window, shape[1:]):
            y, v, u = winograd.forward(x, w, b, work)
            assert relative_error(y, expected).max() < 1e-13
            dw_, db_ = np.empty_like(w), np.empty_like(b)
            again = winograd.backward(dy, v, u, work, dw=dw_, db=db_)
            assert relative_error(again, dx).max() < 1e-13
            assert relative_error(dw_, dw).max() < 1e-13 and relative_error(db_, db).max() < 1e-13


def test_winograd_loses_little_in_float32() -> None:
    rng = np.random.default_rng(8)
    x, w = rng.normal(size=(4, 64, 8, 8)), rng.normal(size=(3, 3, 64, 64)) / 24
    y, _, _ = winograd.forward(
        x.astype(np.float32), w.astype(np.float32), np.zeros(64, np.float32), Workspace()
    )
    assert relative_error(y, ops.conv2d(x, w, np.zeros(64), pad=1)).max() < 1e-6
