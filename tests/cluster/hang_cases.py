"""Cells that hang, each with patterns of the report that it must end with."""

SCHEDULE = """from mpi4py import MPI
from labkit.comm import RingComm, run
from labkit.schedules import ring_allreduce
x = np.ones(10)
"""

# What goes wrong -> the cell, and patterns of its message.
HANGS = {
    "one rank misses it": (
        "if rank != 2:\n    comm.Barrier()",
        [r"rank 2 never joined collective #1 \(Barrier\)", r"rank 2 .*it has returned from the cell"],
    ),
    "different counts": (
        "x = np.ones(10 + (rank == 1), dtype=np.float32)\ncomm.Allreduce(x, x.copy())",
        [r"collective #1 with different counts", r"rank 1 is waiting in Allreduce \(#1, 11 float32, SUM\)"],
    ),
    "an Alltoallv with too few counts on one rank": (
        "x, y = np.ones(12), np.zeros(12)\ncomm.Alltoallv([x, [3] * (4 if rank else 3)], [y, [3] * 4])",
        [
            r"rank 0 never joined collective #1 \(Alltoallv, float64\)",
            r"raised ValueError: expecting 4 items, got 3",
        ],
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
    "a schedule on an unwatched communicator": (
        f"{SCHEDULE}if rank != 2:\n    run(MPI.Intracomm(comm), ring_allreduce(size), x)",
        [r"rank 2.* has returned from the cell"],
    ),
    "in a communicator of some ranks": (
        "half = comm.Split(rank % 2)\nif rank != 3:\n    half.Barrier()",
        [
            r"rank 3 never joined collective #1 \(Barrier\) on the communicator of ranks 1, 3 \(Split\)",
            r"rank 1 is waiting in Barrier",
        ],
    ),
    "in two communicators": (
        "half = comm.Split(rank % 2)\n(half if rank == 0 else comm).Barrier()",
        [
            r"rank 2 never joined collective #1 \(Barrier\) on the communicator of ranks 0, 2 \(Split\)"
            r"|rank 0 never joined collective #\d \(Barrier\)",
            r"rank 0 .*waiting in Barrier \(#1\)",
        ],
    ),
    "a function of another cell": (
        "exec(compile('def meet(comm):\\n    comm.Barrier()\\n', '<string>', 'exec'))\n"
        "if rank:\n    meet(comm)",
        [r"ranks 1–3 are waiting in Barrier \(#1\) at cell line 4: `meet\(comm\)` via cell line 2"],
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

FUNCTION = """def f(*_):
    from mpi4py import MPI
    import numpy as np
    comm = MPI.COMM_WORLD
    if comm.rank != 2:
"""
IMPORTS = "from mpi4py import MPI\nimport ctypes\nx = np.ones(4)\n"
WINDOW = "MPI.Win.Allocate(8, comm=comm)"
# Where MPI may be called by one thread only, no other thread can make a call that its rank leaves.
CANNOT_LEAVE = "%px from mpiwatch import library_calls; library_calls.leave = None"
STUCK = "MPI.Intracomm(comm).Barrier()"  # of a communicator that is not watched

# What stays inside MPI, where nothing can end it -> the cell, after CANNOT_LEAVE, and its message's pattern.
STUCK_IN_MPI = {
    "a barrier": (
        f"%%px\n{IMPORTS}if rank != 2:\n    {STUCK}",
        r"ranks 0, 1, 3 are in Barrier at cell line 6: `MPI.Intracomm",
    ),
    "one rank in MPI, the others in a watched call": (
        f"%%px\n{IMPORTS}if rank == 2:\n    {STUCK}\ncomm.Barrier()",
        r"rank 2 never joined collective #1 \(Barrier\)[\s\S]*it is in Barrier at cell line 6",
    ),
    "%px": (
        f"%px from mpi4py import MPI; {STUCK} if rank != 2 else 0",
        r"ranks 0, 1, 3 are in Barrier",
    ),
    "--noblock": (
        f"code = '''{IMPORTS}if rank != 2:\n    {STUCK}'''\n"
        "get_ipython().run_cell_magic('px', '--noblock', code).get()",
        r"ranks 0, 1, 3 are in Barrier at cell line \d",
    ),
    "apply_sync": (
        f"{FUNCTION}        {STUCK}\nrc[:].apply_sync(f)",
        r"ranks 0, 1, 3 are in Barrier at cell",
    ),
    "map": (
        f"{FUNCTION}        {STUCK}\nrc[:].map_sync(f, range(4))",
        r"ranks 0, 1, 3 are in Barrier at cell",
    ),
    "execute": (
        f"rc[:].execute('''{IMPORTS}if rank != 2:\n    {STUCK}''', block=False).get()",
        r"ranks 0, 1, 3 are in Barrier at cell line 5",
    ),
}
# Calls that end by themselves, so that ranks keep their variables.
WATCHED = {
    "a window": (
        f"%%px\n{IMPORTS}if rank != 2:\n    w = {WINDOW}",
        r"rank 2 never joined collective #1 \(Win.Allocate\)[\s\S]*at cell line 6: `w = MPI.Win.Allocate",
    ),
    "a fence": (
        f"%%px\n{IMPORTS}w = {WINDOW}\nif rank != 2:\n    w.Fence()",
        r"ranks 0, 1, 3 are in Fence at cell line 7: `w.Fence\(\)`",
    ),
    "a lock": (
        f"%%px\n{IMPORTS}w = {WINDOW}\nif rank == 2:\n    w.Lock(0)\ncomm.Barrier()\n"
        "if rank == 1:\n    w.Lock(0)",
        r"rank 1 is in Lock at cell line 10: `w.Lock\(0\)`",
    ),
    "a file": (
        f"%%px\n{IMPORTS}if rank != 2:\n    MPI.File.Open(comm, 'never', MPI.MODE_CREATE | MPI.MODE_RDWR)",
        r"rank 2 never joined collective #1 \(File.Open\)[\s\S]*at cell line 6",
    ),
    "a write": (
        f"%%px\n{IMPORTS}import os\nf = MPI.File.Open(comm, os.devnull, MPI.MODE_RDWR)\n"
        "if rank != 2:\n    f.Write_all(x)",
        r"ranks 0, 1, 3 are in Write_all at cell line 8",
    ),
    "a communicator that is not watched": (
        f"%%px\n{IMPORTS}raw = MPI.Intracomm(comm)\nif rank != 2:\n    raw.Barrier()",
        r"ranks 0, 1, 3 are in Barrier at cell line 7",
    ),
    "a group of a communicator that is not watched": (
        f"%%px\n{IMPORTS}raw = MPI.Intracomm(comm)\nif rank != 2:\n    raw.Create_group(comm.Get_group())",
        r"ranks 0, 1, 3 are waiting in Create_group \(for rank 2\) at cell line 7",
    ),
    "a part of a communicator that is not watched": (
        f"%%px\n{IMPORTS}raw = MPI.Intracomm(comm)\nif rank != 2:\n    raw.Split(rank)",
        r"is waiting in Split: rank 2 has not called it",
    ),
    "a window of a communicator that is not watched": (
        f"%%px\n{IMPORTS}raw = MPI.Intracomm(comm)\nif rank != 2:\n    MPI.Win.Allocate(8, comm=raw)",
        r"is waiting in Win.Allocate: rank 2 has not called it",
    ),
    "a merger": (
        f"%%px\n{IMPORTS}half = comm.Split(rank // 2)\n"
        "both = half.Create_intercomm(0, comm, 2 - rank // 2 * 2)\n"
        "if rank != 2:\n    both.Merge()",
        r"is waiting in Merge: rank 2 has not called it",
    ),
    "processes that only some ranks start": (
        f"%%px\n{IMPORTS}if rank != 2:\n    comm.Spawn('true')",
        r"is waiting in Spawn: rank 2 has not called it",
    ),
    "Idup": (
        f"%%px\n{IMPORTS}raw = MPI.Intracomm(comm)\nif rank != 2:\n    raw.Idup()[1].Wait()",
        r"ranks 0, 1, 3 are waiting for a request at cell line 7",
    ),
    "a buffer of Bsend": (
        f"%%px\n{IMPORTS}MPI.Attach_buffer(np.empty(2**23, 'b'))\nif rank == 0:\n"
        "    comm.Bsend(np.zeros(2**22, 'b'), 1)\n    MPI.Detach_buffer()",
        r"rank 0 is in Detach_buffer at cell line 8",
    ),
    "a fence in a function": (
        f"%px from mpi4py import MPI; w = {WINDOW}\n{FUNCTION}        w.Fence()\nrc[:].apply_sync(f)",
        r"ranks 0, 1, 3 are in Fence at cell",
    ),
    "COMM_WORLD": (
        f"%%px\n{IMPORTS}comm = MPI.COMM_WORLD\nif rank != 2:\n    comm.Allreduce(x, x.copy())",
        r"rank 2 never joined collective #1 \(Allreduce, 4 float64, SUM\)[\s\S]*at cell line 7",
    ),
    "apply_sync": (
        f"{FUNCTION}        comm.allreduce(1)\nrc[:].apply_sync(f)",
        r"rank 2 never joined collective",
    ),
    "--noblock": (
        "get_ipython().run_cell_magic('px', '--noblock', 'if rank != 2:\\n    comm.Barrier()').get()",
        r"rank 2 never joined collective #1 \(Barrier\)",
    ),
}
