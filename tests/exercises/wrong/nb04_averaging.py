"""Wrong answers to the exercises of notebook 04, and the finding that each must get."""

WRONG = [
    # (function, words of the finding, the cell as a student may write it)
    (
        "average_by_allgather",
        "the mean of the ranks' means",
        """
def average_by_allgather(comm, gradient, weight):
    rows = np.empty((comm.size, gradient.size), gradient.dtype)
    comm.Allgather(gradient, rows)
    gradient[:] = rows.mean(axis=0)
""",
    ),
    (
        "average_by_allgather",
        "the plain sum of the gradients",
        """
def average_by_allgather(comm, gradient, weight):
    rows = np.empty((comm.size, gradient.size), gradient.dtype)
    comm.Allgather(gradient, rows)
    gradient[:] = rows.sum(axis=0)
""",
    ),
    (
        "average_by_allgather",
        "as it was before the call",
        """
def average_by_allgather(comm, gradient, weight):
    gradient = (gradient * weight).astype(gradient.dtype)
    rows = np.empty((comm.size, gradient.size), gradient.dtype)
    comm.Allgather(gradient, rows)
    gradient = rows.sum(axis=0)
""",
    ),
    (
        "average_by_allgather",
        "only this rank's part",
        """
def average_by_allgather(comm, gradient, weight):
    gradient *= weight
    rows = np.empty((comm.size, gradient.size), gradient.dtype)
    comm.Allgather(gradient, rows)
    gradient = rows.sum(axis=0)
""",
    ),
    (
        "average_by_allgather",
        "multiply before adding up",
        """
def average_by_allgather(comm, gradient, weight):
    rows = np.empty((comm.size, gradient.size), gradient.dtype)
    comm.Allgather(gradient, rows)
    gradient[:] = rows.sum(axis=0) * weight
""",
    ),
    (
        "average_by_allgather",
        "divided by the number of ranks",
        """
def average_by_allgather(comm, gradient, weight):
    gradient *= weight
    rows = np.empty((comm.size, gradient.size), gradient.dtype)
    comm.Allgather(gradient, rows)
    gradient[:] = rows.mean(axis=0)
""",
    ),
    (
        "average_by_allgather",
        "Allreduce",
        """
def average_by_allgather(comm, gradient, weight):
    from mpi4py import MPI

    gradient *= weight
    comm.Allreduce(MPI.IN_PLACE, gradient)
""",
    ),
    (
        "average_by_root",
        "send it back to every other rank",
        """
def average_by_root(comm, gradient, weight):
    gradient *= weight
    if comm.rank == 0:
        received = np.empty_like(gradient)
        for other in range(1, comm.size):
            comm.Recv(received, source=other)
            gradient += received
    else:
        comm.Send(gradient, dest=0)
""",
    ),
    (
        "average_by_root",
        "receive into another array",
        """
def average_by_root(comm, gradient, weight):
    gradient *= weight
    if comm.rank == 0:
        for other in range(1, comm.size):
            comm.Recv(gradient, source=other)
        for other in range(1, comm.size):
            comm.Send(gradient, dest=other)
    else:
        comm.Send(gradient, dest=0)
        comm.Recv(gradient, source=0)
""",
    ),
    (
        "average_by_root",
        "receive from all ranks first",
        """
def average_by_root(comm, gradient, weight):
    gradient *= weight
    if comm.rank == 0:
        received = np.empty_like(gradient)
        for other in range(1, comm.size):
            comm.Recv(received, source=other)
            gradient += received
            comm.Send(gradient, dest=other)
    else:
        comm.Send(gradient, dest=0)
        comm.Recv(gradient, source=0)
""",
    ),
    (
        "average_by_root",
        "rank 0's own gradient",
        """
def average_by_root(comm, gradient, weight):
    if comm.rank == 0:
        received = np.empty_like(gradient)
        for other in range(1, comm.size):
            comm.Recv(received, source=other)
            gradient += received
        for other in range(1, comm.size):
            comm.Send(gradient, dest=other)
    else:
        gradient *= weight
        comm.Send(gradient, dest=0)
        comm.Recv(gradient, source=0)
""",
    ),
    (
        "average_by_root",
        "every message goes to rank 0",
        """
def average_by_root(comm, gradient, weight):
    gradient *= weight
    own = gradient.copy()
    for first in range(comm.size):
        for other in range(comm.size):
            if first == comm.rank != other:
                comm.Send(own, dest=other)
            elif other == comm.rank != first:
                received = np.empty_like(own)
                comm.Recv(received, source=first)
                gradient += received
""",
    ),
    (
        "average_by_root",
        "wait for each other in a circle",
        """
def average_by_root(comm, gradient, weight):
    gradient *= weight
    if comm.rank == 0:
        received = np.empty_like(gradient)
        for other in range(1, comm.size):
            comm.Recv(received, source=other)
            gradient += received
        for other in range(1, comm.size):
            comm.Send(gradient, dest=other)
    else:
        comm.Recv(gradient, source=0)
        comm.Send(gradient, dest=0)
""",
    ),
    (
        "average_by_root",
        "Bcast",
        """
def average_by_root(comm, gradient, weight):
    gradient *= weight
    if comm.rank == 0:
        received = np.empty_like(gradient)
        for other in range(1, comm.size):
            comm.Recv(received, source=other)
            gradient += received
    else:
        comm.Send(gradient, dest=0)
    comm.Bcast(gradient, root=0)
""",
    ),
]
