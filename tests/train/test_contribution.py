"""Contributions, computed from the gradients that report A prints."""

from __future__ import annotations

import math

import numpy as np

from labkit.train.callbacks import contribution

GRADIENTS_OF_B = np.array([-0.3584, -0.0010, 2.1341, 0.2374])  # of ranks 0 … 3, in epoch 1
PRINTED = ["17.81", "0.05", "106.06", "11.80"]  # per cent


def test_the_printed_contributions_follow_from_the_printed_gradients() -> None:
    total = GRADIENTS_OF_B.sum()
    assert [f"{100 * contribution(gradient, total):.2f}" for gradient in GRADIENTS_OF_B] == PRINTED


def test_contributions_exceed_one_if_ranks_disagree() -> None:
    agreeing, opposed = np.array([[1.0, 0], [3, 0]]), np.array([[1.0, 0], [-3, 0]])
    for gradients, sum_of_parts in ((agreeing, 1), (opposed, 2)):
        assert sum(contribution(g, gradients.sum(axis=0)) for g in gradients) == sum_of_parts
    assert math.isnan(contribution(np.ones(2), np.zeros(2)))
