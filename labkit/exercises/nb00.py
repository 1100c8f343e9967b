"""The exercises of notebook 00: items, messages, a training loop, a hang report."""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from labkit.checks.exercise import MPI, Case, Exercise, Outcome
from labkit.exercises.cases import COLLECTIVES, SMALL_OBJECTS, calls_by_rank, normal, on_ranks
from labkit.exercises.wraps import numbers_as_array
from labkit.text import counted
from mpiwatch.report import Activity, CallRecord, MessageRecord, RankState, Reason, Report

LARGE = 2**18  # float32 values; no MPI library keeps a message of 1 MiB until it is received
SIZES = (2, 3, "float64"), (3, 1, "float32"), (4, 5, "int64"), (3, LARGE, "float32"), (1, 3, "float64")


def _row(rank: int, n: int) -> np.ndarray:
    """Return values that name the rank: 1, 2, 3 … on rank 0, 10, 20, 30 … on rank 1, and so on."""
    return (np.arange(n) % 9 + 1) * 10.0**rank


# Exercise 0.1
def my_items(n, rank, size):
    """Return the items of range(n) that this rank works on, as a list.

    Items are dealt out like cards: item 0 to rank 0, item 1 to rank 1, and after the last rank to rank 0.
    """
    return list(range(rank, n, size))


MY_ITEMS = Exercise(
    reference=my_items,
    cases=calls_by_rank(my_items, (5, 1), (5, 2), (8, 3), (10, 4), (2, 4), (0, 3), (30, 7)),
    mistakes={
        "the step is 4 for any number of ranks; use `size`": {
            "list(range(rank, n, size))": "[k for k in range(n) if k % 4 == rank]"
        },
        "every rank starts at item 0; start at item `rank`": {"range(rank, n,": "range(0, n,"},
        "this is a block of neighbouring items; deal them out one by one, item k to rank k % size": """
def my_items(n, rank, size):
    each = n // size
    stop = n if rank == size - 1 else (rank + 1) * each
    return list(range(rank * each, stop))
""",
        "the last item is on no rank: range(…, n, …) already leaves out n": {
            "range(rank, n,": "range(rank, n - 1,"
        },
        "the items start at 1; start at 0, as range(n) does": {
            "list(range(rank, n, size))": "[k for k in range(1, n + 1) if (k - 1) % size == rank]"
        },
    },
    hints=(
        "With 3 ranks, rank 1 gets the items 1, 4, 7 … Which number is added each time?",
        "`range` takes a first item, the end and a step.",
    ),
)


# Exercise 0.2
def shift_right(comm, x):
    """Send x to the right-hand neighbour and return what the left-hand neighbour sends, as a new array.

    The neighbour to the right of the last rank is rank 0. Shapes: x (n,), with the same n and dtype on all
    ranks; it stays as it is.
    """
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    incoming = np.empty_like(x)
    comm.Sendrecv(x, dest=right, recvbuf=incoming, source=left)
    return incoming


def _shift_traffic(case: Case, outcomes: Sequence[Outcome]) -> Iterator[str]:
    for rank, outcome in enumerate(outcomes):
        right = (rank + 1) % case.ranks
        others = [other for other, count in enumerate(outcome.messages) if count and other != right]
        if others or sum(outcome.messages) > 1:
            yield (
                f"the result is right, but rank {rank} sends {sum(outcome.messages)} messages; "
                f"one message to rank {right} is enough"
            )


