"""Operations: values computed by hand, and every gradient against central differences."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from labkit.nn import check_gradient, ops, relative_error
from labkit.nn.ops import direct, im2col, winograd
from labkit.nn.ops.workspace import Workspace

Pair = tuple[Callable[..., np.ndarray], Callable[..., tuple[np.ndarray, ...]], list[tuple[int, ...]]]

# forward(*inputs) → y, backward(dy, *inputs) → one gradient per input, the shapes of the inputs
PAIRS: dict[str, Pair] = {
    "linear": (ops.linear, lambda dy, x, w, b: ops.linear_backward(dy, x, w), [(5, 4), (4, 3), (3,)]),
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
        for k, s, p in [(1, 1, 0), (3, 1, 1), (3, 2, 1), (5, 1, 0), (2, 3, 0)]
    },
}


@pytest.mark.parametrize("name", PAIRS)
def test_the_backward_function_agrees_with_differences_and_keeps_the_dtype(name: str) -> None:
    forward, backward, shapes = PAIRS[name]
    rng = np.random.default_rng(1)
    inputs = [rng.normal(size=shape) for shape in shapes]
    dy = rng.normal(size=forward(*inputs).shape)
    for gradient, array in zip(backward(dy, *inputs), inputs, strict=True):
        assert check_gradient(lambda: float((dy * forward(*inputs)).sum()), array, gradient).error < 1e-8
    narrow = [array.astype(np.float32) for array in inputs]
    y = forward(*narrow)
    assert {array.dtype for array in (y, *backward(y, *narrow))} == {np.dtype(np.float32)}


def test_losses_and_their_gradients() -> None:
    assert ops.mean_squared_error(np.array([[1.0], [4.0]]), np.array([[3.0], [4.0]])) == 2.0
    assert ops.softmax_cross_entropy(np.zeros((3, 4)), np.array([0, 1, 3])) == pytest.approx(np.log(4))
    rng = np.random.default_rng(11)
    for loss, backward, target in (
        (ops.mean_squared_error, ops.mean_squared_error_backward, rng.normal(size=(6, 4))),
        (ops.softmax_cross_entropy, ops.softmax_cross_entropy_backward, rng.integers(0, 4, 6)),
    ):
        out = rng.normal(size=(6, 4))
        by_hand = backward(out, target)
        assert check_gradient(lambda: loss(out, target), out, by_hand).error < 1e-8  # noqa: B023
        assert backward(out.astype(np.float32), target.astype(target.dtype.kind + "4")).dtype == np.float32


def test_softmax_is_stable_for_rows_of_different_magnitude() -> None:
    """Shifted by the maximum of the whole array, the second row would underflow."""
    logits = np.array([[1e4, 1e4 - 1], [-1e4, -1e4 - 1]], np.float32)
    with np.errstate(all="raise", under="ignore"):
        rows = ops.log_softmax(logits)
        loss = ops.softmax_cross_entropy(logits, np.array([0, 0]))
    np.testing.assert_allclose(rows[0], rows[1])
    assert loss == pytest.approx(np.log(1 + np.exp(-1)), rel=1e-6)


def test_convolution_of_a_small_image() -> None:
    x = np.arange(9.0).reshape(1, 1, 3, 3)
    w = np.array([[1.0, 0.0], [0.0, -1.0]]).reshape(2, 2, 1, 1)
    assert ops.conv2d(x, w, np.array([10.0])).tolist() == [[[[6, 6], [6, 6]]]]  # x[i, j] - x[i+1, j+1] + 10
    dx, dw, db = ops.conv2d_backward(np.ones((1, 1, 2, 2)), x, w)
    assert dx[0, 0].tolist() == [[1, 1, 0], [1, 0, -1], [0, -1, -1]]
    assert dw[:, :, 0, 0].tolist() == [[8, 12], [20, 24]] and db.tolist() == [4]


def test_pooling_of_a_small_image() -> None:
    x = np.array([[1.0, 2, 9], [4, 4, 9], [9, 9, 9]]).reshape(1, 1, 3, 3)  # the edge fills no window
    assert ops.maxpool(x, 2).tolist() == [[[[4]]]] and ops.avgpool(x, 2).tolist() == [[[[2.75]]]]
    dy = np.array([[[[8.0]]]])
    # The first of the two equal maxima gets all of dy.
    assert ops.maxpool_backward(dy, x, ops.maxpool(x, 2), 2)[0, 0].tolist() == [
        [0, 0, 0],
        [8, 0, 0],
        [0, 0, 0],
    ]
    assert ops.avgpool_backward(dy, x.shape, 2)[0, 0].tolist() == [[2, 2, 0], [2, 2, 0], [0, 0, 0]]


def test_the_variance_is_accurate_when_the_mean_is_large() -> None:
    """The mean of squares minus the square of the mean would be mostly rounding error here."""
    x = (1e4 + np.random.default_rng(0).normal(size=(64, 1, 8, 8))).astype(np.float32)
    _, var = ops.batch_statistics(x)
    assert var[0] == pytest.approx(x.astype(float).var(), rel=1e-3)


# The fast convolutions against the clear one, in every memory layout that a previous layer may produce.
LAYOUTS = {"NCHW": (0, 1, 2, 3), "NHWC": (0, 2, 3, 1), "HCWN": (2, 1, 3, 0), "HWNC": (2, 3, 0, 1)}


def in_layout(x: np.ndarray, layout: str) -> np.ndarray:
    axes = LAYOUTS[layout]
    return np.ascontiguousarray(x.transpose(axes)).transpose(np.argsort(axes))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    ("shape", "outputs", "geometry"),
    [
        ((3, 2, 6, 8), 4, ops.ConvGeometry(3, 1, 1)),
        ((3, 2, 7, 5), 40, ops.ConvGeometry(3, 2, 1)),
        ((2, 6, 5, 5), 40, ops.ConvGeometry(5, 1, 0)),
        ((3, 16, 2, 2), 24, ops.ConvGeometry(3, 1, 1)),
        ((3, 4, 1, 2), 6, ops.ConvGeometry(3, 1, 1)),
        ((70, 3, 32, 32), 5, ops.ConvGeometry(3, 1, 1)),  # more than one cache block
    ],
)
def test_the_fast_convolutions_equal_conv2d(
    layout: str, shape: tuple[int, ...], outputs: int, geometry: ops.ConvGeometry
) -> None:
    rng = np.random.default_rng(4)
    kernel, stride, pad = geometry.k, geometry.stride, geometry.pad
    wb = rng.normal(size=(kernel**2 * shape[1] + 1, outputs))
    w, b = wb[:-1].reshape(kernel, kernel, shape[1], outputs), wb[-1]
    x = in_layout(rng.normal(size=shape), layout)
    expected = ops.conv2d(x, w, b, stride, pad)
    dy = in_layout(rng.normal(size=expected.shape), layout)
    dx, dw, db = ops.conv2d_backward(dy, x, w, stride, pad)

    workspace = Workspace()
    for _ in range(2):  # the second time with a used workspace
        y, columns = im2col.forward(x, wb, geometry, workspace)
        assert relative_error(y, expected).max() < 1e-13
        dwb = np.empty_like(wb)
        im2col.backward_weights(dy, columns, dwb)
        assert relative_error(dwb[:-1].reshape(w.shape), dw).max() < 1e-13
        assert relative_error(dwb[-1], db).max() < 1e-13
        again = im2col.backward_input(dy, wb, shape, geometry, workspace)
        assert relative_error(again, dx).max() < 1e-13

        if winograd.fits(geometry, shape[1:]):
            y, v, u = winograd.forward(x, w, b, workspace)
            assert relative_error(y, expected).max() < 1e-13
            dw_, db_ = np.empty_like(w), np.empty_like(b)
            again = winograd.backward(dy, v, u, workspace, dw=dw_, db=db_)
            assert relative_error(again, dx).max() < 1e-13
            assert relative_error(dw_, dw).max() < 1e-13 and relative_error(db_, db).max() < 1e-13

        if direct.fits(geometry, shape[1:]):
            y, by_position = direct.forward(x, w, b, workspace)
            assert relative_error(y, expected).max() < 1e-13
            dw_, db_ = np.empty_like(w), np.empty_like(b)
            again = direct.backward(dy, by_position, w, workspace, dw=dw_, db=db_)
            assert relative_error(again, dx).max() < 1e-13
            assert relative_error(dw_, dw).max() < 1e-13 and relative_error(db_, db).max() < 1e-13


def test_the_parts_of_a_spread_array_are_contiguous_and_not_a_power_of_two_apart() -> None:
    x = Workspace().spread("x", (4, 2, 512), np.float32)
    assert x.shape == (4, 2, 512)
    assert x[1].flags.c_contiguous
    assert x.strides[0] > x[0].nbytes


def test_winograd_is_accurate_in_float32() -> None:
    rng = np.random.default_rng(8)
    x, w = rng.normal(size=(4, 64, 8, 8)), rng.normal(size=(3, 3, 64, 64)) / 24
    y, _, _ = winograd.forward(
        x.astype(np.float32), w.astype(np.float32), np.zeros(64, np.float32), Workspace()
    )
    assert relative_error(y, ops.conv2d(x, w, np.zeros(64), pad=1)).max() < 1e-6


@pytest.mark.parametrize(("shape", "k", "stride", "pad"), [((2, 3, 7, 6), 3, 2, 1), ((1, 1, 4, 5), 2, 1, 0)])
def test_columns_of_images_are_their_windows(shape: tuple[int, ...], k: int, stride: int, pad: int) -> None:
    x = np.arange(1, 1 + np.prod(shape), dtype=np.float32).reshape(shape)
    columns = im2col.columns_of(x, k, stride, pad)
    assert columns.dtype == x.dtype
    assert columns.flags.c_contiguous
    padded = np.pad(x, ((0, 0), (0, 0), (pad, pad), (pad, pad)))
    height, width = ((side - k) // stride + 1 for side in padded.shape[2:])
    for column, (i, j, n) in zip(columns.T, np.ndindex(height, width, shape[0]), strict=True):
        window = padded[n, :, stride * i : stride * i + k, stride * j : stride * j + k]
        np.testing.assert_array_equal(column, window.transpose(1, 2, 0).ravel())
