"""Everything that touches MPI: averaging gradients, running schedules, data sets for every rank.

Unless its docstring says otherwise, a function is collective: all ranks of the communicator call it, in the
same order.
"""

import mpiwatch
from labkit.comm.aggregate import AGGREGATES
from labkit.comm.averaging import (
    ALGORITHMS,
    Averages,
    Averaging,
    average,
    check_before_averaging,
)
from labkit.comm.counting import CountedTraffic, CountingComm
from labkit.comm.datasets import SharedSet, all_or_none, fetch
from labkit.comm.emulation import EmulatedComm, Link, parse_link
from labkit.comm.running import run
from labkit.comm.scheduled import RingComm, ScheduledComm
from labkit.comm.shared_memory import shared_array
from labkit.comm.slow_link import Nets, nets_with_a_slow_link
from mpiwatch.layers import CollectiveError, raise_together, sleeping_barrier

mpiwatch.register("labkit.comm", wraps=True)
