"""The exercises of notebook 04: averaging gradients, a fitted cost model, a robust mean."""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from math import ceil, log2
from typing import Any

import numpy as np

from labkit.checks.exercise import MPI, Case, Code, Exercise, Outcome
from labkit.exercises.cases import COLLECTIVES, SIZES, SMALL_OBJECTS, all_but, normal, on_ranks, weighted_mean
from labkit.text import counted


def gradient_and_weight(rank: int, p: int, n: int) -> tuple[np.ndarray, float]:
    """Return a rank's arguments of an average; if there are eight values, rank 0 has no samples."""
    samples = np.arange(p) + (n != 8)
    gradient = np.random.default_rng([rank, n]).integers(1, 9, n) + 10.0 * rank + 0.25
    return gradient * (samples[rank] > 0), float(samples[rank] / samples.sum())


AVERAGES = on_ranks(SIZES, gradient_and_weight)


def tables(outcomes: Sequence[Outcome]) -> tuple[np.ndarray, np.ndarray]:
    """Return the bytes and messages from the rank of the row to the rank of the column. Shapes: (p, p)."""
    sent = np.array([outcome.sent for outcome in outcomes])
    messages = np.array([outcome.messages for outcome in outcomes])
    return sent, messages


def submitted_as(name: str, reference: Callable[..., Any]) -> Code:
    """Return the solution of another exercise as an answer to this one."""
    return inspect.getsource(reference).replace(reference.__name__, name)


