"""Operations as pairs of pure functions: a forward function and its backward function.

A backward function takes dy, the gradient of the loss with respect to the forward function's output, and
returns the gradients with respect to its inputs. N is the batch size; images are (N, C, H, W): samples,
channels, height, width. All functions keep the dtype, float32 or float64.
"""

from labkit.nn.ops.basic import (
    flatten,
    flatten_backward,
    linear,
    linear_backward,
    log_softmax,
    mean_squared_error,
    mean_squared_error_backward,
    relu,
    relu_backward,
    softmax_cross_entropy,
    softmax_cross_entropy_backward,
    tanh,
    tanh_backward,
)
from labkit.nn.ops.convolution import ConvGeometry, conv2d, conv2d_backward
from labkit.nn.ops.normalisation import batch_norm, batch_norm_backward, batch_statistics
from labkit.nn.ops.pooling import avgpool, avgpool_backward, maxpool, maxpool_backward