SHIFT_RIGHT = Exercise(
    reference=shift_right,
    cases=on_ranks(SIZES, lambda rank, p, n: (_row(rank, n),)),
    expected=lambda case: [case.arguments[rank - 1][0] for rank in range(case.ranks)],
    mistakes={
        "each rank has the array of its right-hand neighbour: the arrays went to the left": {
            "dest=right": "dest=left",
            "source=left": "source=right",
        },
        "each rank has its own array: return the buffer that you receive into": {
            "return incoming": "return x"
        },
        "… wait for each other in a circle": {
            "comm.Sendrecv(x, dest=right, recvbuf=incoming, source=left)": (
                "comm.Recv(incoming, source=left)\n    comm.Send(x, dest=right)"
            )
        },
        "… each waits in Send": {"Sendrecv(x, dest=right, recvbuf=": "Send(x, dest=right)\n    comm.Recv("},
        "… one message to rank": {
            "    return": "    comm.Sendrecv(x, dest=left, recvbuf=x.copy(), source=right)\n    return"
        },
    },
    look=_shift_traffic,
    returns_new=True,
    forbidden=COLLECTIVES,
    hints=(
        "Modulo closes the ring: the neighbour to the right is rank (comm.rank + 1) % comm.size.",
        "If all ranks call Recv first, none reaches its Send. If all call Send first, large arrays hang.",
        "`comm.Sendrecv(x, dest=…, recvbuf=…, source=…)` sends and receives in one call; "
        "np.empty_like(x) makes the buffer to receive into.",
    ),
)


# Exercise 0.3
def broadcast(comm, x, root):
    """Copy the x of rank `root` into x on every rank, by Send and Recv. Every rank makes this call.

    Shapes: x (n,), with the same n and dtype on all ranks; changed in place, nothing is returned.
    """
    if comm.rank == root:
        for other in range(comm.size):
            if other != root:
                comm.Send(x, dest=other)
    else:
        comm.Recv(x, source=root)


def _broadcast_traffic(case: Case, outcomes: Sequence[Outcome]) -> Iterator[str]:
    for rank, outcome in enumerate(outcomes):
        if outcome.messages[rank]:
            yield f"rank {rank} sends to itself: the root already holds x, so skip it"
        if any(call.name.lower() in ("recv", "irecv") and call.peer < 0 for call in outcome.calls):
            yield (
                f"rank {rank} receives from any rank. In a second broadcast, which may begin while this one "
                "goes on, it would take the other root's message: name the source"
            )
    total = sum(sum(outcome.messages) for outcome in outcomes)
    if total > case.ranks - 1:
        yield f"the ranks send {total} messages; one to each rank but the root is enough"


BROADCAST = Exercise(
    reference=broadcast,
    cases=on_ranks(SIZES, lambda rank, p, n: (_row(rank, n), max(0, p - 2))),
    expected=lambda case: [case.arguments[root][0] for _, root in case.arguments],
    result_in=0,
    mistakes={
        "x is unchanged: what arrives has to be written into the array that the caller gave; receive with "
        "`comm.Recv(x, …)`": {"comm.Send": "comm.send", "comm.Recv(x, ": "x = comm.recv("},
        "every rank holds the x of rank 0; send that of rank `root`": {
            "== root": "== 0",
            "!= root": "!= 0",
            "source=root": "source=0",
        },
        "… sends to itself": {
            "    if comm.rank == root:": (
                "    if comm.rank == root:\n        comm.Sendrecv(x, root, recvbuf=x.copy(), source=root)"
            )
        },
        "… messages; one to each rank": {
            "comm.Send(x, dest=other)": "comm.Send(x, dest=other)\n                comm.Send(x, dest=other)",
            "comm.Recv(x, source=root)": "comm.Recv(x, source=root)\n        comm.Recv(x, source=root)",
        },
    },
    look=_broadcast_traffic,
    forbidden=COLLECTIVES,
    hints=(
        "All ranks run this function. `if comm.rank == root` tells the sender from the receivers.",
        "The root sends x to every other rank in a loop; each of the others makes a single Recv.",
        "`comm.Recv(x, source=root)` fills x itself, so there is nothing to return.",
    ),
)


# Exercise 0.4
def gradient_sum(line, inputs, targets):
    """Return the sum over the samples of the gradient of (a x + b - y)². Shapes: line (2,), result (2,)."""
    error = line[0] * inputs + line[1] - targets
    return np.array([np.sum(2 * error * inputs), np.sum(2 * error)])


