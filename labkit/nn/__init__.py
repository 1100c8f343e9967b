"""Backpropagation by hand: pure op pairs, models on one flat array, SGD, the gradient check. No MPI."""

from labkit.nn import lr_schedules
from labkit.nn.gradcheck import (
    Check,
    check_gradient,
    check_gradients,
    numerical_gradient,
    relative_error,
    report,
)
from labkit.nn.model import Classifier, Model, Regression
from labkit.nn.models import (
    MODELS,
    lenet5,
    linear_regression,
    mlp,
    mnist_cnn,
    softmax_regression,
    vgg11,
)
from labkit.nn.sgd import SGD, sgd_step
from labkit.nn.store import load_model, save_model

__all__ = [
    "MODELS",
    "SGD",
    "Check",
    "Classifier",
    "Model",
    "Regression",
    "check_gradient",
    "check_gradients",
    "lenet5",
    "linear_regression",
    "load_model",
    "lr_schedules",
    "mlp",
    "mnist_cnn",
    "numerical_gradient",
    "relative_error",
    "report",
    "save_model",
    "sgd_step",
    "softmax_regression",
    "vgg11",
]
