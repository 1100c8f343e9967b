"""The time of a training step on one process (forward, loss, backward, update), with lower bounds."""

from __future__ import annotations

import resource
import sys
from collections.abc import Callable, Sequence

import numpy as np

from labkit.bench.pytorch import LR, MOMENTUM, WEIGHT_DECAY, is_installed, pytorch_step
from labkit.bench.rows import Row, interleaved, rows_of
from labkit.children import run_child
from labkit.nn import MODELS, SGD, Model
from labkit.nn.image_layers import Conv2D
from labkit.nn.layers import Dense
from labkit.nn.ops import direct
from labkit.units import MIB

Product = tuple[int, int, int, int]  # number of products, rows, inner, columns


def batch_for(model: Model, batch: int) -> tuple[np.ndarray, np.ndarray]:
    """Return random samples and labels that fit the model. Shapes: (batch, …) float32, (batch,) int64."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((batch, *model.input_shape), np.float32)
    return x, rng.integers(0, model.outputs, batch)


def labkit_step(name: str, batch: int) -> Callable[[], float]:
    """Return a function that takes one training step and returns its loss."""
    model = MODELS[name]()
    sgd = SGD(model.params, MOMENTUM, WEIGHT_DECAY)
    x, y = batch_for(model, batch)

    def step() -> float:
        loss = model.loss_and_gradient(x, y)
        sgd.step(model.grads, LR)
        return loss

    return step


def products(model: Model, batch: int, as_computed: bool) -> list[Product]:
    """Return the matrix products of one step: forward, weight gradient and, except in the first layer, dx.

    A convolution counts with the products of im2col, which every direct method has to make. With
    `as_computed`, it counts with those that the layer computes: fewer if it uses Winograd's method or leaves
    out the products with padding.
    """
    found: list[Product] = []
    for layer in model.layers:
        if isinstance(layer, Dense):
            forward = [(1, batch, layer.input_shape[0], layer.outputs)]
        elif isinstance(layer, Conv2D):
            forward = convolution_products(layer, batch, as_computed)
        else:
            continue
        for many, rows, inner, outputs in forward:
            found += [(many, rows, inner, outputs), (many, inner, rows, outputs)]
            if not layer.first:
                found.append((many, rows, outputs, inner))
    return found


def convolution_products(layer: Conv2D, batch: int, as_computed: bool) -> list[Product]:
    """Return the products of a convolution's forward pass, as `products` counts them."""
    channels, height, width = layer.input_shape
    if as_computed and layer.direct:
        return [
            (1, batch * len(range(height)[rows]) * len(range(width)[columns]), channels, layer.outputs)
            for _, (rows, columns), _ in direct.overlaps(height, width)
        ]
    positions = batch * int(np.prod(layer.geometry.output_size(layer.input_shape)))
    if as_computed and layer.winograd:
        return [(16, positions // 4, channels, layer.outputs)]
    return [(1, positions, layer.geometry.k**2 * channels, layer.outputs)]


def floor(model: Model, batch: int, as_computed: bool) -> Callable[[], None]:
    """Return a function that computes these products and nothing else: a lower bound of the step's time."""
    listed = products(model, batch, as_computed)
    a = np.ones(max(many * rows * inner for many, rows, inner, _ in listed), np.float32)
    b = np.ones(max(many * inner * columns for many, _, inner, columns in listed), np.float32)
    c = np.ones(max(many * rows * columns for many, rows, _, columns in listed), np.float32)

    def run() -> None:
        for many, rows, inner, columns in listed:
            left, right = (many, rows, inner), (many, inner, columns)
            out = c[: many * rows * columns].reshape(many, rows, columns)
            np.matmul(a[: np.prod(left)].reshape(left), b[: np.prod(right)].reshape(right), out=out)

    return run


PEAK_DEADLINE_S = 300.0  # three steps of VGG-11 take seconds
ROUNDS = {"vgg11": 9, "lenet5": 101}  # a step of LeNet-5 takes milliseconds, so it needs more of them


def compare(models: Sequence[str], batches: Sequence[int], threads: int) -> list[Row]:
    """Return the rows of all models at all batch sizes: of their times and, with PyTorch, peak memory."""
    cases = [(name, batch) for name in models for batch in batches]
    rows = [row for name, batch in cases for row in measure(name, batch, threads)]
    if is_installed():
        for name, batch in cases:
            peaks = {side: peak(side, name, batch) for side in ("labkit", "pytorch")}
            rows += rows_of(f"{name}/b{batch}/peak", peaks, "MiB")
    return rows


def measure(name: str, batch: int, threads: int) -> list[Row]:
    """Return the rows of one model: against the products of im2col, its own products, and PyTorch."""
    model = MODELS[name]()
    functions: dict[str, Callable[[], object]] = {
        "labkit": labkit_step(name, batch),
        "sgemm-floor": floor(model, batch, as_computed=False),
        "own-sgemm": floor(model, batch, as_computed=True),
    }
    if is_installed():
        functions["pytorch"] = pytorch_step(name, batch, threads)
    return rows_of(f"{name}/b{batch}/t{threads}", interleaved(functions, ROUNDS[name]), "ms")


def peak(side: str, name: str, batch: int) -> float:
    """Return the peak memory (MiB) of a fresh process that takes a few steps of a model.

    `side` is "labkit" or "pytorch". Raise ChildError if the process fails or does not end.
    """
    command = [sys.executable, "-P", "-m", __name__, side, name, str(batch)]
    return float(run_child(command, deadline_s=PEAK_DEADLINE_S).stdout)


def print_peak(side: str, name: str, batch: int) -> None:
    """Take a few steps in this process, and print its peak memory (MiB)."""
    step = labkit_step(name, batch) if side == "labkit" else pytorch_step(name, batch, threads=1)
    for _ in range(3):  # the first steps still allocate
        step()
    unit = 1 if sys.platform == "darwin" else 1024  # bytes, of ru_maxrss
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / MIB)


if __name__ == "__main__":
    print_peak(sys.argv[1], sys.argv[2], int(sys.argv[3]))
