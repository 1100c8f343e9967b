"""The exercises of notebook 04: averaging gradients, a fitted cost model, robust means, compression."""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, log2
from typing import Any

import numpy as np

from labkit.exercises.exercise import Case, Code, Exercise, Outcome
from labkit.exercises.wraps import COLLECTIVES, SUMS
from mpiwatch.report import counted


def cases() -> Sequence[Case]:
    cases = []
    for p, n, dtype, first in (
        (1, 3, np.float64, 1),
        (2, 1, np.float64, 1),
        (2, 3, np.float32, 1),
        (3, 5, np.float32, 1),
        (3, 4, np.float64, 0),
        (4, 1, np.float32, 1),
        (4, 1001, np.float64, 1),
    ):
        rng = np.random.default_rng([p, n])
        samples = np.arange(first, first + p)
        gradients = rng.integers(1, 9, (p, n)) + 10.0 * np.arange(p)[:, None] + 0.25
        gradients[samples == 0] = 0
        label = f"{counted(p, 'rank')}, {counted(n, 'value')}, {dtype.__name__}"
        label += "" if first else ", no samples on rank 0"
        weights = samples / samples.sum()
        cases.append(Case(label, tuple((gradients[r].astype(dtype), float(weights[r])) for r in range(p))))
    return cases


def inputs(case: Case) -> tuple[np.ndarray, np.ndarray]:
    """Return all gradients, (p, n), and the weights, (p, 1), in float64."""
    gradients, weights = zip(*case.arguments, strict=True)
    return np.array(gradients, float), np.array(weights)[:, None]


def on_all(case: Case, values: np.ndarray) -> list[np.ndarray]:
    """Return `values`, (n,) or one row for each rank, in the dtype of the gradients, for each rank."""
    dtype = case.arguments[0][0].dtype
    return list(np.broadcast_to(values, (case.ranks, values.shape[-1])).astype(dtype))


def mean(case: Case) -> Sequence[Any]:
    gradients, weights = inputs(case)
    return on_all(case, np.average(gradients, axis=0, weights=weights[:, 0]))


def tables(outcomes: Sequence[Outcome]) -> tuple[np.ndarray, np.ndarray]:
    """Return the bytes and messages from the rank of the row to the rank of the column. Shapes: (p, p)."""
    return np.array([one.sent for one in outcomes]), np.array([one.messages for one in outcomes])


UNWEIGHTED: dict[str, Code] = {  # in each of the three references
    "this is the mean of the ranks' means: multiply each gradient by its rank's weight instead of dividing "
    "by the number of ranks": {"gradient *= weight": "gradient /= comm.size"},
    "this is the plain sum of the gradients: multiply each by its rank's weight first": {
        "    gradient *= weight\n": ""
    },
    "this is the weighted mean divided by the number of ranks: the weights already add up to 1": {
        "gradient *= weight": "gradient *= weight / comm.size"
    },
    "`gradient` is as it was before the call: write the mean into it, as in `gradient[:] = …`": {
        "gradient *= weight": "gradient = (gradient * weight).astype(gradient.dtype)"
    },
    "`gradient` holds only this rank's part, gradient · weight: the other ranks' parts are missing": {
        "gradient *= weight": "gradient *= weight\n    gradient = gradient.copy()"
    },
}
WEIGHTED_LAST = "each rank has multiplied the sum by its own weight: multiply before adding up"


# Exercise 4.1


def average_by_allgather(comm, gradient, weight):
    """Leave the weighted mean of all ranks' gradients in `gradient`, on every rank.

    `weight` is this rank's fraction of all samples. Shape: gradient (n,), the same n on every rank.
    """
    gradient *= weight
    rows = np.empty((comm.size, gradient.size), gradient.dtype)
    comm.Allgather(gradient, rows)
    gradient[:] = rows.sum(axis=0)