def fit_line(comm, inputs, targets, steps, lr):
    """Fit a line to the samples of all ranks by gradient descent; return (slope, intercept), shape (2,).

    Shapes: inputs and targets (k,), this rank's samples; k may be 0 on some ranks. The line starts as (0, 0).
    """
    n, line = comm.allreduce(len(inputs)), np.zeros(2)
    for _ in range(steps):
        total = gradient_sum(line, inputs, targets)
        comm.Allreduce(MPI.IN_PLACE, total)
        line -= lr * total / n
    return line


def _line_cases() -> Iterator[Case]:
    for counts, steps in ((1, 2), 1), ((3,), 2), ((2, 0, 2), 3), ((1, 2, 3, 1), 2), ((20, 9), 1):
        arguments = tuple((*normal(rank + 1, k, k), steps, 0.1) for rank, k in enumerate(counts))
        yield Case(f"samples by rank {counts}, {counted(steps, 'step')}", arguments)


def _line(case: Case) -> Sequence[Any]:
    """Return the line that one rank with all samples finds."""
    inputs, targets, (steps, *_), (lr, *_) = zip(*case.arguments, strict=True)
    x, y, line = np.concatenate(inputs), np.concatenate(targets), np.zeros(2)
    for _ in range(steps):
        line -= lr * 2 / len(x) * np.column_stack([x, np.ones(len(x))]).T @ (line[0] * x + line[1] - y)
    return [line] * case.ranks


def look_at_samples(case: Case, outcomes: Sequence[Outcome]) -> Iterator[str]:
    sent = max((call.most for outcome in outcomes for call in outcome.calls), default=0)
    if sent > SMALL_OBJECTS * case.ranks:  # in an all-gather, a rank sends its sums to each of the others
        yield f"a rank sends {sent:,} bytes at once. Send the sums of the gradients, and no samples"


FIT_LINE = Exercise(
    reference=fit_line,
    prelude=f"import numpy as np\nfrom mpi4py import MPI\n\n\n{inspect.getsource(gradient_sum)}",
    cases=_line_cases,
    expected=_line,
    look=look_at_samples,
    digest=numbers_as_array,
    mistakes={
        "this is the mean of the ranks' means: a sample counts more on a rank with few samples. Add up the "
        "sums over the ranks, and divide once, by the number of samples on all ranks": {
            "total = gradient_sum(line, inputs, targets)": (
                "total = gradient_sum(line, inputs, targets) / max(len(inputs), 1)"
            ),
            "/ n": "/ comm.size",
        },
        "each rank trains a line of its own, on its own samples: add up the gradients over the ranks in each "
        "step": {
            "        comm.Allreduce(MPI.IN_PLACE, total)\n": "",
            "/ n": "/ max(len(inputs), 1)",
        },
        "each rank trains a line of its own, and the lines are averaged at the end: add up the gradients "
        "over the ranks in each step": {
            "        comm.Allreduce(MPI.IN_PLACE, total)\n": "",
            "/ n": "/ max(len(inputs), 1)",
            "return line": "return comm.allreduce(line) / comm.size",
        },
        "each rank fits its own samples. Sum `total` over the ranks: `comm.Allreduce(MPI.IN_PLACE, total)` "
        "changes it, `comm.allreduce(total)` only returns the sum": {
            "        comm.Allreduce(MPI.IN_PLACE, total)\n": ""
        },
        "the sum is divided by this rank's samples; divide by the number of samples on all ranks": {
            "/ n": "/ max(len(inputs), 1)"
        },
        "the sum over the samples is not divided by their number": {" / n": ""},
        "the sum is divided by the number of ranks, too; divide only by the number of samples on all ranks": {
            "/ n": "/ n / comm.size"
        },
        "the line moves along the gradient, which raises the loss; subtract": {"-=": "+="},
        "the step is the gradient itself; multiply it by lr": {"lr * ": ""},
        "this is one step; take `steps` of them": {"range(steps)": "range(1)"},
    },
    hints=(
        "In each step, compute the gradient sum of this rank's samples, add up the sums of all ranks, and "
        "take the step. No rank knows how many samples there are in all: add up the counts, too.",
        "`comm.Allreduce(MPI.IN_PLACE, total)` leaves the sum of all ranks' `total` in `total`, and "
        "`comm.allreduce(k)` returns the sum of a number. The mean's gradient is total / n; subtract lr "
        "times that from the line.",
    ),
)


