"""Everything that touches MPI: averaging gradients, running schedules, data sets for every rank.

Unless its docstring says otherwise, a function is collective: all ranks of the communicator call it, in the
same order.
"""

import mpiwatch
from labkit.comm.averaging.aggregate import AGGREGATES
from labkit.comm.averaging.algorithms import (
    ALGORITHMS,
    Averaging,
    algorithm,
    allocate_gradient,
    gradient_factor,
)
from labkit.comm.averaging.allgather import allgather, mpi_allgather
from labkit.comm.averaging.allreduce import Algorithm, mpi_allreduce
from labkit.comm.averaging.average import average, check_before_averaging
from labkit.comm.averaging.shared_memory import shared_array, shared_memory
from labkit.comm.averaging.startable import STARTABLE, Started, startable
from labkit.comm.data.once import once_per_node
from labkit.comm.data.scatter import scatter
from labkit.comm.data.shared_set import SharedSet, fetch
from labkit.comm.emulation.communicator import EmulatedComm
from labkit.comm.emulation.links import Link, parse_link
from labkit.comm.output import print_by_rank
from labkit.comm.running.communicators import (
    HalvingDoublingComm,
    RecursiveDoublingComm,
    RingComm,
    RootComm,
    ScheduledComm,
    TreeComm,
)
from labkit.comm.running.counting import CountedTraffic, CountingComm
from labkit.comm.running.executor import run
from labkit.comm.running.reference import run_reference
from labkit.comm.tuning.auto import auto, choose
from mpiwatch.errors import CollectiveError, raise_together
from mpiwatch.waiting import sleeping_barrier

mpiwatch.wrappers.append("labkit.comm")

__all__ = [
    "AGGREGATES",
    "ALGORITHMS",
    "STARTABLE",
    "Algorithm",
    "Averaging",
    "CollectiveError",
    "CountedTraffic",
    "CountingComm",
    "EmulatedComm",
    "HalvingDoublingComm",
    "Link",
    "RecursiveDoublingComm",
    "RingComm",
    "RootComm",
    "ScheduledComm",
    "SharedSet",
    "Started",
    "TreeComm",
    "algorithm",
    "allgather",
    "allocate_gradient",
    "auto",
    "average",
    "check_before_averaging",
    "choose",
    "fetch",
    "gradient_factor",
    "mpi_allgather",
    "mpi_allreduce",
    "once_per_node",
    "parse_link",
    "print_by_rank",
    "raise_together",
    "run",
    "run_reference",
    "scatter",
    "shared_array",
    "shared_memory",
    "sleeping_barrier",
    "startable",
]
