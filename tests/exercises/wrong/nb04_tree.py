"""Wrong answers to the exercise on a tree in notebook 04, and the finding that each must get."""

WRONG = [
    (
        "average_by_tree",
        "rank 0 receives from 3 ranks",
        """
def average_by_tree(comm, gradient, weight):
    gradient *= weight
    if comm.rank == 0:
        received = np.empty_like(gradient)
        for other in range(1, comm.size):
            comm.Recv(received, source=other)
            gradient += received
        for other in range(1, comm.size):
            comm.Send(gradient, dest=other)
    else:
        comm.Send(gradient, dest=0)
        comm.Recv(gradient, source=0)
""",
    ),
    (
        "average_by_tree",
        "does not come back down the tree",
        """
def average_by_tree(comm, gradient, weight):
    gradient *= weight
    received = np.empty_like(gradient)
    distance = 1
    while distance < comm.size:
        if comm.rank % (2 * distance) == distance:
            comm.Send(gradient, dest=comm.rank - distance)
        elif comm.rank % (2 * distance) == 0 and comm.rank + distance < comm.size:
            comm.Recv(received, source=comm.rank + distance)
            gradient += received
        distance *= 2
""",
    ),
    (
        "average_by_tree",
        "source=comm.rank + distance",
        """
def average_by_tree(comm, gradient, weight):  # only for a power of two
    gradient *= weight
    received = np.empty_like(gradient)
    distances = [1 << k for k in range((comm.size - 1).bit_length())]
    for distance in distances:
        if comm.rank % (2 * distance) == distance:
            comm.Send(gradient, dest=comm.rank - distance)
        elif comm.rank % (2 * distance) == 0:
            comm.Recv(received, source=comm.rank + distance)
            gradient += received
    for distance in reversed(distances):
        if comm.rank % (2 * distance) == distance:
            comm.Recv(gradient, source=comm.rank - distance)
        elif comm.rank % (2 * distance) == 0:
            comm.Send(gradient, dest=comm.rank + distance)
""",
    ),
    (
        "average_by_tree",
        "from the largest distance to the smallest",
        """
def average_by_tree(comm, gradient, weight):
    gradient *= weight
    received = np.empty_like(gradient)
    distances = [1 << k for k in range((comm.size - 1).bit_length())]
    for distance in distances:
        if comm.rank % (2 * distance) == distance:
            comm.Send(gradient, dest=comm.rank - distance)
        elif comm.rank % (2 * distance) == 0 and comm.rank + distance < comm.size:
            comm.Recv(received, source=comm.rank + distance)
            gradient += received
    for distance in distances:
        if comm.rank % (2 * distance) == distance:
            comm.Recv(gradient, source=comm.rank - distance)
        elif comm.rank % (2 * distance) == 0 and comm.rank + distance < comm.size:
            comm.Send(gradient, dest=comm.rank + distance)
""",
    ),
    (
        "average_by_tree",
        "rank 0 sends to 3 ranks",
        """
def average_by_tree(comm, gradient, weight):
    gradient *= weight
    received = np.empty_like(gradient)
    distance = 1
    while distance < comm.size:
        if comm.rank % (2 * distance) == distance:
            comm.Send(gradient, dest=comm.rank - distance)
        elif comm.rank % (2 * distance) == 0 and comm.rank + distance < comm.size:
            comm.Recv(received, source=comm.rank + distance)
            gradient += received
        distance *= 2
    if comm.rank == 0:
        for other in range(1, comm.size):
            comm.Send(gradient, dest=other)
    else:
        comm.Recv(gradient, source=0)
""",
    ),
    (
        "average_by_tree",
        "calls `comm.Allreduce_init`",
        """
def average_by_tree(comm, gradient, weight):
    gradient *= weight
    total = np.empty_like(gradient)
    request = comm.Allreduce_init(gradient, total)
    request.Start()
    request.Wait()
    request.Free()
    gradient[:] = total
""",
    ),
]
