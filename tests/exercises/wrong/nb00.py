"""Plausible wrong answers to the exercises of notebook 00, and words of the finding that each must get."""

WRONG = [
    (
        "my_items",
        "every rank starts at item 0",
        """
def my_items(n, rank, size):
    return list(range(0, n, size))
""",
    ),
    (
        "my_items",
        "the step is 4 for any number of ranks",
        """
def my_items(n, rank, size):
    return [k for k in range(n) if k % 4 == rank]
""",
    ),
    (
        "my_items",
        "a block of neighbouring items",
        """
def my_items(n, rank, size):
    each = n // size
    stop = n if rank == size - 1 else (rank + 1) * each
    return list(range(rank * each, stop))
""",
    ),
    (
        "my_items",
        "the last item is on no rank",
        """
def my_items(n, rank, size):
    return list(range(rank, n - 1, size))
""",
    ),
    (
        "my_items",
        "the items start at 1",
        """
def my_items(n, rank, size):
    return [k for k in range(1, n + 1) if (k - 1) % size == rank]
""",
    ),
    (
        "shift_right",
        "wait for each other in a circle",
        """
def shift_right(comm, x):
    incoming = np.empty_like(x)
    comm.Recv(incoming, source=(comm.rank - 1) % comm.size)
    comm.Send(x, dest=(comm.rank + 1) % comm.size)
    return incoming
""",
    ),
    (
        "shift_right",
        "each waits in Send",
        """
def shift_right(comm, x):
    incoming = np.empty_like(x)
    comm.Send(x, dest=(comm.rank + 1) % comm.size)
    comm.Recv(incoming, source=(comm.rank - 1) % comm.size)
    return incoming
""",
    ),
    (
        "shift_right",
        "the arrays went to the left",
        """
def shift_right(comm, x):
    incoming = np.empty_like(x)
    comm.Sendrecv(x, dest=(comm.rank - 1) % comm.size, recvbuf=incoming, source=(comm.rank + 1) % comm.size)
    return incoming
""",
    ),
    (
        "shift_right",
        "nvalid rank",
        """
def shift_right(comm, x):
    incoming = np.empty_like(x)
    comm.Sendrecv(x, dest=comm.rank + 1, recvbuf=incoming, source=comm.rank - 1)
    return incoming
""",
    ),
    (
        "shift_right",
        "changes its argument",
        """
def shift_right(comm, x):
    comm.Sendrecv_replace(x, dest=(comm.rank + 1) % comm.size, source=(comm.rank - 1) % comm.size)
    return x
""",
    ),
    (
        "shift_right",
        "each rank has its own array",
        """
def shift_right(comm, x):
    incoming = np.empty_like(x)
    comm.Sendrecv(x, dest=(comm.rank + 1) % comm.size, recvbuf=incoming, source=(comm.rank - 1) % comm.size)
    return x
""",
    ),
    (
        "shift_right",
        "which does the exercise by itself",
        """
def shift_right(comm, x):
    return comm.allgather(x)[comm.rank - 1]
""",
    ),
    (
        "shift_right",
        "one message to rank",
        """
def shift_right(comm, x):
    inboxes = [np.empty_like(x) for _ in range(comm.size)]
    requests = [comm.Irecv(inboxes[other], source=other) for other in range(comm.size)]
    requests += [comm.Isend(x, dest=other) for other in range(comm.size)]
    for request in requests:
        request.Wait()
    return inboxes[comm.rank - 1]
""",
    ),
    (
        "broadcast",
        "every rank holds the x of rank 0",
        """
def broadcast(comm, x, root):
    if comm.rank == 0:
        for other in range(1, comm.size):
            comm.Send(x, dest=other)
    else:
        comm.Recv(x, source=0)
""",
    ),
    (
        "broadcast",
        "x is unchanged",
        """
def broadcast(comm, x, root):
    if comm.rank == root:
        for other in range(comm.size):
            if other != root:
                comm.send(x, dest=other)
    else:
        x = comm.recv(source=root)
""",
    ),
    (
        "broadcast",
        "which does the exercise by itself",
        """
def broadcast(comm, x, root):
    comm.Bcast(x, root=root)
""",
    ),
    (
        "broadcast",
        "sends to itself",
        """
def broadcast(comm, x, root):
    requests = []
    if comm.rank == root:
        requests = [comm.Isend(x.copy(), dest=other) for other in range(comm.size)]
    if comm.rank != root:
        comm.Recv(x, source=root)
    else:
        comm.Recv(x.copy(), source=root)
    for request in requests:
        request.Wait()
""",
    ),
    (
        "broadcast",
        "is waiting in Recv",
        """
def broadcast(comm, x, root):
    if comm.rank == root:
        for other in range(comm.size - 1):
            if other != root:
                comm.Send(x, dest=other)
    else:
        comm.Recv(x, source=root)
""",
    ),
    (
        "broadcast",
        "messages; one to each rank",
        """
def broadcast(comm, x, root):
    if comm.rank == root:
        for other in range(comm.size):
            if other != root:
                comm.Send(x, dest=other)
                comm.Send(x, dest=other)
    else:
        comm.Recv(x, source=root)
        comm.Recv(x, source=root)
""",
    ),
    (
        "missing_ranks",
        "these are the ranks that wait",
        """
def missing_ranks(report):
    waiting = [state for state in report["ranks"] if state["activity"] == "WAITING_IN_COLLECTIVE"]
    return [state["rank"] for state in waiting], waiting[0]["calls"][-1]["operation"]
""",
    ),
    (
        "missing_ranks",
        "the last one that a missing rank called",
        """
def missing_ranks(report):
    waiting = [
        state
        for state in report["ranks"]
        if state["activity"] == "WAITING_IN_COLLECTIVE"
        and state["calls"][-1]["communicator"] == report["communicator"]
    ]
    number = max(state["calls"][-1]["number"] for state in waiting)
    joined = [state for state in waiting if state["calls"][-1]["number"] == number]
    missing = [state["rank"] for state in report["ranks"] if state not in joined]
    return missing, report["ranks"][missing[0]]["calls"][-1]["operation"]
""",
    ),
    (
        "missing_ranks",
        "a rank that waits in an earlier collective",
        """
def missing_ranks(report):
    waiting = [state for state in report["ranks"] if state["activity"] == "WAITING_IN_COLLECTIVE"]
    missing = [state["rank"] for state in report["ranks"] if state not in waiting]
    return missing, waiting[0]["calls"][-1]["operation"]
""",
    ),
    (
        "missing_ranks",
        "each communicator counts its own calls",
        """
def missing_ranks(report):
    waiting = [state for state in report["ranks"] if state["activity"] == "WAITING_IN_COLLECTIVE"]
    number = max(state["calls"][-1]["number"] for state in waiting)
    joined = [state for state in waiting if state["calls"][-1]["number"] == number]
    missing = [state["rank"] for state in report["ranks"] if state not in joined]
    return missing, joined[0]["calls"][-1]["operation"]
""",
    ),
    (
        "missing_ranks",
        "the reporter is the rank that wrote the report",
        """
def missing_ranks(report):
    waiting = [state for state in report["ranks"] if state["activity"] == "WAITING_IN_COLLECTIVE"]
    return [report["reporter"]], waiting[0]["calls"][-1]["operation"]
""",
    ),
    (
        "missing_ranks",
        "only one missing rank",
        """
def missing_ranks(report):
    waiting = [
        state
        for state in report["ranks"]
        if state["activity"] == "WAITING_IN_COLLECTIVE"
        and state["calls"][-1]["communicator"] == report["communicator"]
    ]
    number = max(state["calls"][-1]["number"] for state in waiting)
    joined = [state for state in waiting if state["calls"][-1]["number"] == number]
    missing = [state["rank"] for state in report["ranks"] if state not in joined]
    return missing[:1], joined[0]["calls"][-1]["operation"]
""",
    ),
]
