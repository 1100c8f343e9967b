"""Models agree with PyTorch's autograd, where PyTorch is installed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from labkit.nn import Model, lenet5, mlp, mnist_cnn, vgg11

torch = pytest.importorskip("torch")
F = torch.nn.functional

LIMITS = {np.float32: 1e-4, np.float64: 1e-9}  # relative to each array's largest entry


@pytest.fixture(params=LIMITS, ids=lambda dtype: dtype.__name__, name="dtype")
def _dtype(request: pytest.FixtureRequest) -> type[np.floating]:
    return request.param


def assert_close(ours: np.ndarray, theirs: Any, name: str, scale: float = 0.0) -> None:
    theirs = theirs.detach().numpy()
    assert ours.shape == theirs.shape and ours.dtype == theirs.dtype, name
    scale = max(scale, float(np.abs(theirs).max()))
    error = float(np.abs(ours - theirs).max()) / scale
    assert error < LIMITS[ours.dtype.type], f"{name}: {error:.1e}"


def tensor(array: np.ndarray) -> Any:
    return torch.tensor(np.ascontiguousarray(array), requires_grad=np.issubdtype(array.dtype, np.floating))


def kernel(w: Any) -> Any:
    """Return the kernel in PyTorch's order: outputs, inputs, height, width."""
    return w.permute(3, 2, 0, 1)


# PyTorch's function for each type of layer but Dense, Conv2D and BatchNorm.
THEIRS: dict[str, Callable[..., Any]] = {
    "ReLU": torch.relu,
    "Tanh": torch.tanh,
    "Flatten": lambda x: x.flatten(1),
    "AvgPool": lambda x: F.avg_pool2d(x, 2),
    "MaxPool": lambda x: F.max_pool2d(x, 2),
}


def theirs_of(model: Model) -> Callable[[Any, dict[str, Any]], Any]:
    """Return the model's forward pass in PyTorch's functions, with VGG's stages in report C's order."""

    def forward(x: Any, p: dict[str, Any]) -> Any:
        for layer in model.layers:
            layer_type, views = type(layer).__name__, {k: p[f"{layer.name}.{k}"] for k in layer.parameters()}
            if layer_type == "Dense":
                x = x @ views["W"] + views["b"]
            elif layer_type == "Conv2D":
                x = F.conv2d(x, kernel(views["W"]), views["b"], layer.geometry.stride, layer.geometry.pad)
            elif layer_type == "BatchNorm":
                x = F.batch_norm(x, None, None, views["gamma"], views["beta"], training=True)
                x = torch.relu(x)  # before pooling; our ReLU after pooling then changes nothing
            else:
                x = THEIRS[layer_type](x)
        return x

    return forward


@pytest.mark.parametrize("make", [mlp, lenet5, mnist_cnn, vgg11])
def test_a_model_agrees_with_autograd(make: Callable[..., Model], dtype: type[np.floating]) -> None:
    model = make(dtype=dtype, seed=2)
    rng = np.random.default_rng(7)
    # Biases of 0 and scales of 1 would hide mistakes.
    for view in model.named_parameters().values():
        if view.ndim == 1:
            view[...] = view + rng.normal(0, 0.1, view.shape)
    x = rng.normal(size=(6, *model.input_shape)).astype(dtype)
    labels = rng.integers(0, 10, 6)
    parameters = {name: tensor(view) for name, view in model.named_parameters().items()}
    out = theirs_of(model)(torch.tensor(x), parameters)
    loss = F.cross_entropy(out, torch.tensor(labels))
    loss.backward()

    assert_close(model.forward(x, training=True), out, "output")
    assert model.loss_and_gradient(x, labels) == pytest.approx(loss.item(), rel=LIMITS[dtype])
    gradients = model.named_gradients()
    for name, ours in gradients.items():
        # Before batch norm, a bias has a zero gradient, with rounding errors on the scale of the weights'.
        norm = name.replace("conv", "norm").removesuffix(".b") + ".gamma"
        scale = float(np.abs(gradients[name[:-1] + "W"]).max()) if norm in gradients else 0.0
        assert_close(ours, parameters[name].grad, name, scale)


def test_running_statistics_agree_with_pytorch(dtype: type[np.floating]) -> None:
    model = vgg11(dtype=dtype)
    mean, var = torch.zeros(64, dtype=torch.tensor(model.params).dtype), torch.ones(64).double()
    var = var.to(mean.dtype)
    for seed in (0, 1):
        x = np.random.default_rng(seed).normal(size=(2, 3, 32, 32)).astype(dtype)
        p = model.named_parameters()
        y = F.conv2d(
            torch.tensor(x), kernel(torch.tensor(p["conv1.W"])), torch.tensor(p["conv1.b"]), padding=1
        )
        F.batch_norm(y, mean, var, training=True)
        model.forward(x, training=True)
    assert_close(model.named_buffers()["norm1.mean"], mean, "mean", 0.1)
    assert_close(model.named_buffers()["norm1.var"], var, "var")
