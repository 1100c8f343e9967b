"""Wrong answers to the exercises of notebook 10 about a report that nobody has read."""

import inspect

from labkit.exercises.catalogue.nb10.case import referee

REFEREE = inspect.getsource(referee)


def _changed(old: str, new: str) -> str:
    """Return the reference with one mistake."""
    if REFEREE.count(old) != 1:
        raise ValueError(f"expected {old!r} once in the reference")
    return REFEREE.replace(old, new)


WRONG = [
    (
        "referee",
        "all ranks need about the same time per sample",
        _changed('f["compute_s"].sum(axis=1) / samples', 'f["compute_s"].sum(axis=1)'),
    ),
    (
        "referee",
        "the weighted mean of the gradients times -learning_rate",
        _changed('(weights @ f["bias_gradient"])', 'f["bias_gradient"].mean(axis=0)'),
    ),
    (
        "referee",
        "the mean of the local losses, weighted with the samples",
        _changed('weights @ f["local_loss"]', 'f["local_loss"].mean(axis=0)'),
    ),
    (
        "referee",
        "each accuracy is a whole count of that rank's samples",
        _changed("np.abs(counts - np.rint(counts)).max(axis=1) > 1e-6", "(counts % 1 != 0).any(axis=1)"),
    ),
    (
        "referee",
        "all ranks take the same time per epoch",
        _changed("total.min() < 0.98 * total.max()", "total.min() < total.max()"),
    ),
    (
        "referee",
        "the same number of updates per epoch",
        _changed(
            'first, other = f["updates_per_epoch"]',
            'first, other = f["global_loss"].tolist(), f["other_global_loss"].tolist()',
        ),
    ),
    (
        "referee",
        "this fault is on one rank",
        _changed(
            """    elif moved.any():
        kind, rank = "shards", int(moved.argmax())
""",
            """    elif samples.sum() != f["training_samples"]:
        kind = "shards"
""",
        ),
    ),
    (
        "referee",
        "this fault is on another rank",
        _changed("int(total.argmin())", "int(total.argmax())"),
    ),
    (
        "referee",
        "the times of one rank do not fit those of the others",
        _changed("total.min() < 0.98 * total.max()", "total.min() < 0.1 * total.max()"),
    ),
    (
        "referee",
        "this fault is not on one rank: return None",
        _changed('kind = "unweighted"', 'kind, rank = "unweighted", int(samples.argmin())'),
    ),
    (
        "referee",
        "is not one of the kinds",
        _changed('kind, rank = "none", None', 'kind, rank = "no fault", None'),
    ),
    (
        "referee",
        "expected two values: kind, rank",
        """
def referee(figures):
    return "none"
""",
    ),
]