# Exercise 0.5
def missing_ranks(report):
    """Return (missing, operation): the ranks that never joined a collective, and the collective's name.

    `report` is a hang report as a dictionary. `missing` is a list, in order.
    """
    waiting = {
        state["rank"]: state["calls"][-1]
        for state in report["ranks"]
        if state["activity"] == "WAITING_IN_COLLECTIVE"
        and state["calls"][-1]["communicator"] == report["communicator"]
    }
    number = max(call["number"] for call in waiting.values())
    joined = {rank: call for rank, call in waiting.items() if call["number"] == number}
    missing = [state["rank"] for state in report["ranks"] if state["rank"] not in joined]
    return missing, next(iter(joined.values()))["operation"]


def _rank(
    rank: int, activity: Activity, operations: Sequence[str], *communicators: int, first: int = 1
) -> RankState:
    """Return a rank's state after these calls, of which the report holds those from number `first` on.

    The communicators are those of its last calls; 0 of others.
    """
    on = [*[0] * (len(operations) - len(communicators)), *communicators]
    calls = tuple(
        CallRecord(communicator, number, name, None, 10, "float32", None, "cell", number + 3)
        for number, (name, communicator) in enumerate(zip(operations, on, strict=True), first)
    )
    message = MessageRecord("Recv", 0, 7) if activity == Activity.WAITING_FOR_MESSAGE else None
    return RankState(rank, activity, message=message, calls=calls)


def _report_cases() -> Iterator[Case]:
    long, short = ("Bcast", "Barrier", "Allreduce"), ("Bcast", "Barrier")
    joined, left = (Activity.WAITING_IN_COLLECTIVE, long), (Activity.RETURNED, short)
    earlier, elsewhere = (joined[0], short), (joined[0], (*long, "Gather"), 1)
    for label, states in {
        "4 ranks, one has returned from the cell": (joined, joined, joined, left),
        "4 ranks, two are missing": (
            (Activity.RAISED, short),
            joined,
            (Activity.WAITING_FOR_MESSAGE, short),
            joined,
        ),
        "3 ranks, one waits in an earlier collective": (joined, earlier, joined),
        "4 ranks, one waits on another communicator": (left, joined, elsewhere, joined),
        "3 ranks, the last waits in an earlier collective": (left, joined, earlier),
        "4 ranks, the first waits in an earlier collective": (earlier, joined, joined, left),
        "3 ranks, one joined after calls on another communicator": (left, joined, (*joined, 1, 1, 0)),
        "4 ranks, two wait in an earlier collective of the same name": (
            joined,
            (joined[0], ("Bcast", "Allreduce")),
            (joined[0], ("Bcast", "Allreduce")),
            left,
        ),
        "3 ranks, one waits in the third collective of another communicator": (joined, left, (*joined, 1)),
        "4 ranks, two are missing, one of them has made no call": (
            joined,
            (Activity.RUNNING, ()),
            joined,
            left,
        ),
        "18 ranks, three are missing": tuple(left if rank in (1, 8, 16) else joined for rank in range(18)),
    }.items():
        for first in 1, 40:  # a report holds the last calls alone
            ranks = tuple(_rank(rank, *state, first=first) for rank, state in enumerate(states))
            report = Report(Reason.TIMED_OUT, 5.0, ranks, communicator=0, reporter=1)
            since = "" if first == 1 else f", after {first - 1} other calls"
            yield Case(label + since, ((json.loads(report.to_json()),),))


def _missing(case: Case) -> Sequence[Any]:
    report = Report.from_json(json.dumps(case.arguments[0][0]).encode())
    return [(report.missing(), report.joined()[0].calls[-1].operation)]


