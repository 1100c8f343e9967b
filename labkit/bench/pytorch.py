"""PyTorch's own training step, if PyTorch is installed: the same models and the same optimizer."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

LR, MOMENTUM, WEIGHT_DECAY = 0.01, 0.9, 1e-4  # as in report C; labkit's step has the same


def is_installed() -> bool:
    """Return whether PyTorch is installed, without importing it."""
    return find_spec("torch") is not None


def has_fsdp2() -> bool:
    """Return whether this PyTorch, which must be installed, is 2.6 or newer."""
    from torch.distributed import fsdp  # noqa: PLC0415

    return hasattr(fsdp, "fully_shard")


def pytorch_model(name: str) -> tuple[Any, tuple[int, ...]]:
    """Return the model of that name as a torch.nn.Module, and the shape of one sample."""
    from torch import nn  # noqa: PLC0415

    if name == "mlp":
        return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)), (64,)
    if name == "lenet5":
        layers = [nn.Conv2d(1, 6, 5), nn.Tanh(), nn.AvgPool2d(2)]
        layers += [nn.Conv2d(6, 16, 5), nn.Tanh(), nn.AvgPool2d(2)]
        layers += [nn.Conv2d(16, 120, 5), nn.Tanh(), nn.Flatten()]
        layers += [nn.Linear(120, 84), nn.Tanh(), nn.Linear(84, 10)]
        return nn.Sequential(*layers), (1, 32, 32)
    if name == "vgg11":
        layers, channels = [], 3
        outputs, pooled = (64, 128, 256, 256, 512, 512, 512, 512), (1, 1, 0, 1, 0, 1, 0, 1)
        for maps, is_pooled in zip(outputs, pooled, strict=True):
            layers += [nn.Conv2d(channels, maps, 3, padding=1), nn.BatchNorm2d(maps), nn.ReLU(inplace=True)]
            layers += [nn.MaxPool2d(2)] if is_pooled else []
            channels = maps
        return nn.Sequential(*layers, nn.Flatten(), nn.Linear(512, 10)), (3, 32, 32)
    raise ValueError(f"no PyTorch model {name!r}: there are mlp, lenet5 and vgg11")


def pytorch_step(name: str, batch: int, threads: int) -> Callable[[], float]:
    """Return a function that takes one training step, written as PyTorch users do, and returns its loss."""
    import torch  # noqa: PLC0415

    torch.set_num_threads(threads)
    model, shape = pytorch_model(name)
    sgd = torch.optim.SGD(model.parameters(), lr=LR, momentum=MOMENTUM, weight_decay=WEIGHT_DECAY)
    x, y = torch.randn(batch, *shape), torch.randint(0, 10, (batch,))

    def step() -> float:
        sgd.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        sgd.step()
        return float(loss.detach())

    return step
