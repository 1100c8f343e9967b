"""Collectives as schedules: pure functions of the number of ranks that yield rounds of transfers."""

from labkit.schedules.ring import ring_allgather, ring_allreduce, ring_reduce_scatter
from labkit.schedules.schedule import Kind, Round, Schedule, Transfer, adding, bounds, collective, copying

__all__ = [
    "Kind",
    "Round",
    "Schedule",
    "Transfer",
    "adding",
    "bounds",
    "collective",
    "copying",
    "ring_allgather",
    "ring_allreduce",
    "ring_reduce_scatter",
]