MISSING_RANKS = Exercise(
    reference=missing_ranks,
    cases=_report_cases,
    expected=_missing,
    mistakes={
        "these are the ranks that wait; return those that never joined": {"not in joined": "in joined"},
        "the missing ranks are right, but the operation is the last one that a missing rank called; "
        "return the one that the others wait in": {
            "next(iter(joined.values()))": (
                "next(each['calls'][-1] for each in report['ranks'] "
                "if each['rank'] in missing and each['calls'])"
            )
        },
        "the reporter is the rank that wrote the report, not the rank that is missing": {
            "return missing,": "return [report['reporter']],"
        },
        "a rank that waits in an earlier collective, or on another communicator, is missing too: "
        "compare the number and the communicator of its last call": {
            '\n        and state["calls"][-1]["communicator"] == report["communicator"]': "",
            ' if call["number"] == number': "",
        },
        "each communicator counts its own calls; look only at ranks that wait on report['communicator']": {
            '\n        and state["calls"][-1]["communicator"] == report["communicator"]': ""
        },
        "only one missing rank is returned; return all of them": {"return missing,": "return missing[:1],"},
    },
    hints=(
        "A rank that waits on another communicator, or in an earlier collective, has not joined.",
        "`state['calls'][-1]` is a rank's last call. Its `number` counts the collectives on its "
        "`communicator`. The number of the ranks that have joined is the largest.",
        "Collect the ranks that have joined; all the others in report['ranks'] are missing. "
        "The operation is that of the last call of any rank that has joined.",
    ),
)


QUESTIONS = {
    "00-ring-bytes": "Each rank sends (p - 1)·n bytes: the whole array in each shift. All ranks compute "
    "the same sums, so each is computed p times; once would be enough. (Each rank adds in another order, "
    "so with floats the results may differ in the last bits.) It is cheaper if each rank adds up one part "
    "of the array and then passes on the finished part: the ring all-reduce of notebook 05.",
    "00-collectives": "Rank 1 holds one number, the sum of all ranks' second entries: 2222 with four "
    "ranks. After Allgather every rank holds every sum. Allreduce does both in one call.",
    "00-mean-of-lines": "No. A rank's line fits its own samples best. Even if all ranks have equally many "
    "samples, their inputs are spread differently, so the mean of the best lines is not the best line. A "
    "mean of gradients at the same line, weighted by the ranks' numbers of samples, counts every sample "
    "once, in every step. (Without weights it does so only if all ranks have equally many.)",
    "00-bonus-1": "`list(range(rank, n, size))`: start at the rank and go on in steps of size. If there are "
    "fewer items than ranks, the range of a high rank is empty by itself.",
    "00-bonus-2": "With `Send` and `Recv` alone, some ranks must receive first: even ranks send and then "
    "receive, odd ranks receive and then send (with an odd number of ranks, two even neighbours are left, "
    "and the second one still gets through); or rank 0 alone receives last. With one rank, copy. `Isend`, "
    "`Recv`, `Wait`, or `Irecv`, `Send`, `Wait` are other ways. `Sendrecv` starts the send and the receive "
    "together and waits for both, so neither has to end before the other begins.",
    "00-bonus-3": "Let every rank that has the array send it on. In a binomial tree, the number of ranks "
    "that have it doubles in each round, so the last one has it after about log2(p) messages instead of "
    "p - 1. A long array can also be cut and sent along a chain, so that all links work at once.",
    "00-bonus-4": "The gradient is two float64 values, so 200 steps hand 200 * 16 = 3,200 bytes to MPI, "
    "and as many samples as you like do not change that (the number of samples is a few bytes more, once). "
    "With a million parameters it is 1.6 GB, or half of that in float32. What is sent depends on the "
    "model, not on the data.",
    "00-bonus-5": "Its `activity` says it in a word: RETURNED, or that it waits elsewhere. If it waits in "
    "another collective, `calls[-1]` names that one and its line. Return a dictionary, for example "
    '`{3: "RETURNED"}`.',
}
