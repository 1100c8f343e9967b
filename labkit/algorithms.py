"""The all-reduce algorithms that average gradients: the one list of their names, and which function is each.

It loads neither NumPy nor MPI: the help of `labkit train` names the algorithms, and has to be quick.
"""

# Written as schedules: their functions in labkit/schedules/collectives.py, which take the number of ranks.
SCHEDULES = {
    "root": "root_allreduce",
    "ring": "ring_allreduce",
    "ring-reduce": "ring_reduce_broadcast",
    "tree": "tree_allreduce",
    "recursive-doubling": "recursive_doubling",
    "halving-doubling": "halving_doubling",
}
# The MPI library's own, and what needs more than a schedule: their functions in labkit/comm/algorithms.py.
OTHERS = {
    "mpi": "mpi",
    "mpi-allgather": "by_mpi_allgather",
    "allgather": "by_allgather",
    "gather-scatter": "gather_scatter",
    "shared-memory": "shared_memory",
}
# One of the others, by a rule: labkit/comm/auto.py.
AUTO = "auto"

NAMES = (*OTHERS, *SCHEDULES, AUTO)