UNWEIGHTED: dict[str, Code] = {  # in the references of the exercises 4.1 to 4.4
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
WEIGHTED_LAST = (
    "each rank has the sum times its own weight: every gradient needs the weight of the rank that it is from"
)


# Exercise 4.1
def average_by_allgather(comm, gradient, weight):
    """Leave the weighted mean of all ranks' gradients in `gradient`, on every rank.

    `weight` is this rank's fraction of all samples. Shape: gradient (n,), the same n on every rank.
    """
    gradient *= weight
    rows = np.empty((comm.size, gradient.size), gradient.dtype)
    rows[comm.rank] = gradient
    for distance in range(1, comm.size):
        dest = (comm.rank + distance) % comm.size
        source = (comm.rank - distance) % comm.size
        comm.Sendrecv(gradient, dest, recvbuf=rows[source], source=source)
    gradient[:] = rows.sum(axis=0)


def look_allgather(case: Case, outcomes: Sequence[Outcome]) -> Iterator[str]:
    nbytes = case.arguments[0][0].nbytes
    for rank, received in enumerate(tables(outcomes)[0].sum(axis=0)):
        if received != (case.ranks - 1) * nbytes:
            yield f"rank {rank} receives {received} bytes, expected {case.ranks - 1} gradients of {nbytes}"
    first = outcomes[0].arguments[0]
    if not all(np.array_equal(outcome.arguments[0], first) for outcome in outcomes):
        yield (
            "the ranks' means differ in the last bits, because each rank adds up in an order of its own: "
            "keep all gradients, in a row for each rank, then add up the rows"
        )


AVERAGE_BY_ALLGATHER = Exercise(
    reference=average_by_allgather,
    cases=AVERAGES,
    expected=weighted_mean,
    mistakes={
        **UNWEIGHTED,
        WEIGHTED_LAST: {"    gradient *= weight\n": "", "sum(axis=0)": "sum(axis=0) * weight"},
        "this rank's own gradient is missing from the sum": {
            "np.empty": "np.zeros",
            "    rows[comm.rank] = gradient\n": "",
        },
        "… differ in the last bits": {
            "recvbuf=rows[source], source=source)\n    gradient[:] = rows.sum(axis=0)": (
                "recvbuf=rows[source], source=source)\n        rows[comm.rank] += rows[source]\n"
                "    gradient[:] = rows[comm.rank]"
            )
        },
    },
    look=look_allgather,
    hints=(
        "Multiply your own gradient by your own weight first. What remains is a sum over the ranks. Keep "
        "every rank's gradient in an array of shape (comm.size, n), one row for each rank.",
        "In round d = 1 … p - 1, send to rank (rank + d) % p and receive from (rank - d) % p: "
        "`comm.Sendrecv(gradient, dest, recvbuf=rows[source], source=source)`.",
        "Write the sum over the rows into `gradient[:]`. A plain `gradient = …` changes nothing outside.",
    ),
    result_in=0,
    forbidden=COLLECTIVES,
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


def look_root(case: Case, outcomes: Sequence[Outcome]) -> Iterator[str]:
    sent, messages = tables(outcomes)
    nbytes = case.arguments[0][0].nbytes
    for rank in range(1, case.ranks):
        others = [dest for dest in range(1, case.ranks) if messages[rank, dest]]
        if others:
            yield f"rank {rank} sends to rank {others[0]}: every message goes to rank 0 or comes from it"
        for here, there in (rank, 0), (0, rank):
            # A weight may travel beside the gradient.
            if not nbytes <= sent[here, there] <= nbytes + SMALL_OBJECTS:
                yield (
                    f"rank {here} sends {sent[here, there]} bytes to rank {there}, expected one gradient "
                    f"({nbytes} bytes)"
                )


AVERAGE_BY_ROOT = Exercise(
    reference=average_by_root,
    cases=AVERAGES,
    expected=weighted_mean,
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
        "… every message goes to rank 0": submitted_as("average_by_root", average_by_allgather),
    },
    look=look_root,
    hints=(
        "Rank 0 does one thing and all other ranks do another: begin with `if comm.rank == 0:`.",
        "Rank 0 receives each gradient into a second array and adds it to its own. The other ranks send, "
        "then wait for the mean in `comm.Recv`.",
        "Rank 0 needs two loops over the other ranks: first receive from all, then send to all.",
    ),
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


def look_tree(case: Case, outcomes: Sequence[Outcome]) -> Iterator[str]:
    sent, messages = tables(outcomes)
    p, nbytes = case.ranks, case.arguments[0][0].nbytes
    levels = ceil(log2(p)) if p > 1 else 0
    for does, there in ("receives from", messages[1:, 0]), ("sends to", messages[0, 1:]):
        if (there > 0).sum() > levels:
            yield (
                f"rank 0 {does} {(there > 0).sum()} ranks, and in a binomial tree of {p} ranks {does} "
                f"{levels}: give other ranks a part of the work"
            )
    if sent.sum() != 2 * (p - 1) * nbytes:
        yield (
            f"the ranks send {sent.sum()} bytes in all. A tree needs {2 * (p - 1)} messages of one gradient "
            f"({2 * (p - 1) * nbytes} bytes): each rank but rank 0 sends its sum once and receives once"
        )


AVERAGE_BY_TREE = Exercise(
    reference=average_by_tree,
    cases=AVERAGES,
    expected=weighted_mean,
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
        "… rank 0 receives from 3 ranks": submitted_as("average_by_tree", average_by_root),
        "… source=comm.rank + distance": {" and comm.rank + distance < comm.size": ""},  # for powers of two
    },
    look=look_tree,
    hints=(
        "Go through the distances 1, 2, 4, … below p. At each distance, every second rank of those that "
        "still take part sends its sum to the rank `distance` below it, and is done.",
        "A rank with `rank % (2 * distance) == distance` sends to `rank - distance`. A rank with "
        "`rank % (2 * distance) == 0` receives from `rank + distance`, if there is such a rank.",
        "The way down has the same pairs with swapped roles, from the largest distance to the smallest.",
    ),
    result_in=0,
    forbidden=COLLECTIVES,
)


# Exercise 4.4
def average_by_reduce(comm, gradient, weight):
    """Leave the weighted mean of all ranks' gradients in `gradient`, on every rank, by `Reduce`.

    `weight` is this rank's fraction of all samples. Shape: gradient (n,), the same n on every rank.
    """
    gradient *= weight
    if comm.rank == 0:
        comm.Reduce(MPI.IN_PLACE, gradient, root=0)
    else:
        comm.Reduce(gradient, None, root=0)
    comm.Bcast(gradient, root=0)


AVERAGE_BY_REDUCE = Exercise(
    reference=average_by_reduce,
    cases=AVERAGES,
    expected=weighted_mean,
    mistakes={
        **UNWEIGHTED,
        "only rank 0 holds the mean: `Reduce` fills the receive buffer of the root alone": {
            "    comm.Bcast(gradient, root=0)\n": ""
        },
        WEIGHTED_LAST: {
            "    gradient *= weight\n": "",
            "comm.Bcast(gradient, root=0)": "comm.Bcast(gradient, root=0)\n    gradient *= weight",
        },
        "`Reduce` has not filled this array: the ranks other than 0 have copied it into `gradient`": """
def average_by_reduce(comm, gradient, weight):
    gradient *= weight
    total = np.zeros_like(gradient)
    comm.Reduce(gradient, total, root=0)
    gradient[:] = total
""",
    },
    look=lambda case, outcomes: iter(
        () if any(call.name == "Reduce" for call in outcomes[0].calls) else ["rank 0 does not call `Reduce`"]
    ),
    hints=(
        "`comm.Reduce(send, receive, root=0)` leaves the sum in rank 0's `receive`; on the others `receive` "
        "may be None. `comm.Bcast(array, root=0)` copies rank 0's array to all.",
        "`send` and `receive` must be two arrays, or on rank 0 `MPI.IN_PLACE` and `gradient`.",
    ),
    result_in=0,
    forbidden=all_but("Reduce", "Bcast"),
)


# Exercise 4.5
def fit_two_segments(nbytes, seconds):
    """Return (first, small, large): alpha + beta * nbytes, fitted to two segments of the measurements.

    `small` and `large` are pairs (alpha, beta), in seconds and in seconds per byte: the fits to the
    measurements before number `first` and from it on. Each has the smallest sum of squared relative errors,
    and `first` makes the two sums together smallest, with at least three measurements in each segment.
    Shapes: nbytes (m,), ascending; seconds (m,), measured.
    """
    terms = np.stack([1 / seconds, nbytes / seconds], axis=1)
    ones = np.ones(len(seconds))
    best = np.inf
    for first in range(3, len(seconds) - 2):
        error, pairs = 0.0, []
        for part in slice(first), slice(first, None):
            pair = np.linalg.lstsq(terms[part], ones[part])[0]
            error += np.sum((terms[part] @ pair - ones[part]) ** 2)
            pairs.append(tuple(pair))
        if error < best:
            best, best_fit = error, (first, *pairs)
    return best_fit


def fit_cases() -> Iterator[Case]:
    for m, first, noise in (6, 3, 0), (8, 2, 0), (8, 6, 0), (9, 5, 0.1), (20, 11, 0.2):
        nbytes = 8.0 * 2 ** np.arange(m)
        seconds = np.where(np.arange(m) < first, 2e-6 + 5e-9 * nbytes, 6e-6 + 1e-9 * nbytes)
        seconds *= np.exp(noise * np.random.default_rng(m).normal(size=m))
        spread = "with noise" if noise else "on two lines"
        if not 3 <= first <= m - 3:
            spread += f", the {'first' if first < 3 else 'second'} too short"
        yield Case(f"{m} measurements {spread}, up to {nbytes[-1]:.0f} bytes", ((nbytes, seconds),))


TERMS = "1 / seconds, nbytes / seconds"
FIT_TWO_SEGMENTS = Exercise(
    reference=fit_two_segments,
    cases=fit_cases,
    mistakes={
        "the pairs are in the wrong order: alpha first, then beta": {"tuple(pair)": "tuple(pair[::-1])"},
        "these are the smallest absolute errors, so the largest sizes decide alone: divide each equation "
        "by its measured time": {TERMS: "seconds**0, nbytes", "np.ones(len(seconds))": "seconds"},
        "the errors are divided by the square of the time, so the smallest sizes decide alone: divide by "
        "the time (np.polyfit squares its weights itself)": {
            TERMS: "seconds**-2, nbytes * seconds**-2",
            "np.ones(len(seconds))": "1 / seconds",
        },
        "the errors are divided by the square root of the time: divide by the time (np.polyfit squares "
        "its weights itself)": {
            TERMS: "seconds**-0.5, nbytes * seconds**-0.5",
            "np.ones(len(seconds))": "seconds**0.5",
        },
        "only the first and the last measurement of a segment count: use all of them": {
            "np.linalg.lstsq(terms[part], ones[part])[0]": (
                "np.linalg.solve(terms[part][[0, -1]], ones[part][[0, -1]])"
            )
        },
        "both pairs are fitted to all measurements: fit each to its own segment": {
            "lstsq(terms[part], ones[part])": "lstsq(terms, ones)"
        },
        "`first` is chosen by the error of the large messages alone: add up the errors of both segments": {
            "error += ": "error = "
        },
        "`first` is one too small: it is the number of the first measurement of the second segment": {
            "(first, *pairs)": "(first - 1, *pairs)"
        },
    },
    hints=(
        "A relative error is (alpha + beta · n) / t - 1, linear in alpha and beta. So each measurement "
        "gives one equation: alpha · (1 / t) + beta · (n / t) = 1.",
        "`np.linalg.lstsq(terms, np.ones(m))[0]` is the pair, where `terms` has the columns 1 / t and n / t. "
        "Its error is `np.sum((terms @ pair - 1) ** 2)`.",
        "Try each `first` from 3 to m - 3: fit both segments, add up their errors, keep the best.",
    ),
    tolerance=1e-5,
)


# Exercise 4.6
def average_by_gather(comm, gradients, drop):
    """Leave in each row of `gradients` the trimmed mean over all ranks' rows; rank 0 computes it.

    For each entry, leave out the `drop` largest and the `drop` smallest values. Shape: gradients (k, n),
    the gradients of this rank's k workers; the same k and n on every rank; p * k > 2 * drop.
    """
    rows = np.empty((comm.size * len(gradients), gradients.shape[1]), gradients.dtype)
    comm.Gather(gradients, rows if comm.rank == 0 else None, root=0)
    if comm.rank == 0:
        rows.sort(axis=0)
        rows[:] = rows[drop : len(rows) - drop].mean(axis=0)
    comm.Scatter(rows if comm.rank == 0 else None, gradients, root=0)


def rows_cases() -> Iterator[Case]:
    for p, k, n, drop, dtype in (
        (1, 3, 2, 1, "float64"),
        (2, 1, 3, 0, "float64"),
        (3, 1, 4, 1, "float64"),
        (4, 2, 5, 2, "float32"),
        (3, 4, 1000, 2, "float32"),
    ):
        (rows,) = normal([p, k, n], (p, k, n))
        rows[0, 0] *= 100
        label = f"{counted(p, 'rank')}, {k} × {n} values, drop {drop}, {dtype}"
        yield Case(label, tuple((rank_rows, drop) for rank_rows in rows.astype(dtype)))


def trimmed(case: Case) -> Sequence[Any]:
    (rows_of_rank_0, drop), *_ = case.arguments
    columns = np.concatenate([rows for rows, _ in case.arguments]).T.tolist()
    trimmed_columns = [sorted(column)[drop : len(column) - drop] for column in columns]
    means = np.array([sum(column) / len(column) for column in trimmed_columns], rows_of_rank_0.dtype)
    return [np.tile(means, (len(rows_of_rank_0), 1))] * case.ranks


MEAN_OF_KEPT = "rows[drop : len(rows) - drop].mean(axis=0)"
AVERAGE_BY_GATHER = Exercise(
    reference=average_by_gather,
    cases=rows_cases,
    expected=trimmed,
    mistakes={
        "this sorts along the rows: sort each column by itself (axis 0)": {"sort(axis=0)": "sort()"},
        "this drops whole rows: a row can be extreme in one column and ordinary in another": {
            "rows.sort(axis=0)": "rows = rows[np.argsort(np.linalg.norm(rows, axis=1))]"
        },
        "only the largest values are dropped: drop the smallest as well": {"rows[drop :": "rows[:"},
        "the sum of the kept values is divided by the number of all rows: divide by the number kept": {
            ".mean(axis=0)": ".sum(axis=0) / rows.dtype.type(len(rows))"
        },
        "with drop = 0 nothing is left: rows[0:-0] is empty. Slice up to len(rows) - drop": {
            "len(rows) - drop]": "-drop]"
        },
        "this is the mean of all rows: nothing is dropped": {MEAN_OF_KEPT: "rows.mean(axis=0)"},
        "this is the median: it drops more than `drop` values": {MEAN_OF_KEPT: "np.median(rows, axis=0)"},
        "`gradients` is as it was before the call: only rank 0 has the mean. Scatter a copy to each worker": {
            "    comm.Scatter(rows if comm.rank == 0 else None, gradients, root=0)\n": ""
        },
        "each worker gets a sorted row back instead of the mean: write the mean into all rows": {
            f"rows[:] = {MEAN_OF_KEPT}": f"mean = {MEAN_OF_KEPT}"
        },
        "this is the trimmed mean over one rank's own workers: gather the rows of all ranks first": """
def average_by_gather(comm, gradients, drop):
    drop = min(drop, (len(gradients) - 1) // 2)
    gradients[:] = np.sort(gradients, axis=0)[drop : len(gradients) - drop].mean(axis=0)
""",
    },
    hints=(
        "Rank 0 needs an array of all workers' rows, shape (p · k, n). The other ranks pass None in its "
        "place: `comm.Gather(gradients, rows, root=0)`.",
        "`rows.sort(axis=0)` sorts each column. Keep the rows from `drop` up to `len(rows) - drop`.",
        "Scatter sends p equal parts of rank 0's array. Write the mean into every row of it before.",
    ),
    result_in=0,
    forbidden=all_but("Gather", "Scatter"),
)


QUESTIONS = {
    "04-bits": "Each addition rounds, so the last bits depend on the order of additions, in which "
    "algorithms differ. Ranks that hold different bits would drift apart step by step.",
    "04-pictures": "For rank 0, which takes one gradient after the other: most of each other rank's line is "
    "waiting (dots). With p ranks, p - 1 gradients come to rank 0 and p - 1 leave it; along a tree, only one "
    "comes for each doubling of the distance, and as many leave. On four ranks that is 4 gradients in place "
    "of 6. Rank 2 has taken over rank 3's: it adds it up while rank 0 adds up rank 1's.",
    "04-guess": "If each rank had a core and a link of its own, the fewest rounds would win for 8 bytes. On "
    "one machine, all-gather sends 6 gradients in all, the others 4, and all pass one memory: that counts "
    "for 2 MiB. It also fills an array of p rows and adds them up in Python. With more ranks than cores, a "
    "time is mostly the wait for a core, and the order says little.",
    "04-traffic": "With a link for each rank, root takes twice as long: with all-gather each rank sends "
    "and receives at the same time, while rank 0 first only receives, then only sends. On one machine it "
    "can be the other way round (look at your times): for 2 MiB the p(p - 1) gradients all pass one "
    "memory; for 8 B the p(p - 1) messages and the array of p rows cost Python's time and waiting for a "
    "core.",
    "04-model": "Above 1 it is mostly all-gather: the model lets both messages pass at once; here they "
    "share the cores and one memory. Each rank also fills and sums an array of p gradients, for which the "
    "model has no term. Below 1 it is mostly root and tree for small messages: α comes from an exchange, in "
    "which each rank sends and receives in one call, and theirs are single messages.",
    "04-sum": "Each step becomes 16 times as large; training will very probably diverge. On 4 ranks her "
    "effective learning rate is 4η. On 64 ranks, divide her η by 16. Better: divide the gradient by p, and "
    "set the learning rate to 4η once; then the rate does not depend on p any more. For a larger global "
    "batch, a larger rate can be right (notebook 08): choose it on purpose.",
    "04-robust": "One room: the mean; find a broken rank instead of hiding it. Hospitals: the mean, since "
    "a median ignores diseases that only one hospital sees. Strangers: a trimmed mean or a median, at the "
    "cost of people with rare data; say how many liars you expect, and drop no more.",
    "04-report-d": "No. On two ranks both means even have the same bits: a + b = b + a, and halving is "
    "exact. (From three ranks on, they agree up to rounding.) So the 24 images come from elsewhere: another "
    "seed or order of the samples, or computation that is not reproducible. Repeat both with several seeds.",
    "04-top-k": "2 (p - 1) · 384 bytes against 4 (p - 1) / p · 19,240: equal at p = 2 · 19,240 / 384, so "
    "from about 100 ranks on. (A pair of index and value has 8 bytes, so 1 % of the entries is 2 % of the "
    "bytes.)",
    "04-bonus-1": "Let the ranks broadcast in turn: for r in 0 ... p - 1, rank r broadcasts its weighted "
    "gradient into a buffer, and every rank adds it to its sum. One buffer beside the sum, and all add in "
    "the order of the ranks.",
    "04-bonus-2": "Reproducibility: the order of arrival decides the order of additions, so the last bits "
    "may differ from run to run. All ranks still get the same bits, because rank 0 sends them. You also "
    "lose the check that each rank sends once: a second message of a fast rank could be taken for "
    "another's.",
    "04-bonus-3": "Number the ranks anew, (rank - root) % size, write the tree for these numbers, and "
    "send to (number + root) % size.",
    "04-bonus-4": "Rank r gets the sum of ranks 0 ... r, so the last rank has the whole sum: Scan the "
    "weighted gradients, then Bcast from rank size - 1. It computes p sums of which you need one.",
    "04-bonus-5": "It lowers the largest error a little, as each segment more must. Believe in a cause "
    "only if the change-over stays when you measure again, and lies near a size that you know beforehand: "
    "that from which a send of the library waits for its receive, or half of the L2 cache (`lscpu`).",
    "04-bonus-6": "Alltoall gives rank r chunk r of every worker's gradient. It sorts and averages its "
    "chunk, and an Allgather collects the chunks: memory and work are shared, and no rank has more "
    "traffic than another. A Scatter of equal rows sends p rows from rank 0, as a plain Bcast would; but "
    "a Bcast may use a tree or a ring, because all ranks get the same.",
}
