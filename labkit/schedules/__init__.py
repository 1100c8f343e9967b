"""Collectives as schedules: pure functions of the number of ranks that yield rounds of transfers."""

from collections.abc import Callable

from labkit.schedules.doubling import halving_doubling, recursive_doubling
from labkit.schedules.hierarchy import hierarchical
from labkit.schedules.ring import (
    direct_allgather,
    ring_allgather,
    ring_allreduce,
    ring_reduce,
    ring_reduce_scatter,
)
from labkit.schedules.root import root_allreduce, root_broadcast, root_reduce
from labkit.schedules.schedule import Kind, Round, Schedule, Transfer, adding, bounds, collective, copying
from labkit.schedules.tree import tree_allreduce, tree_broadcast, tree_reduce
from labkit.schedules.verifier import ScheduleError, holdings, verify

# Allreduce under the names that the ways to average have.
ALLREDUCE: dict[str, Callable[[int], Schedule]] = {
    "root": root_allreduce,
    "ring": ring_allreduce,
    "tree": tree_allreduce,
    "recursive-doubling": recursive_doubling,
    "halving-doubling": halving_doubling,
}

__all__ = [
    "ALLREDUCE",
    "Kind",
    "Round",
    "Schedule",
    "ScheduleError",
    "Transfer",
    "adding",
    "bounds",
    "collective",
    "copying",
    "direct_allgather",
    "halving_doubling",
    "hierarchical",
    "holdings",
    "recursive_doubling",
    "ring_allgather",
    "ring_allreduce",
    "ring_reduce",
    "ring_reduce_scatter",
    "root_allreduce",
    "root_broadcast",
    "root_reduce",
    "tree_allreduce",
    "tree_broadcast",
    "tree_reduce",
    "verify",
]
