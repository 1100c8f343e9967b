"""Plausible wrong answers to the exercises of notebook 06, and words of the finding that each must get."""

WRONG = [
    (
        "sent_by_rank",
        "root: rank 0 counts like the others",
        """
def sent_by_rank(p, n, rank):
    return {"root": n if p > 1 else 0, "allgather": (p - 1) * n, "ring": 2 * (p - 1) * n // p}
""",
    ),
    (
        "sent_by_rank",
        "root: every rank counts like rank 0",
        """
def sent_by_rank(p, n, rank):
    return {"root": (p - 1) * n, "allgather": (p - 1) * n, "ring": 2 * (p - 1) * n // p}
""",
    ),
    (
        "sent_by_rank",
        "allgather: passing on its own gradient is only the first round",
        """
def sent_by_rank(p, n, rank):
    root = (p - 1) * n if rank == 0 else n
    return {"root": root, "allgather": n, "ring": 2 * (p - 1) * n // p}
""",
    ),
    (
        "sent_by_rank",
        "ring: this is the reduce-scatter only",
        """
def sent_by_rank(p, n, rank):
    root = (p - 1) * n if rank == 0 else n
    return {"root": root, "allgather": (p - 1) * n, "ring": (p - 1) * n // p}
""",
    ),
    (
        "sent_by_rank",
        "ring: a message of the ring is a chunk",
        """
def sent_by_rank(p, n, rank):
    root = (p - 1) * n if rank == 0 else n
    return {"root": root, "allgather": (p - 1) * n, "ring": 2 * (p - 1) * n}
""",
    ),
    (
        "diagnose",
        "the mean over the steps follows it",
        """
def diagnose(compute_s, transfer_s, expected_s):
    compute, transfer = compute_s.mean(axis=0), transfer_s.mean(axis=0)
    late, slow = compute.max() - np.median(compute), np.median(transfer) - expected_s
    if max(late, slow) <= 0.2 * (np.median(compute) + expected_s):
        return "none", None
    return ("straggler", int(compute.argmax())) if late > slow else ("slow link", None)
""",
    ),
    (
        "diagnose",
        "the first step alone decides",
        """
def diagnose(compute_s, transfer_s, expected_s):
    compute, transfer = compute_s[0], transfer_s[0]
    late, slow = compute.max() - np.median(compute), np.median(transfer) - expected_s
    if max(late, slow) <= 0.2 * (np.median(compute) + expected_s):
        return "none", None
    return ("straggler", int(compute.argmax())) if late > slow else ("slow link", None)
""",
    ),
    (
        "diagnose",
        "not for the shortest",
        """
def diagnose(compute_s, transfer_s, expected_s):
    compute, transfer = np.median(compute_s, axis=0), np.median(transfer_s, axis=0)
    late, slow = compute.max() - np.median(compute), np.median(transfer) - expected_s
    if max(late, slow) <= 0.2 * (np.median(compute) + expected_s):
        return "none", None
    return ("straggler", int(compute.argmin())) if late > slow else ("slow link", None)
""",
    ),
    (
        "diagnose",
        "a slow link gets a rank",
        """
def diagnose(compute_s, transfer_s, expected_s):
    compute, transfer = np.median(compute_s, axis=0), np.median(transfer_s, axis=0)
    late, slow = compute.max() - np.median(compute), np.median(transfer) - expected_s
    if max(late, slow) <= 0.2 * (np.median(compute) + expected_s):
        return "none", None
    return ("straggler", int(compute.argmax())) if late > slow else ("slow link", int(transfer.argmax()))
""",
    ),
    (
        "diagnose",
        "equal ranks get a trouble",
        """
def diagnose(compute_s, transfer_s, expected_s):
    compute, transfer = np.median(compute_s, axis=0), np.median(transfer_s, axis=0)
    late, slow = compute.max() - np.median(compute), np.median(transfer) - expected_s
    return ("straggler", int(compute.argmax())) if late > slow else ("slow link", None)
""",
    ),
    (
        "diagnose",
        "the transfers are not looked at",
        """
def diagnose(compute_s, transfer_s, expected_s):
    compute = np.median(compute_s, axis=0)
    if compute.max() - np.median(compute) <= 0.2 * (np.median(compute) + expected_s):
        return "none", None
    return "straggler", int(compute.argmax())
""",
    ),
    (
        "slow_links",
        "both ranks of the slowest pair are named",
        """
def slow_links(seconds):
    a, b = np.unravel_index(seconds.argmax(), seconds.shape)
    return sorted([int(a), int(b)])
""",
    ),
    (
        "slow_links",
        "a rank with one slow pair is named",
        """
def slow_links(seconds):
    limit = 2 * seconds[seconds > 0].min()
    return [rank for rank in range(len(seconds)) if seconds[rank].max() > limit]
""",
    ),
    (
        "slow_links",
        "the zeros on the diagonal count as the fastest pair",
        """
def slow_links(seconds):
    p, limit = len(seconds), 2 * seconds.min()
    return [a for a in range(p) if all(seconds[a, b] > limit for b in range(p) if b != a)]
""",
    ),
    (
        "slow_links",
        "the diagonal counts as a pair of each rank",
        """
def slow_links(seconds):
    limit = 2 * seconds[seconds > 0].min()
    return [rank for rank, row in enumerate(seconds) if np.all(row > limit)]
""",
    ),
    (
        "slow_links",
        "some rank is always named",
        """
def slow_links(seconds):
    return [int(seconds.sum(axis=1).argmax())]
""",
    ),
    (
        "time_pairs",
        "each rank has only the times that it measured itself",
        """
def time_pairs(comm, nbytes):
    seconds, buffer = np.zeros((comm.size, comm.size)), np.zeros(nbytes, np.uint8)
    for a in range(comm.size):
        for b in range(a + 1, comm.size):
            comm.Barrier()
            start = perf_counter()
            if comm.rank == a:
                comm.Send(buffer, b)
                comm.Recv(buffer, b)
                seconds[a, b] = seconds[b, a] = perf_counter() - start
            elif comm.rank == b:
                comm.Recv(buffer, a)
                comm.Send(buffer, a)
    return seconds
""",
    ),
    (
        "time_pairs",
        "these are the times of one way",
        """
def time_pairs(comm, nbytes):
    seconds, buffer = np.zeros((comm.size, comm.size)), np.zeros(nbytes, np.uint8)
    for a in range(comm.size):
        for b in range(a + 1, comm.size):
            comm.Barrier()
            start = perf_counter()
            if comm.rank == a:
                comm.Send(buffer, b)
            elif comm.rank == b:
                comm.Recv(buffer, a)
                seconds[a, b] = seconds[b, a] = perf_counter() - start
    return comm.allreduce(seconds)
""",
    ),
    (
        "time_pairs",
        "each time is there twice",
        """
def time_pairs(comm, nbytes):
    seconds, buffer = np.zeros((comm.size, comm.size)), np.zeros(nbytes, np.uint8)
    for a in range(comm.size):
        for b in range(a + 1, comm.size):
            comm.Barrier()
            start = perf_counter()
            if comm.rank == a:
                comm.Send(buffer, b)
                comm.Recv(buffer, b)
            elif comm.rank == b:
                comm.Recv(buffer, a)
                comm.Send(buffer, a)
            if comm.rank in (a, b):
                seconds[a, b] = seconds[b, a] = perf_counter() - start
    return comm.allreduce(seconds)
""",
    ),
    (
        "time_pairs",
        "only pairs (a, b) with a < b have a time",
        """
def time_pairs(comm, nbytes):
    seconds, buffer = np.zeros((comm.size, comm.size)), np.zeros(nbytes, np.uint8)
    for a in range(comm.size):
        for b in range(a + 1, comm.size):
            comm.Barrier()
            start = perf_counter()
            if comm.rank == a:
                comm.Send(buffer, b)
                comm.Recv(buffer, b)
                seconds[a, b] = perf_counter() - start
            elif comm.rank == b:
                comm.Recv(buffer, a)
                comm.Send(buffer, a)
    return comm.allreduce(seconds)
""",
    ),
    (
        "time_pairs",
        "Recv",  # a deadlock: both ranks of a pair receive first
        """
def time_pairs(comm, nbytes):
    seconds, buffer = np.zeros((comm.size, comm.size)), np.zeros(nbytes, np.uint8)
    for a in range(comm.size):
        for b in range(a + 1, comm.size):
            if comm.rank in (a, b):
                other = a + b - comm.rank
                start = perf_counter()
                comm.Recv(buffer, other)
                comm.Send(buffer, other)
                seconds[a, b] = seconds[b, a] = perf_counter() - start
    return seconds
""",
    ),
]
