"""Backpropagation by hand: operations, models on one flat array, optimisers, the gradient check. No MPI."""

from labkit.nn import lr_schedules
from labkit.nn.gradcheck import (
    GradientCheck,
    check_gradient,
    check_gradients,
    gradient_report,
    relative_error,
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
from labkit.nn.sgd import SGD, AdamW, SteppedSGD, sgd_step
from labkit.nn.store import load_model, save_model
