"""Make the cases of exercises from tables of arguments, and what is right in many of them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from labkit.checks.exercise import Case, Outcome
from labkit.text import counted
from mpiwatch.report import NONBLOCKING_COLLECTIVES, OF_ARRAYS, OF_OBJECTS

Cases = Callable[[], Iterable[Case]]

# The communicator's methods that move data between all ranks, which an exercise may forbid: blocking,
# non-blocking and persistent, of arrays and of objects.
COLLECTIVES = tuple(
    name for name in (*OF_ARRAYS, *OF_OBJECTS, *NONBLOCKING_COLLECTIVES) if "barrier" not in name.lower()
)

SIZES = (  # of arrays: ranks, values, dtype
    (1, 3, "float64"),
    (2, 4, "float64"),
    (2, 1, "float32"),
    (3, 7, "float32"),
    (4, 3, "float64"),
    (4, 8, "float32"),
    (4, 1001, "float64"),
)
SENDS = "Send", "Isend", "Ssend", "Sendrecv", "send", "isend", "ssend", "sendrecv"
SMALL_OBJECTS = 64  # bytes: a number from each rank


def all_but(*allowed: str) -> tuple[str, ...]:
    """Return the collectives without the allowed ones."""
    return tuple(name for name in COLLECTIVES if name not in allowed)


def named(arguments: Mapping[str, tuple[Any, ...]]) -> Cases:
    """Return the cases of a function without ranks: the arguments by what is special about them."""
    return lambda: [Case(label, (argument,)) for label, argument in arguments.items()]


def calls(function: Callable[..., Any], *arguments: tuple[Any, ...]) -> Cases:
    """Return the cases of a function without ranks; a label says what each parameter is."""
    names = inspect.signature(function).parameters
    labels = (", ".join(map("{} = {}".format, names, map(_shown, argument))) for argument in arguments)
    return named(dict(zip(labels, arguments, strict=True)))


def _shown(value: Any) -> str:
    is_long = isinstance(value, np.ndarray) and value.size > 12
    return f"array of shape {value.shape}" if is_long else str(value)


def calls_by_rank(function: Callable[..., Any], *others: tuple[Any, ...]) -> Cases:
    """Return cases of a function of a rank, for each rank: its other arguments, after `rank` their number."""
    at = list(inspect.signature(function).parameters).index("rank")
    return calls(
        function, *((*other[:at], rank, *other[at:]) for other in others for rank in range(other[at]))
    )


def cast(value: Any, dtype: Any) -> Any:
    """Return a value with the arrays of floating-point numbers in it, also in lists, in another dtype."""
    if isinstance(value, (list, tuple)):
        return type(value)(cast(item, dtype) for item in value)
    is_float = isinstance(value, np.ndarray) and value.dtype.kind == "f"
    return value.astype(dtype) if is_float else value


def both_dtypes(label: str, *of_ranks: tuple[Any, ...]) -> Iterator[Case]:
    """Yield a case in float64 and one in float32, with a tuple of arguments for each rank."""
    for dtype in "float64", "float32":
        yield Case(f"{label}, {dtype}", cast(of_ranks, dtype))


def normal(seed: int | Sequence[int], *shapes: int | tuple[int, ...]) -> list[np.ndarray]:
    """Return arrays of these shapes with random numbers of the normal distribution."""
    rng = np.random.default_rng(seed)
    return [rng.normal(size=shape) for shape in shapes]


def on_ranks(
    sizes: Iterable[tuple[int, int, str]], arguments: Callable[[int, int, int], tuple[Any, ...]]
) -> Cases:
    """Return a case for each number of ranks, number of values n and dtype.

    `arguments(rank, p, n)` returns the arguments of a rank; their arrays are cast to the dtype.
    """
    return lambda: [
        Case(
            f"{counted(p, 'rank')}, {counted(n, 'value')}, {dtype}",
            cast(tuple(arguments(rank, p, n) for rank in range(p)), dtype),
        )
        for p, n, dtype in sizes
    ]


def moved(outcome: Outcome) -> int:
    """Return the bytes that a rank has sent or received; a call counts with its largest array or object."""
    of_ranks = {name: len(outcome.messages) for name in ("allgather", "gather")}
    counted_calls = (call for call in outcome.calls if call.name in (*COLLECTIVES, *SENDS))
    return sum(of_ranks.get(call.name, 1) * call.most for call in counted_calls)


def weighted_mean(case: Case, pairs: Iterable[tuple[np.ndarray, float]] = ()) -> list[np.ndarray]:
    """Return on each rank the mean of pairs of an array (n,) and its weight; by default, of the arguments."""
    arrays, weights = zip(*(pairs or case.arguments), strict=True)
    mean = np.average(np.array(arrays, float), axis=0, weights=weights)
    return [mean.astype(arrays[0].dtype)] * case.ranks
