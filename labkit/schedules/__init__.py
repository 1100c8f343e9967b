"""Collectives as schedules: pure functions of the number of ranks that yield rounds of transfers. No MPI.

One schedule, say `schedule = ring_allreduce(8)`, has five readers:

- run, on MPI ranks: `run(comm, schedule, array)` of `labkit.comm`;
- count, in bytes: `count_traffic(schedule, nbytes).busiest`;
- cost, in seconds: `cost(schedule, nbytes, CostModel(2e-5, 1e-9))`;
- simulate, in seconds: `simulate(schedule, nbytes, network).seconds`;
- draw, round by round: `step_through(schedule)` of `labkit.plots.schedules`.

Running and drawing live in packages above this one: this module does not import them. `verify` checks that a
schedule computes the collective that it names.
"""

from collections.abc import Callable

from labkit.algorithms import SCHEDULES
from labkit.schedules import collectives
from labkit.schedules.collectives import (
    halving_doubling,
    hierarchical,
    recursive_doubling,
    ring_allgather,
    ring_allreduce,
    ring_reduce,
    ring_reduce_broadcast,
    ring_reduce_scatter,
    root_allreduce,
    root_broadcast,
    root_reduce,
    tree_allreduce,
    tree_broadcast,
    tree_reduce,
)
from labkit.schedules.cost_model import CostModel, Traffic, cost, cost_terms, count_traffic
from labkit.schedules.fitting import FittedModel, Measurement, fit_cost_model
from labkit.schedules.schedule import (
    Round,
    Schedule,
    Transfer,
    chunk_bounds,
    collective,
    copy_round,
    merge_rounds,
    reduce_round,
)
from labkit.schedules.simulator import (
    Network,
    Simulation,
    TimedTransfer,
    Wait,
    longest_wait,
    lower_bound,
    simulate,
)
from labkit.schedules.verifier import ScheduleError, contents_by_round, verify

# The all-reduce schedules, under the names of the all-reduce algorithms (`--algorithm`).
ALLREDUCE: dict[str, Callable[[int], Schedule]] = {
    name: getattr(collectives, function) for name, function in SCHEDULES.items()
}