AVERAGE_BY_ALLGATHER = Exercise(
    reference=average_by_allgather,
    title="Average by all-gather",
    difficulty=2,
    minutes=10,
    cases=cases,
    expected=mean,
    mistakes={
        **UNWEIGHTED,
        WEIGHTED_LAST: {"    gradient *= weight\n": "", "sum(axis=0)": "sum(axis=0) * weight"},
        "… Allreduce": """
def average_by_allgather(comm, gradient, weight):
    from mpi4py import MPI

    gradient *= weight
    comm.Allreduce(MPI.IN_PLACE, gradient)
""",
    },
    hints=(
        "Multiply your own gradient by your own weight first. What remains is a sum over the ranks.",
        "`comm.Allgather(gradient, rows)` fills `rows`, shape (comm.size, n): one row for each rank. "
        "Make `rows` with the dtype of `gradient`.",
        "Write the sum over the rows into `gradient[:]`. A plain `gradient = …` changes nothing outside.",
    ),
    on_ranks=True,
    result_in=0,
    forbidden=SUMS,
)


# Exercise 4.2


def average_by_root(comm, gradient, weight):
    """Leave the weighted mean of all ranks' gradients in `gradient`, on every rank; rank 0 adds up.

    `weight` is this rank's fraction of all samples. Shape: gradient (n,), the same n on every rank.
    """
    gradient *= weight
    if comm.rank == 0:
        received = np.empty_like(gradient)
        for other in range(1, comm.size):
            comm.Recv(received, source=other)
            gradient += received
        for other in range(1, comm.size):
            comm.Send(gradient, dest=other)
    else:
        comm.Send(gradient, dest=0)
        comm.Recv(gradient, source=0)


def look_root(case: Case, outcomes: Sequence[Outcome]) -> str | None:
    sent, messages = tables(outcomes)
    nbytes = case.arguments[0][0].nbytes
    for rank in range(1, case.ranks):
        others = [dest for dest in range(1, case.ranks) if messages[rank, dest]]
        if others:
            return f"rank {rank} sends to rank {others[0]}: every message goes to rank 0 or comes from it"
        for here, there in (rank, 0), (0, rank):
            if sent[here, there] != nbytes:
                return (
                    f"rank {here} sends {sent[here, there]} bytes to rank {there}, expected one gradient "
                    f"({nbytes} bytes)"
                )
    return None


AVERAGE_BY_ROOT = Exercise(
    reference=average_by_root,
    title="Average through a root",
    difficulty=2,
    minutes=10,
    cases=cases,
    expected=mean,
    mistakes={
        **UNWEIGHTED,
        "only rank 0 holds the mean: send it back to every other rank": {
            "        for other in range(1, comm.size):\n            comm.Send(gradient, dest=other)\n": "",
            "        comm.Recv(gradient, source=0)\n": "",
        },
        "a rank gets the sum before all gradients are in it: receive from all ranks first, then send": {
            "        for other in range(1, comm.size):\n            comm.Send": "            comm.Send"
        },
        "rank 0's own gradient is not multiplied by its weight": {
            "    gradient *= weight\n": "",
            "    else:": "    else:\n        gradient *= weight",
        },
        "only the gradient of the last rank is left: receive into another array and add it": {
            "Recv(received,": "Recv(gradient,",
            "            gradient += received\n": "",
        },
        WEIGHTED_LAST: {
            "    gradient *= weight\n": "",
            "source=0)": "source=0)\n    gradient *= weight",
        },
        "… every message goes to rank 0": """
def average_by_root(comm, gradient, weight):
    gradient *= weight
    own = gradient.copy()
    for first in range(comm.size):
        for other in range(comm.size):
            if first == comm.rank != other:
                comm.Send(own, dest=other)
            elif other == comm.rank != first:
                received = np.empty_like(own)
                comm.Recv(received, source=first)
                gradient += received
""",
        "… wait for each other in a circle": {
            "        comm.Send(gradient, dest=0)\n        comm.Recv(gradient, source=0)": (
                "        comm.Recv(gradient, source=0)\n        comm.Send(gradient, dest=0)"
            )
        },
        "… Bcast": {
            "        for other in range(1, comm.size):\n            comm.Send(gradient, dest=other)\n": "",
            "        comm.Recv(gradient, source=0)": "    comm.Bcast(gradient, root=0)",
        },
    },
    look=look_root,
    hints=(
        "Rank 0 does one thing and all other ranks do another: begin with `if comm.rank == 0:`.",
        "Rank 0 receives each gradient into a second array and adds it to its own. The other ranks send, "
        "then wait for the mean in `comm.Recv`.",
        "Rank 0 needs two loops over the other ranks: first receive from all, then send to all.",
    ),
    on_ranks=True,
    result_in=0,
    forbidden=COLLECTIVES,
)


