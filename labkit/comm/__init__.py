"""What touches MPI: averaging gradients, data for every rank, errors and lines that ranks share.

Every function here is collective: all ranks of the communicator call it, in the same order.
"""

from labkit.comm.averaging.aggregate import AGGREGATES
from labkit.comm.averaging.algorithms import WAYS, Averaging, Way, allgather, allreduce, factor, memory, way
from labkit.comm.averaging.average import agree, average
from labkit.comm.averaging.shared_memory import shared, shared_array
from labkit.comm.data.once import once_per_node
from labkit.comm.data.scatter import scatter
from labkit.comm.data.shared_set import SharedSet, fetch
from labkit.comm.emulation.communicator import EmulatedComm
from labkit.comm.emulation.links import Link, parse_link
from labkit.comm.errors import CollectiveError, raise_together
from labkit.comm.output import say
from labkit.comm.quiet import wait_quietly
from labkit.comm.running.communicators import (
    DoublingComm,
    HalvingDoublingComm,
    RingComm,
    RootComm,
    ScheduledComm,
    TreeComm,
)
from labkit.comm.running.counting import CountingComm, Traffic
from labkit.comm.running.executor import run

__all__ = [
    "AGGREGATES",
    "WAYS",
    "Averaging",
    "CollectiveError",
    "CountingComm",
    "DoublingComm",
    "EmulatedComm",
    "HalvingDoublingComm",
    "Link",
    "RingComm",
    "RootComm",
    "ScheduledComm",
    "SharedSet",
    "Traffic",
    "TreeComm",
    "Way",
    "agree",
    "allgather",
    "allreduce",
    "average",
    "factor",
    "fetch",
    "memory",
    "once_per_node",
    "parse_link",
    "raise_together",
    "run",
    "say",
    "scatter",
    "shared",
    "shared_array",
    "wait_quietly",
    "way",
]
