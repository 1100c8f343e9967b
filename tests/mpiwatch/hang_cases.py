"""Cells that hang, each with patterns of the report that it must end with."""

SCHEDULE = """from mpi4py import MPI
from labkit.comm import ALGORITHMS, RingComm, run
from labkit.schedules import ring_allreduce
x = np.ones(10)
"""

# What goes wrong -> the cell, and patterns of its message.
HANGS = {
    "one rank misses it": (
        "if rank != 2:\n    comm.Barrier()",
        [r"rank 2 never joined collective #1 \(Barrier\)", r"rank 2 .*it has returned from the cell"],
    ),
    "a line that contains a bar": (
        "mask, other = np.ones(2, bool), np.zeros(2, bool)\nif rank != 2:\n    comm.allreduce(mask | other)",
        [r"rank 2 never joined collective #1", r"ranks 0, 1, 3 .*line 4: `comm\.allreduce\(mask \| other\)`"],
    ),
    "different operations": (
        "x = np.ones(3)\nif rank == 2:\n    comm.Bcast(x)\nelse:\n    comm.Allreduce(x, x.copy())",
        [
            r"Collective mismatch: the ranks called different operations as collective #1\.",
            r"rank 2 is waiting in Bcast",
            r"ranks 0, 1, 3 are waiting in Allreduce .*line 6",
        ],
    ),
    "different counts": (
        "x = np.ones(10 + (rank == 1), dtype=np.float32)\ncomm.Allreduce(x, x.copy())",
        [r"collective #1 with different counts", r"rank 1 is waiting in Allreduce \(#1, 11 float32, SUM\)"],
    ),
    "an Alltoallv with too few counts on one rank": (
        "x, y = np.ones(12), np.zeros(12)\ncomm.Alltoallv([x, [3] * (4 if rank else 3)], [y, [3] * 4])",
        [
            r"Deadlock: ranks 1–3 have waited in Alltoallv",
            r"rank 0 raised ValueError: expecting 4 items, got 3",
        ],
    ),
    "different dtypes": (
        "x = np.ones(10, dtype='float64' if rank == 3 else 'float32')\ncomm.Allreduce(x, x.copy())",
        [r"collective #1 with different dtypes", r"rank 3 is waiting in Allreduce \(#1, 10 float64, SUM\)"],
    ),
    "different roots": (
        "x = np.ones(10)\ncomm.Bcast(x, root=int(rank == 3))",
        [r"collective #1 with different roots", r"rank 3 is waiting in Bcast \(#1, 10 float64, root 1\)"],
    ),
    "one raises before it": (
        "comm.Barrier()\nif rank == 1:\n    1 / 0\ncomm.allreduce(1)",
        [
            r"rank 1 finished collective #1 \(Barrier, cell line 2\) but never joined #2: ",
            r"#2: it raised ZeroDivisionError: .* at cell line 4",
        ],
    ),
    "an infinite loop": (
        "own = comm.Dup()\nown.deadline_s = 0.4\nwhile rank == 2:\n    pass\nown.Barrier()",
        [r"rank 2 never joined .*: it is at cell line [45]: `"],
    ),
    "a message never sent": (
        "if rank == 0:\n    comm.recv(source=3, tag=7)\ncomm.Barrier()",
        [
            r"rank 0 is waiting in recv \(from rank 3, tag 7\) at cell line 3",
            r"ranks 1–3 are waiting in Barrier",
        ],
    ),
    "one rank has an object without a pickle": (
        "comm.allgather((lambda: 0) if rank == 1 else 1)",
        [r"rank 1 never joined .*: it raised .*pickle.* at cell line 2"],
    ),
    "a schedule that one rank never joins": (
        f"{SCHEDULE}if rank != 2:\n    run(comm, ring_allreduce(size), x)",
        [
            r"rank 2 never joined collective #1 \(ring_allreduce",
            r"waiting in ring_allreduce \(#1, 10 float64",
        ],
    ),
    "an algorithm that one rank never joins": (
        f'{SCHEDULE}if rank != 2:\n    ALGORITHMS["ring"](comm, x, 0.25)',
        [r"rank 2 never joined collective #1 \(ring_allreduce"],
    ),
    "a schedule on an unwatched communicator": (
        f"{SCHEDULE}if rank != 2:\n    run(MPI.Intracomm(comm), ring_allreduce(size), x)",
        [r"rank 2.* has returned from the cell"],
    ),
    "a RingComm around an unwatched communicator": (
        f"{SCHEDULE}if rank != 2:\n    RingComm(MPI.Intracomm(comm)).Allreduce(MPI.IN_PLACE, x)",
        [r"rank 2.* has returned from the cell"],
    ),
    "in a communicator of some ranks": (
        "half = comm.Split(rank % 2)\nif rank != 3:\n    half.Barrier()",
        [r"rank 3 never joined", r"rank 1 is waiting in Barrier"],
    ),
    "Iprobe in a loop": (
        "if rank:\n    comm.deadline_s = 0.3\n    while not comm.Iprobe(source=0, tag=5):\n        pass",
        [
            r"rank \d has called Iprobe [\d,]{5,} times without success: no matching send from rank 0 "
            r"\(tag 5\)",
            r"rank \d has called Iprobe [\d,]+ times without success and is waiting "
            r"for a message \(from rank 0, tag 5\) at cell line [45]: `",
            r"rank 0 has returned from the cell",
        ],
    ),
    "Test in a loop on all ranks": (
        "import numpy as np\nx, request = np.ones(3), None\nrequest = comm.Irecv(x, (rank + 1) % size, 4)\n"
        "while not request.Test():\n    pass",
        [
            r"rank \d has called Test [\d,]{5,} times without success and is waiting for its Irecv "
            r"\(from rank \d, tag 4\), started at cell line 4: `.*at cell line [56]: `",
        ],
    ),
    "testing any request while another rank waits in a collective": (
        "from mpi4py import MPI\nif rank:\n"
        "    requests = [comm.irecv(source=0, tag=tag) for tag in (1, 2)]\n"
        "    while not MPI.Request.testany(requests)[1]:\n        pass\ncomm.Barrier()",
        [
            r"rank 0 .*is waiting in Barrier \(#1\) at cell line 7",
            r"called Test [\d,]{5,} times without success",
        ],
    ),
    "a circle of receives": (
        "comm.deadline_s = 60\nleft = (rank - 1) % size\ngot = comm.recv(source=left, tag=3)\n",
        [
            r"^HangError: ranks 0 → 3 → 2 → 1 → 0 wait for each other in a circle: each waits in recv for",
            r"rank 2 is waiting in recv \(from rank 1, tag 3\) at cell line 4: `got = comm.recv",
        ],
    ),
}

# Rank 0 waits for longer than the deadline, until the others have worked for 5 s.
POLLS_BETWEEN = """import time
alone = comm.Split(rank)
if rank:
    x, end = np.empty(1), time.monotonic() + 5
    request, a = comm.Irecv(x, 0, 8), np.ones((300, 300))
    while time.monotonic() < end:
        {}
    comm.send(1, dest=0)
    request.Wait()
    print(int(x[0]) + 3)
else:
    for source in range(1, size):
        comm.recv(source=source)
    for dest in range(1, size):
        comm.Send(np.ones(1), dest, 8)
    print(4)"""

# What a rank does besides polls -> the line.
WORKING = {
    "computes": "a = a @ a / 300; request.Test(); comm.Iprobe(0, 7)",
    "sleeps": "time.sleep(0.001); request.Test()",
    "sends and receives": "comm.sendrecv(1, dest=rank, source=rank); request.Test(); comm.iprobe(0, 7)",
    "joins collectives": "comm.Iprobe(0, 7); alone.allreduce(1)",
}
