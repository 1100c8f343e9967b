"""What touches MPI: averaging gradients, scattering data, errors and lines that ranks share.

Every function here is collective: all ranks of the communicator call it, in the same order.
"""

from labkit.comm.average import WAYS, Way, agree, allreduce, average
from labkit.comm.errors import CollectiveError, raise_together
from labkit.comm.lines import say
from labkit.comm.quiet import wait_quietly
from labkit.comm.scatter import scatter

__all__ = [
    "WAYS",
    "CollectiveError",
    "Way",
    "agree",
    "allreduce",
    "average",
    "raise_together",
    "say",
    "scatter",
    "wait_quietly",
]
