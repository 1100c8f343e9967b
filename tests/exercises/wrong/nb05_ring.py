"""Wrong answers to the exercises of notebook 05, and the finding that each must get."""

CHUNK = """
def chunk(n, p, i):
    return slice(i * n // p, (i + 1) * n // p)

"""

WRONG = [
    # (function, words of the finding, the cell as a student may write it)
    (
        "ring_reduce_scatter",
        "returns its own input of chunk r",
        CHUNK
        + """
def ring_reduce_scatter(comm, array):
    n, p, rank = len(array), comm.size, comm.rank
    received = np.empty_like(array)
    for k in range(p - 1):
        sends, adds = chunk(n, p, (rank - k) % p), chunk(n, p, (rank - k - 1) % p)
        comm.Sendrecv(array[sends], (rank + 1) % p, recvbuf=received[adds], source=(rank - 1) % p)
        array[adds] += received[adds]
    return array[chunk(n, p, rank)]
""",
    ),
    (
        "ring_reduce_scatter",
        "returns chunk r + 1",
        CHUNK
        + """
def ring_reduce_scatter(comm, array):
    n, p, rank = len(array), comm.size, comm.rank
    received = np.empty_like(array)
    for k in range(p - 1):
        sends, adds = chunk(n, p, (rank - k) % p), chunk(n, p, (rank - k - 1) % p)
        comm.Sendrecv(array[sends], (rank + 1) % p, recvbuf=received[adds], source=(rank - 1) % p)
        array[adds] += received[adds]
    return array[chunk(n, p, (rank + 1) % p)]
""",
    ),
    (
        "ring_reduce_scatter",
        "not added up",
        CHUNK
        + """
def ring_reduce_scatter(comm, array):
    n, p, rank = len(array), comm.size, comm.rank
    for k in range(1, p):
        sends, adds = chunk(n, p, (rank - k) % p), chunk(n, p, (rank - k - 1) % p)
        comm.Sendrecv(array[sends], (rank + 1) % p, recvbuf=array[adds], source=(rank - 1) % p)
    return array[chunk(n, p, rank)]
""",
    ),
    (
        "ring_reduce_scatter",
        "a ring in name only",
        CHUNK
        + """
def ring_reduce_scatter(comm, array):
    n, p, rank = len(array), comm.size, comm.rank
    passing, received = array.copy(), np.empty_like(array)
    for _ in range(p - 1):
        comm.Sendrecv(passing, (rank + 1) % p, recvbuf=received, source=(rank - 1) % p)
        array += received
        passing, received = received, passing
    return array[chunk(n, p, rank)]
""",
    ),
    (
        "ring_reduce_scatter",
        "a chunk more than is needed",
        CHUNK
        + """
def ring_reduce_scatter(comm, array):
    n, p, rank = len(array), comm.size, comm.rank
    received = np.empty_like(array)
    for k in range(1, p + 1):
        sends, adds = chunk(n, p, (rank - k) % p), chunk(n, p, (rank - k - 1) % p)
        comm.Sendrecv(array[sends], (rank + 1) % p, recvbuf=received[adds], source=(rank - 1) % p)
        if k < p:
            array[adds] += received[adds]
    return array[chunk(n, p, rank)]
""",
    ),
    (
        "ring_reduce_scatter",
        "its right-hand neighbour",
        CHUNK
        + """
def ring_reduce_scatter(comm, array):
    n, p, rank = len(array), comm.size, comm.rank
    received = np.empty_like(array)
    for k in range(1, p):
        sends, adds = chunk(n, p, (rank + k) % p), chunk(n, p, (rank + k + 1) % p)
        comm.Sendrecv(array[sends], (rank - 1) % p, recvbuf=received[adds], source=(rank + 1) % p)
        array[adds] += received[adds]
    return array[chunk(n, p, rank)]
""",
    ),
    (
        "ring_reduce_scatter",
        "wait for each other in a circle",
        CHUNK
        + """
def ring_reduce_scatter(comm, array):
    n, p, rank = len(array), comm.size, comm.rank
    received = np.empty_like(array)
    for k in range(1, p):
        sends, adds = chunk(n, p, (rank - k) % p), chunk(n, p, (rank - k - 1) % p)
        comm.Recv(received[adds], source=(rank - 1) % p)
        comm.Send(array[sends], dest=(rank + 1) % p)
        array[adds] += received[adds]
    return array[chunk(n, p, rank)]
""",
    ),
    (
        "ring_reduce_scatter",
        "Allreduce",
        CHUNK
        + """
def ring_reduce_scatter(comm, array):
    total = np.empty_like(array)
    comm.Allreduce(array, total)
    return total[chunk(len(array), comm.size, comm.rank)]
""",
    ),
    (
        "ring_allgather",
        "lacks its own chunk",
        CHUNK
        + """
def ring_allgather(comm, own, array):
    n, p, rank = len(array), comm.size, comm.rank
    passing = own
    for k in range(1, p):
        gets = chunk(n, p, (rank - k) % p)
        comm.Sendrecv(passing, (rank + 1) % p, recvbuf=array[gets], source=(rank - 1) % p)
        passing = array[gets]
""",
    ),
    (
        "ring_allgather",
        "takes p - 1 rounds",
        CHUNK
        + """
def ring_allgather(comm, own, array):
    n, p, rank = len(array), comm.size, comm.rank
    array[chunk(n, p, rank)] = own
    for k in range(1, p - 1):
        sends, gets = chunk(n, p, (rank - k + 1) % p), chunk(n, p, (rank - k) % p)
        comm.Sendrecv(array[sends], (rank + 1) % p, recvbuf=array[gets], source=(rank - 1) % p)
""",
    ),
    (
        "ring_allgather",
        "its right-hand neighbour",
        CHUNK
        + """
def ring_allgather(comm, own, array):
    n, p, rank = len(array), comm.size, comm.rank
    array[chunk(n, p, rank)] = own
    for k in range(1, p):
        gets = chunk(n, p, (rank - k) % p)
        comm.Sendrecv(own, (rank + k) % p, recvbuf=array[gets], source=(rank - k) % p)
""",
    ),
    (
        "ring_allgather",
        "as it was before the call",
        CHUNK
        + """
def ring_allgather(comm, own, array):
    n, p, rank = len(array), comm.size, comm.rank
    array = array.copy()
    array[chunk(n, p, rank)] = own
    for k in range(1, p):
        sends, gets = chunk(n, p, (rank - k + 1) % p), chunk(n, p, (rank - k) % p)
        comm.Sendrecv(array[sends], (rank + 1) % p, recvbuf=array[gets], source=(rank - 1) % p)
""",
    ),
    (
        "ring_allgather",
        "allgather",
        """
def ring_allgather(comm, own, array):
    array[:] = np.concatenate(comm.allgather(own))
""",
    ),
    (
        "ring_allgather",
        "wait for each other in a circle",
        CHUNK
        + """
def ring_allgather(comm, own, array):
    n, p, rank = len(array), comm.size, comm.rank
    array[chunk(n, p, rank)] = own
    for k in range(1, p):
        sends, gets = chunk(n, p, (rank - k + 1) % p), chunk(n, p, (rank - k) % p)
        comm.Recv(array[gets], source=(rank - 1) % p)
        comm.Send(array[sends], dest=(rank + 1) % p)
""",
    ),
    (
        "ring_traffic",
        "add what it receives",
        """
def ring_traffic(n, p):
    sizes = np.diff(np.arange(p + 1) * n // p)
    return 2 * n - sizes - np.roll(sizes, -1)
""",
    ),
    (
        "ring_traffic",
        "twice what each rank sends",
        """
def ring_traffic(n, p):
    sizes = np.diff(np.arange(p + 1) * n // p)
    return 2 * (2 * n - sizes - np.roll(sizes, -1))
""",
    ),
    (
        "ring_traffic",
        "some chunks have one value more",
        """
def ring_traffic(n, p):
    return np.full(p, 4 * (p - 1) * (n // p))
""",
    ),
    (
        "ring_traffic",
        "whole arrays",
        """
def ring_traffic(n, p):
    return np.full(p, 4 * (p - 1) * n)
""",
    ),
    (
        "ring_traffic",
        "one half of the ring",
        """
def ring_traffic(n, p):
    sent = n - np.diff(np.arange(p + 1) * n // p)
    return sent + np.roll(sent, 1)
""",
    ),
]