# Exercise 4.3


def average_by_tree(comm, gradient, weight):
    """Leave the weighted mean of all ranks' gradients in `gradient`, on every rank, along a binomial tree.

    `weight` is this rank's fraction of all samples. Shape: gradient (n,), the same n on every rank.
    """
    gradient *= weight
    received = np.empty_like(gradient)
    distances = [1 << k for k in range((comm.size - 1).bit_length())]
    for distance in distances:
        if comm.rank % (2 * distance) == distance:
            comm.Send(gradient, dest=comm.rank - distance)
        elif comm.rank % (2 * distance) == 0 and comm.rank + distance < comm.size:
            comm.Recv(received, source=comm.rank + distance)
            gradient += received
    for distance in reversed(distances):
        if comm.rank % (2 * distance) == distance:
            comm.Recv(gradient, source=comm.rank - distance)
        elif comm.rank % (2 * distance) == 0 and comm.rank + distance < comm.size:
            comm.Send(gradient, dest=comm.rank + distance)


def look_tree(case: Case, outcomes: Sequence[Outcome]) -> str | None:
    sent, messages = tables(outcomes)
    p, nbytes = case.ranks, case.arguments[0][0].nbytes
    levels = ceil(log2(p)) if p > 1 else 0
    for does, there in ("receives from", messages[1:, 0]), ("sends to", messages[0, 1:]):
        if (there > 0).sum() > levels:
            return (
                f"rank 0 {does} {(there > 0).sum()} ranks, and in a binomial tree of {p} ranks {does} "
                f"{levels}: give other ranks a part of the work"
            )
    if sent.sum() != 2 * (p - 1) * nbytes:
        return (
            f"the ranks send {sent.sum()} bytes in all. A tree needs {2 * (p - 1)} messages of one gradient "
            f"({2 * (p - 1) * nbytes} bytes): each rank but rank 0 sends its sum once and receives once"
        )
    return None


AVERAGE_BY_TREE = Exercise(
    reference=average_by_tree,
    title="Average along a tree, for any number of ranks",
    difficulty=3,
    minutes=20,
    cases=cases,
    expected=mean,
    mistakes={
        "the mean does not come back down the tree: each rank holds only the sum of its own branch": {
            "reversed(distances)": "()"
        },
        "on the way down, a rank passes on its sum before it has the mean: go from the largest distance "
        "to the smallest": {"reversed(distances)": "distances"},
        **UNWEIGHTED,
        WEIGHTED_LAST: {
            "    gradient *= weight\n": "",
            "dest=comm.rank + distance)": "dest=comm.rank + distance)\n    gradient *= weight",
        },
        "… rank 0 receives from 3 ranks": """
def average_by_tree(comm, gradient, weight):
    gradient *= weight
    if comm.rank == 0:
        received = np.empty_like(gradient)
        for other in range(1, comm.size):
            comm.Recv(received, source=other)
            gradient += received
        for other in range(1, comm.size):
            comm.Send(gradient, dest=other)
    else:
        comm.Send(gradient, dest=0)
        comm.Recv(gradient, source=0)
""",
        "… source=comm.rank + distance": {" and comm.rank + distance < comm.size": ""},  # for powers of two
        "… rank 0 sends to 3 ranks": """
def average_by_tree(comm, gradient, weight):
    gradient *= weight
    received = np.empty_like(gradient)
    distance = 1
    while distance < comm.size:
        if comm.rank % (2 * distance) == distance:
            comm.Send(gradient, dest=comm.rank - distance)
        elif comm.rank % (2 * distance) == 0 and comm.rank + distance < comm.size:
            comm.Recv(received, source=comm.rank + distance)
            gradient += received
        distance *= 2
    if comm.rank == 0:
        for other in range(1, comm.size):
            comm.Send(gradient, dest=other)
    else:
        comm.Recv(gradient, source=0)
""",
        "… calls `comm.Allreduce_init`": """
def average_by_tree(comm, gradient, weight):
    gradient *= weight
    total = np.empty_like(gradient)
    request = comm.Allreduce_init(gradient, total)
    request.Start()
    request.Wait()
    request.Free()
    gradient[:] = total
""",
    },
    look=look_tree,
    hints=(
        "Go through the distances 1, 2, 4, … below p. At each distance, every second rank of those that "
        "still take part sends its sum to the rank `distance` below it, and is done.",
        "A rank with `rank % (2 * distance) == distance` sends to `rank - distance`. A rank with "
        "`rank % (2 * distance) == 0` receives from `rank + distance`, if there is such a rank.",
        "The way down has the same pairs with swapped roles, from the largest distance to the smallest.",
    ),
    on_ranks=True,
    result_in=0,
    forbidden=COLLECTIVES,
)


