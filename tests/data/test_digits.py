"""The digits are those of scikit-learn, but loading them does not import it."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
from sklearn.datasets import load_digits

from labkit.data import load


def test_digits_equal_those_of_scikit_learn() -> None:
    x, y = load_digits(return_X_y=True)
    test = np.arange(len(x)) % 5 == 4
    ours = load("digits")
    assert np.array_equal(ours.x_train * 16, x[~test])
    assert np.array_equal(ours.x_test * 16, x[test])
    assert np.array_equal(ours.y_train, y[~test])
    assert np.array_equal(ours.y_test, y[test])


def test_loading_digits_does_not_import_scikit_learn() -> None:
    program = "import sys; from labkit.data import load; load('digits'); sys.exit('sklearn' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
