"""Backpropagation by hand: pure op pairs, models on one flat array, SGD, the gradient check. No MPI."""

from labkit.nn.gradcheck import Check, check_model, numerical_gradient, relative_error
from labkit.nn.models import MODELS, Model, linear_regression, softmax_regression
from labkit.nn.sgd import sgd_step

__all__ = [
    "MODELS",
    "Check",
    "Model",
    "check_model",
    "linear_regression",
    "numerical_gradient",
    "relative_error",
    "sgd_step",
    "softmax_regression",
]