# Exercise 4.4


def fit_cost(nbytes, seconds):
    """Return (alpha, beta) with the smallest sum of squared relative errors of alpha + beta * nbytes.

    Shapes: nbytes (m,), in bytes; seconds (m,), measured; alpha in seconds, beta in seconds per byte.
    """
    terms = np.stack([1 / seconds, nbytes / seconds], axis=1)
    alpha, beta = np.linalg.lstsq(terms, np.ones(len(seconds)))[0]
    return alpha, beta


def fit_cases() -> Sequence[Case]:
    cases = []
    for m, alpha, beta, noise in (2, 1e-5, 1e-9, 0), (4, 2e-6, 5e-10, 0), (12, 4e-5, 8e-9, 0.2):
        nbytes = np.array([8.0 * 8**k for k in range(m)]) if m < 12 else np.geomspace(8, 1 << 24, m).round()
        seconds = alpha + beta * nbytes
        seconds *= np.exp(noise * np.random.default_rng(m).normal(size=m))
        spread = "with noise" if noise else "on one line"
        cases.append(Case(f"{m} measurements {spread}, up to {nbytes[-1]:.0f} bytes", ((nbytes, seconds),)))
    return cases


def fit(case: Case, power: float) -> tuple[float, float]:
    """Return alpha and beta of least squares with errors divided by seconds ** power, by Cramer's rule."""
    ((nbytes, seconds),) = case.arguments
    weights = seconds ** (-2 * power)
    one, first, second = weights.sum(), weights @ nbytes, weights @ nbytes**2
    time, product = weights @ seconds, weights @ (nbytes * seconds)
    determinant = one * second - first**2
    return (time * second - first * product) / determinant, (one * product - first * time) / determinant


FIT_COST = Exercise(
    reference=fit_cost,
    title="Fit latency and bandwidth to your measurements",
    difficulty=3,
    minutes=15,
    cases=fit_cases,
    expected=lambda case: [fit(case, 1)],
    mistakes={
        "the pair is in the wrong order: return alpha first, then beta": {"alpha, beta =": "beta, alpha ="},
        "these are the smallest absolute errors, so the largest sizes decide alone: divide each equation "
        "by its measured time": """
def fit_cost(nbytes, seconds):
    beta, alpha = np.polyfit(nbytes, seconds, 1)
    return alpha, beta
""",
        "the errors are divided by the square of the time, so the smallest sizes decide alone: divide by "
        "the time (np.polyfit squares its weights itself)": """
def fit_cost(nbytes, seconds):
    beta, alpha = np.polyfit(nbytes, seconds, 1, w=1 / seconds**2)
    return alpha, beta
""",
        "the errors are divided by the square root of the time: divide by the time (np.polyfit squares "
        "its weights itself)": """
def fit_cost(nbytes, seconds):
    beta, alpha = np.polyfit(nbytes, seconds, 1, w=1 / np.sqrt(seconds))
    return alpha, beta
""",
        "only the first and the last measurement count: use all of them": """
def fit_cost(nbytes, seconds):
    beta = (seconds[-1] - seconds[0]) / (nbytes[-1] - nbytes[0])
    return seconds[0] - beta * nbytes[0], beta
""",
    },
    hints=(
        "A relative error is (alpha + beta · n) / t - 1. It is linear in alpha and beta.",
        "So each measurement gives one equation: alpha · (1 / t) + beta · (n / t) = 1.",
        "`np.linalg.lstsq(terms, np.ones(m))[0]`, where `terms` has the columns 1 / t and n / t.",
    ),
    tolerance=1e-5,
)


