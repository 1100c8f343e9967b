"""Wrong answers to the exercises of notebook 01, and the finding that each must get."""

WRONG = [
    # (function, words of the finding, the cell as a student may write it)
    (
        "linear_backward",
        "sum over the samples",
        """
def linear_backward(dy, x, w):
    return dy @ w.T, x.T @ dy, dy.sum(axis=1)
""",
    ),
]
