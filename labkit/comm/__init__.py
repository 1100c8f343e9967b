"""What touches MPI: averaging gradients, data for every rank, errors and lines that ranks share.

Every function here is collective: all ranks of the communicator call it, in the same order.
"""

from labkit.comm.aggregate import AGGREGATES
from labkit.comm.average import agree, average
from labkit.comm.communicators import (
    DoublingComm,
    HalvingDoublingComm,
    RingComm,
    RootComm,
    ScheduledComm,
    TreeComm,
)
from labkit.comm.counting import CountingComm, Traffic
from labkit.comm.emulated import EmulatedComm
from labkit.comm.errors import CollectiveError, raise_together
from labkit.comm.lines import say
from labkit.comm.links import Link, parse_link
from labkit.comm.once import once_per_node
from labkit.comm.quiet import wait_quietly
from labkit.comm.run import run
from labkit.comm.scatter import scatter
from labkit.comm.sets import SharedSet, fetch
from labkit.comm.shared import shared, shared_array
from labkit.comm.ways import WAYS, Averaging, Way, allgather, allreduce, factor, memory, way

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