# Exercise 4.5


def trimmed_mean(rows, drop):
    """Return the mean of each column without its `drop` largest and `drop` smallest values.

    Shapes: rows (m, n) with m > 2 * drop; result (n,), in the dtype of rows. Leave rows as they are.
    """
    ordered = np.sort(rows, axis=0)
    return ordered[drop : len(rows) - drop].mean(axis=0)


def rows_cases() -> Sequence[Case]:
    cases = []
    for m, n, drop, dtype in (
        (3, 1, 1, np.float64),
        (4, 3, 0, np.float64),
        (5, 3, 1, np.float64),
        (6, 5, 2, np.float32),
        (12, 1000, 2, np.float32),
    ):
        rows = np.random.default_rng([m, n]).normal(size=(m, n)).astype(dtype)
        rows[0] *= 100
        cases.append(Case(f"{m} rows, {counted(n, 'value')}, drop {drop}, {dtype.__name__}", ((rows, drop),)))
    return cases


def trimmed(case: Case) -> Sequence[Any]:
    ((rows, drop),) = case.arguments
    kept = [sorted(column)[drop : len(rows) - drop] for column in rows.T.tolist()]
    return [np.array([sum(column) / len(column) for column in kept], rows.dtype)]


TRIMMED_MEAN = Exercise(
    reference=trimmed_mean,
    title="The trimmed mean",
    difficulty=2,
    minutes=10,
    cases=rows_cases,
    expected=trimmed,
    mistakes={
        "this sorts along the rows: sort each column by itself (axis 0)": {
            "np.sort(rows, axis=0)": "np.sort(rows)"
        },
        "this drops whole rows: a row can be extreme in one column and ordinary in another": {
            "np.sort(rows, axis=0)": "rows[np.argsort(np.linalg.norm(rows, axis=1))]"
        },
        "only the largest values are dropped: drop the smallest as well": {"ordered[drop :": "ordered[:"},
        "the sum of the kept values is divided by the number of all rows: divide by the number kept": {
            ".mean(axis=0)": ".sum(axis=0) / rows.dtype.type(len(rows))"
        },
        "with drop = 0 nothing is left: rows[0:-0] is empty. Slice up to len(rows) - drop": {
            "len(rows) - drop": "-drop"
        },
        "this is the mean of all rows: nothing is dropped": {"ordered[drop : len(rows) - drop]": "ordered"},
        "this is the median: it drops more than `drop` values": """
def trimmed_mean(rows, drop):
    return np.median(rows, axis=0)
""",
        "… changes its argument `rows`": {
            "ordered = np.sort(rows, axis=0)": "rows.sort(axis=0)",
            "ordered[": "rows[",
        },
        "… float64": {".mean(axis=0)": ".astype(float).mean(axis=0)"},
    },
    hints=(
        "`np.sort(rows, axis=0)` sorts each column and leaves `rows` as they are.",
        "Keep the sorted rows from `drop` up to `len(rows) - drop`, then take the mean of each column.",
    ),
)


# Exercise 4.6


def top_k(gradient, residual, k):
    """Return (indices, values) of the k largest entries of gradient + residual by absolute value.

    Leave in `residual` what is not sent. Shapes: gradient and residual (n,); indices (k,), ascending;
    values (k,).
    """
    residual += gradient
    indices = np.sort(np.argsort(np.abs(residual))[len(residual) - k :])
    values = residual[indices]
    residual[indices] = 0
    return indices, values


