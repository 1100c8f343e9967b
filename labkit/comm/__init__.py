"""What touches MPI: averaging gradients, data for every rank, errors and lines that ranks share.

Every function here is collective: all ranks of the communicator call it, in the same order.
"""

from labkit.comm.average import WAYS, Way, agree, allreduce, average
from labkit.comm.emulated import EmulatedComm
from labkit.comm.errors import CollectiveError, raise_together
from labkit.comm.lines import say
from labkit.comm.links import Link, parse_link
from labkit.comm.once import once_per_node
from labkit.comm.quiet import wait_quietly
from labkit.comm.run import run
from labkit.comm.scatter import scatter
from labkit.comm.sets import SharedSet, fetch

__all__ = [
    "WAYS",
    "CollectiveError",
    "EmulatedComm",
    "Link",
    "SharedSet",
    "Way",
    "agree",
    "allreduce",
    "average",
    "fetch",
    "once_per_node",
    "parse_link",
    "raise_together",
    "run",
    "say",
    "scatter",
    "wait_quietly",
]