def top_k_cases() -> Sequence[Case]:
    cases = []
    for n, k, dtype in (1, 1, np.float64), (4, 1, np.float64), (5, 2, np.float32), (1000, 10, np.float32):
        rng = np.random.default_rng([n, k])
        gradient, residual = (rng.permutation(np.linspace(-1.1, 1, n)).astype(dtype) for _ in range(2))
        residual = np.multiply(residual, dtype(0.8))
        cases.append(Case(f"{counted(n, 'value')}, k = {k}, {dtype.__name__}", ((gradient, residual, k),)))
    return cases


def chosen(values: np.ndarray, sizes: np.ndarray, k: int) -> list[tuple[np.ndarray, np.ndarray]]:
    indices = np.array(sorted(range(len(sizes)), key=lambda i: -sizes[i])[:k])
    indices.sort()
    return [(indices, values[indices])]


def sent(case: Case) -> Sequence[Any]:
    ((gradient, residual, k),) = case.arguments
    return chosen(gradient + residual, np.abs(gradient + residual), k)


def look_residual(case: Case, outcomes: Sequence[Outcome]) -> str | None:
    ((gradient, residual, _),) = case.arguments
    got, total = outcomes[0].arguments[1], gradient + residual
    ((indices, _),) = sent(case)
    wanted = total.copy()
    wanted[indices] = 0
    if np.allclose(got, wanted, rtol=1e-5, atol=1e-6):
        return None
    if np.allclose(got, total, rtol=1e-5, atol=1e-6):
        return "`residual` still holds the entries that are sent, so they are sent again: set them to 0 there"
    if np.array_equal(got, residual):
        return "`residual` is unchanged, so what is not sent is lost: add `gradient` to it, in place"
    if not got.any():
        return "`residual` is all zeros, so what is not sent is lost: set only the entries that are sent to 0"
    place = int(np.flatnonzero(~np.isclose(got, wanted, rtol=1e-5, atol=1e-6))[0])
    return f"residual[{place}] is {got[place]:.4g} after the call, expected {wanted[place]:.4g}"


TOP_K = Exercise(
    reference=top_k,
    title="Send only the k largest entries, and remember the rest",
    difficulty=3,
    minutes=15,
    cases=top_k_cases,
    expected=sent,
    mistakes={
        "these are the largest entries by sign: choose by absolute value": {"np.abs(residual)": "residual"},
        "`residual` is not added before choosing: choose from gradient + residual": {
            "residual += gradient": "residual[:] = gradient"
        },
        "the indices are right, but the values are those of `gradient`: send gradient + residual": {
            "values = residual[indices]": "values = gradient[indices]"
        },
        "the values lack their sign: send the entries, not their absolute values": {
            "values = residual[indices]": "values = np.abs(residual[indices])"
        },
        "the values are zero: take them out before you set them to 0 in `residual`": {
            "    values = residual[indices]\n": "",
            "return indices, values": "return indices, residual[indices]",
        },
        "the entries are right, but the indices are not in ascending order: sort them": {
            "np.sort(np.argsort(np.abs(residual))[len(residual) - k :])": (
                "np.argsort(np.abs(residual))[len(residual) - k :]"
            )
        },
        "… so they are sent again": {"    residual[indices] = 0\n": ""},
        "… all zeros": {"residual[indices] = 0": "residual[:] = 0"},
        "… is unchanged": {"residual += gradient": "residual = residual + gradient"},
        "… changes its argument `gradient`": {
            "residual += gradient": "gradient += residual\n    residual[:] = gradient"
        },
    },
    look=look_residual,
    hints=(
        "First `residual += gradient`: now `residual` holds all that still has to be sent.",
        "`np.argsort(np.abs(residual))` lists the indices, that of the smallest entry first. Take the "
        "last k, and sort them.",
        "`residual[indices]` with an array of indices is a copy: set these entries to 0 afterwards.",
    ),
    may_change=(1,),
)
