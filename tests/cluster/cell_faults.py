"""Mistakes in `%%px` cells on four ranks, as students make them, and correct but unusual programs.

They were written without a look at the lab. Each entry of FAULTS is a dict:

name          a short name, unique
cells         texts of cells, without the `%%px` line; the last one is the faulty one (or, for kind "right", the
              unusual one), earlier ones are set-up and correct
kind          "hang", "error", "death" or "right"
ranks         the ranks at fault: those that never came, raised or died, or whose text has to change; [] if all or none
reason        one sentence that a perfect report would say
must_mention  strings that a good report certainly contains. Line numbers count the `%%px` line as line 1, so the first
              line of a text is line 2
after         optional: text of a correct cell that must work afterwards; after a "death", `connect()` comes first
seconds       how long the last cell may take at most, report included
accept        optional: other kinds that are correct, because MPI or the surroundings decide, or because the other
              ranks wait for the one with the error, and the report names both. If one of them is "right" and nothing
              was wrong to be seen, must_mention does not apply
note          optional: what else there is to know
"""

# ruff: noqa: E501 (sentences and cells stay as they are)

AFTER = "assert comm.allreduce(1) == size\n"

FAULTS = []

# ---------------------------------------------------------------------------------------------------------------------
# Messages, and ranks that are missing from a collective
# ---------------------------------------------------------------------------------------------------------------------

FAULTS += [
    {
        "name": "ring_of_large_sends_first",
        "cells": [
            """\
right, left = (rank + 1) % size, (rank - 1) % size
weights = np.full((512, 512), float(rank))
received = np.empty_like(weights)
comm.Send(weights, dest=right)
comm.Recv(received, source=left)
print(f"rank {rank} has the weights of rank {received[0, 0]:.0f}")
"""
        ],
        "kind": "hang",
        "ranks": [],
        "reason": "All four ranks wait in Send (2 MB, too large to be buffered) for their right-hand neighbour, which is itself "
        "in Send and never reaches its Recv.",
        "must_mention": ["Send", "line 5"],
        "after": """\
right, left = (rank + 1) % size, (rank - 1) % size
weights = np.full((512, 512), float(rank))
received = np.empty_like(weights)
comm.Sendrecv(weights, dest=right, recvbuf=received, source=left)
assert received[0, 0] == left
""",
        "seconds": 30,
    },
    {
        "name": "comm_world_from_the_web_and_both_receive_first",
        "cells": [
            """\
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank = comm.Get_rank()
if rank == 0:
    answer = comm.recv(source=1)
    comm.send("ping", dest=1)
elif rank == 1:
    question = comm.recv(source=0)
    comm.send("pong", dest=0)
print(rank, "is done")
"""
        ],
        "kind": "hang",
        "ranks": [0, 1],
        "reason": "Ranks 0 and 1 wait for each other: both are in recv before either has sent (on MPI.COMM_WORLD, which the "
        "cell has put in place of the lab's comm).",
        "must_mention": ["recv", "line 7", "line 10"],
        "after": """\
from mpi4py import MPI

if rank == 0:
    comm.send("ping", dest=1)
    assert comm.recv(source=1) == "pong"
elif rank == 1:
    assert comm.recv(source=0) == "ping"
    comm.send("pong", dest=0)
""",
        "seconds": 30,
        "note": "Replaces `comm` on the engines: without special care the lab's own communicator is out of the game.",
    },
    {
        "name": "any_source_one_message_too_many",
        "cells": [
            """\
from mpi4py import MPI

loss = 1 / (rank + 1)
if rank == 0:
    losses = [loss]
    for _ in range(size):
        losses.append(comm.recv(source=MPI.ANY_SOURCE))
    print("mean loss", sum(losses) / size)
else:
    comm.send(loss, dest=0)
"""
        ],
        "kind": "hang",
        "ranks": [0],
        "reason": "Rank 0 waits in recv from any source for a fourth message, but the other ranks sent three and have "
        "returned from the cell.",
        "must_mention": ["rank 0", "recv", "line 8"],
        "after": """\
from mpi4py import MPI

if rank == 0:
    assert sorted(comm.recv(source=MPI.ANY_SOURCE) for _ in range(size - 1)) == [1, 2, 3]
else:
    comm.send(rank, dest=0)
""",
        "seconds": 30,
    },
    {
        "name": "bcast_met_by_recv",
        "cells": [
            """\
if rank == 0:
    settings = {"lr": 0.1, "epochs": 5}
    comm.bcast(settings, root=0)
else:
    settings = comm.recv(source=0)
print(rank, settings["lr"])
"""
        ],
        "kind": "hang",
        "ranks": [1, 2, 3],
        "reason": "Ranks 1-3 wait in recv for a message from rank 0, but rank 0 calls bcast, which has to be met by bcast.",
        "must_mention": ["recv", "bcast", "line 6"],
        "after": """\
settings = comm.bcast({"lr": 0.1} if rank == 0 else None, root=0)
assert settings == {"lr": 0.1}
""",
        "seconds": 30,
        "note": "The after cell shows whether the lonely bcast of rank 0 is still under way.",
    },
    {
        "name": "early_return_under_time_magic",
        "cells": [
            """\
%%time
def mean_of_all(values):
    if len(values) == 0:
        return 0.0
    total = comm.allreduce(sum(values))
    count = comm.allreduce(len(values))
    return total / count


mine = [10, 11, 12][rank::size]
print("mean", mean_of_all(mine))
"""
        ],
        "kind": "hang",
        "ranks": [3],
        "reason": "Rank 3 has no values, returned early from mean_of_all and never joined the allreduce in which ranks 0-2 wait.",
        "must_mention": ["rank 3", "allreduce", "line 6"],
        "after": AFTER,
        "seconds": 30,
        "note": "`%%time` is line 2 of the cell.",
    },
    {
        "name": "exception_caught_and_barrier_in_finally",
        "cells": [
            """\
rows = {0: "3.5", 1: "4.25", 2: "n/a", 3: "1.0"}
try:
    value = float(rows[rank])
    total = comm.allreduce(value)
    print("total", total)
except ValueError:
    print(f"rank {rank}: skipping a bad row")
finally:
    comm.Barrier()
"""
        ],
        "kind": "hang",
        "ranks": [2],
        "reason": "Rank 2 caught a ValueError, skipped the allreduce in which the others wait, and calls Barrier instead.",
        "must_mention": ["rank 2", "allreduce", "Barrier", "line 5", "line 10"],
        "after": AFTER,
        "seconds": 30,
    },
    {
        "name": "loop_left_when_this_rank_has_converged",
        "cells": [
            """\
x = 4.0**rank  # every rank starts somewhere else
for step in range(100):
    new = 0.5 * (x + 2 / x)  # Newton's method for the root of 2
    mean = comm.allreduce(new) / size
    if abs(new - x) < 1e-6:
        print(f"rank {rank}: converged in step {step}, mean {mean:.6f}")
        break
    x = new
"""
        ],
        "kind": "hang",
        "ranks": [0],
        "reason": "Rank 0 converged first, left the loop and returned from the cell; the others wait for it in the next allreduce.",
        "must_mention": ["rank 0", "allreduce", "line 5"],
        "after": AFTER,
        "seconds": 30,
    },
    {
        "name": "zip_does_not_exhaust_the_generator",
        "cells": [
            """\
def in_step():
    \"\"\"Yield 0, 1, 2 ... and keep the ranks at the same batch.\"\"\"
    batch = 0
    while True:
        comm.Barrier()
        yield batch
        batch += 1


images = [f"img{i:02}.png" for i in range(14)][rank::size]
for image, batch in zip(images, in_step()):
    features = np.full(8, len(image) + batch)
print(f"rank {rank}: {len(images)} images")
"""
        ],
        "kind": "hang",
        "ranks": [2, 3],
        "reason": "Ranks 2 and 3 have 3 images and ended their loop; ranks 0 and 1 have 4 and wait in the fourth Barrier of the "
        "generator.",
        "must_mention": ["Barrier", "line 6"],
        "after": AFTER,
        "seconds": 30,
    },
    {
        "name": "float_equality_and_a_short_circuit",
        "cells": [
            """\
weights = [[0.1, 0.2, 0.3], [0.3, 0.2, 0.1], [0.2, 0.1, 0.3], [0.3, 0.1, 0.2]][rank]
mass = 0.0
for w in weights:
    mass += w

# The sum has to be 0.6 everywhere; otherwise scale by the global sum.
if mass != 0.6 and comm.allreduce(mass) > 0:
    weights = [w / mass for w in weights]
print(rank, repr(mass))
"""
        ],
        "kind": "hang",
        "ranks": [1],
        "reason": "On rank 1 the sum is exactly 0.6, so `and` skipped the allreduce in which ranks 0, 2 and 3 "
        "(0.6000000000000001) wait.",
        "must_mention": ["rank 1", "allreduce", "line 8"],
        "after": AFTER,
        "seconds": 30,
    },
    {
        "name": "each_rank_throws_its_own_dice",
        "cells": [
            """\
import random

from mpi4py import MPI

random.seed(rank)  # other numbers on each rank
gradient = np.array([random.gauss(0, 1) for _ in range(8)])
random.seed(rank)
if random.random() < 0.9:  # leave out the exchange now and then
    comm.Allreduce(MPI.IN_PLACE, gradient)
    gradient /= size
print(rank, gradient[:2])
"""
        ],
        "kind": "hang",
        "ranks": [2],
        "reason": "Rank 2 drew 0.956, skipped the branch and returned; ranks 0, 1 and 3 wait for it in Allreduce.",
        "must_mention": ["rank 2", "Allreduce", "line 10"],
        "after": AFTER,
        "seconds": 30,
    },
    {
        "name": "parameters_visited_in_the_order_of_a_set",
        "cells": [
            """\
from mpi4py import MPI

sizes = {
    "conv1.kernel": 54, "conv1.bias": 6, "conv2.kernel": 864, "conv2.bias": 16, "norm.scale": 17, "norm.shift": 18,
    "fc1.weight": 4800, "fc1.bias": 120, "fc2.weight": 1008, "fc2.bias": 84, "out.weight": 840, "out.bias": 10,
}
frozen = {"norm.scale"}
gradients = {name: np.full(n, float(rank)) for name, n in sizes.items()}
for name in set(sizes) - frozen:
    comm.Allreduce(MPI.IN_PLACE, gradients[name])
    gradients[name] /= size
"""
        ],
        "kind": "hang",
        "ranks": [],
        "reason": "The ranks visit the set of names in different orders (string hashes differ per process), so that their "
        "Allreduce calls have different numbers of elements.",
        "must_mention": ["Allreduce", "line 11"],
        "accept": ["right", "error"],
        "after": AFTER,
        "seconds": 30,
        "note": "Right if all engines have the same PYTHONHASHSEED.",
    },
    {
        "name": "every_rank_has_its_own_best_root",
        "cells": [
            """\
weights = np.full(5, float(rank))
# validation loss of each of the four models on my own samples
losses = [[0.9, 0.4, 0.7, 0.8], [0.8, 0.3, 0.6, 0.9], [0.9, 0.5, 0.6, 0.7], [0.7, 0.6, 0.2, 0.9]][rank]
best = int(np.argmin(losses))
weights = comm.bcast(weights, root=best)
print(f"rank {rank} goes on with the weights of rank {best}")
"""
        ],
        "kind": "hang",
        "ranks": [3],
        "reason": "The ranks disagree about the root of bcast: ranks 0-2 pass root 1, rank 3 passes root 2.",
        "must_mention": ["rank 3", "root", "line 6"],
        "after": AFTER,
        "seconds": 30,
    },
    {
        "name": "allreduce_of_unequal_pieces",
        "cells": [
            """\
samples = np.arange(10.0)
mine = np.array_split(samples, size)[rank]
squares = mine**2
total = np.empty_like(squares)
comm.Allreduce(squares, total)
print(rank, total)
"""
        ],
        "kind": "hang",
        "ranks": [],
        "reason": "The Allreduce calls do not match: 3 float64 on ranks 0 and 1, 2 float64 on ranks 2 and 3.",
        "must_mention": ["Allreduce", "line 6"],
        "accept": ["error"],
        "after": AFTER,
        "seconds": 30,
    },
    {
        "name": "one_rank_has_float32",
        "cells": [
            """\
from mpi4py import MPI


def load(first):
    if first:
        return np.array([0.25, -1.5, 3.0, 0.125], dtype=np.float32)  # from a file of pretrained weights
    return np.zeros(4)


w = load(rank == 0)
comm.Allreduce(MPI.IN_PLACE, w)
print(rank, w)
"""
        ],
        "kind": "hang",
        "ranks": [0],
        "reason": "The Allreduce calls do not match: rank 0 passes 4 float32, ranks 1-3 pass 4 float64.",
        "must_mention": ["rank 0", "float32", "float64", "line 12"],
        "accept": ["error"],
        "after": AFTER,
        "seconds": 30,
    },
    {
        "name": "another_operation_on_rank_0",
        "cells": [
            """\
from mpi4py import MPI

seconds = np.array([0.5 + rank])
worst = np.zeros(1)
if rank == 0:
    comm.Allreduce(seconds, worst, op=MPI.MAX)
    print("slowest rank:", worst[0])
else:
    comm.Allreduce(seconds, worst)
"""
        ],
        "kind": "hang",
        "ranks": [0],
        "reason": "The Allreduce calls do not match: rank 0 uses MAX, ranks 1-3 use SUM, the default.",
        "must_mention": ["rank 0", "MAX", "SUM", "line 7", "line 10"],
        "after": AFTER,
        "seconds": 30,
    },
    {
        "name": "world_ranks_in_a_half",
        "cells": [
            """\
half = comm.Split(rank // 2, rank)
partner = rank ^ 1  # 0 with 1, 2 with 3
loss = half.sendrecv(0.1 * rank, dest=partner, source=partner)
print(f"rank {rank}: my partner's loss is {loss:.1f}")
"""
        ],
        "kind": "error",
        "ranks": [2, 3],
        "reason": "Ranks 2 and 3 use ranks of comm (3 and 2) on the communicator half, which has only ranks 0 and 1.",
        "must_mention": ["line 4", "sendrecv"],
        "after": AFTER,
        "seconds": 30,
    },
    {
        "name": "create_group_without_one_member",
        "cells": [
            """\
trainers = comm.Get_group().Incl([0, 1, 2])
if rank < 2:
    team = comm.Create_group(trainers)
    print(f"rank {rank} is number {team.Get_rank()} of {team.Get_size()} trainers")
elif rank == 3:
    print("rank 3 evaluates")
"""
        ],
        "kind": "hang",
        "ranks": [2],
        "reason": "Ranks 0 and 1 wait in Create_group for rank 2, which belongs to the group but never calls it (`< 2` ought to "
        "be `< 3`).",
        "must_mention": ["rank 2", "Create_group", "line 4"],
        "after": AFTER,
        "seconds": 30,
    },
    {
        "name": "barriers_on_two_communicators",
        "cells": [
            """\
quiet = comm.Dup()  # for the log, so that it does not disturb the training
if rank % 2 == 0:
    x = np.ones(3)
    quiet.Barrier()
else:
    x = np.zeros(3)
    comm.Barrier()
print(rank, x)
"""
        ],
        "kind": "hang",
        "ranks": [],
        "reason": "Ranks 0 and 2 wait in a Barrier of quiet (a Dup of comm), ranks 1 and 3 in a Barrier of comm: two "
        "communicators, so they never meet.",
        "must_mention": ["Barrier", "line 5", "line 8"],
        "after": AFTER,
        "seconds": 30,
    },
    {
        "name": "cart_neighbour_on_the_wrong_side",
        "cells": [
            """\
from mpi4py import MPI

ring = comm.Create_cart([size], periods=[True])
left, right = ring.Shift(0, 1)
mine, halo = np.full(100, float(rank)), np.empty(100)
requests = [ring.Irecv(halo, source=right), ring.Isend(mine, dest=right)]
MPI.Request.Waitall(requests)
print(rank, halo[0])
"""
        ],
        "kind": "hang",
        "ranks": [],
        "reason": "All ranks wait in Waitall for a message from their right-hand neighbour, which sends to its own right, not back.",
        "must_mention": ["Waitall", "line 8"],
        "after": """\
left, right = (rank - 1) % size, (rank + 1) % size
assert comm.sendrecv(rank, dest=right, source=left) == left
""",
        "seconds": 30,
    },
    {
        "name": "intercomm_with_the_wrong_leader",
        "cells": [
            """\
side = rank // 2
half = comm.Split(side, rank)
# the leader of the other side is rank 1 - side?
bridge = half.Create_intercomm(0, comm, 1 - side)
print(rank, "sees", bridge.Get_remote_size(), "ranks on the other side")
"""
        ],
        "kind": "hang",
        "ranks": [0, 1],
        "reason": "Create_intercomm on ranks 0 and 1 names rank 1 of comm as the remote leader, but the leader of the other half "
        "is rank 2 of comm.",
        "must_mention": ["Create_intercomm", "line 5"],
        "accept": ["error"],
        "after": AFTER,
        "seconds": 30,
    },
]

# ---------------------------------------------------------------------------------------------------------------------
# Requests, probes, buffers, windows, files, other processes and threads
# ---------------------------------------------------------------------------------------------------------------------

FAULTS += [
    {
        "name": "request_used_as_if_it_were_the_message",
        "cells": [
            """\
right, left = (rank + 1) % size, (rank - 1) % size
message = comm.irecv(source=left)
comm.isend({"loss": 0.1 * rank}, dest=right)

print(f"rank {rank}: my left neighbour has loss", message["loss"])
"""
        ],
        "kind": "error",
        "ranks": [],
        "reason": "On all ranks, irecv returned a request, which cannot be subscripted; the message comes from message.wait().",
        "must_mention": ["TypeError", "subscriptable", "line 6"],
        "after": """\
right, left = (rank + 1) % size, (rank - 1) % size
request = comm.irecv(source=left)
sent = comm.isend({"loss": 0.1 * rank}, dest=right)
assert request.wait() == {"loss": 0.1 * left}
sent.wait()
""",
        "seconds": 30,
        "note": "The requests of the faulty cell are still open when the after cell runs.",
    },
    {
        "name": "iallreduce_waited_for_on_rank_0_only",
        "cells": [
            """\
mine, total = np.full(100_000, float(rank)), np.zeros(100_000)
request = comm.Iallreduce(mine, total)
busy = sum(i * i for i in range(10_000))  # overlap with some work
if rank == 0:
    request.Wait()
    print("total", total[0])
"""
        ],
        "kind": "hang",
        "ranks": [1, 2, 3],
        "reason": "Rank 0 waits for an Iallreduce that ranks 1-3 have started but never waited for, so it makes no progress there.",
        "must_mention": ["rank 0", "Iallreduce", "line 6"],
        "accept": ["right", "error"],
        "after": AFTER,
        "seconds": 30,
        "note": "Whether rank 0's Wait returns depends on the progress that the MPI makes in the background.",
    },
    {
        "name": "buffer_reused_before_wait",
        "cells": [
            """\
import time

block = np.zeros(500_000)
if rank == 0:
    request = comm.Isend(block, dest=1)
    block[:] = -1.0  # use the array again for the next block
    request.Wait()
elif rank == 1:
    time.sleep(1)
    comm.Recv(block, source=0)
    assert not block.any(), f"expected zeros, got {block[-1]}"
"""
        ],
        "kind": "error",
        "ranks": [1],
        "reason": "The assertion failed on rank 1 because rank 0 overwrote the array of its Isend before Wait.",
        "must_mention": ["rank 1", "AssertionError", "expected zeros", "line 12"],
        "accept": ["right"],
        "after": AFTER,
        "seconds": 30,
    },
    {
        "name": "waitany_goes_on_after_the_last_request",
        "cells": [
            """\
from mpi4py import MPI

if rank == 0:
    names = ["one", "two", "three"]
    sums = np.zeros((size - 1, 2))
    requests = [comm.Irecv(sums[r - 1], source=r) for r in range(1, size)]
    while True:
        i = MPI.Request.Waitany(requests)
        if i == -1:  # nothing left
            break
        print(f"rank {names[i]} sent {sums[i]}")
else:
    comm.Send(np.array([rank, rank**2], dtype=float), dest=0)
"""
        ],
        "kind": "error",
        "ranks": [0],
        "reason": "After the last request Waitany returns MPI.UNDEFINED, not -1, and names[-32766] raises IndexError on rank 0.",
        "must_mention": ["rank 0", "IndexError", "line 12"],
        "after": AFTER,
        "seconds": 30,
    },
    {
        "name": "test_loop_with_the_digits_of_the_tag_swapped",
        "cells": [
            """\
import time

if rank == 1:
    comm.send("the parameters are ready", dest=2, tag=12)
elif rank == 2:
    request = comm.irecv(source=1, tag=21)
    done, note = request.test()
    while not done:
        time.sleep(0.01)
        done, note = request.test()
    print(note)
"""
        ],
        "kind": "hang",
        "ranks": [2],
        "reason": "Rank 2 tests in a loop for a message from rank 1 with tag 21; rank 1 has sent one with tag 12 and returned.",
        "must_mention": ["rank 2", "test"],
        "after": """\
if rank == 1:
    comm.send("the parameters are ready", dest=2, tag=21)
elif rank == 2:
    assert comm.recv(source=1, tag=21) == "the parameters are ready"
""",
        "seconds": 60,
        "note": "The old irecv with tag 21 must not swallow the message of the after cell.",
    },
    {
        "name": "persistent_send_started_once",
        "cells": [
            """\
weights = np.zeros(4)
if rank == 0:
    request = comm.Send_init(weights, dest=1)
    request.Start()
    for epoch in range(3):
        weights += 1
        request.Wait()
elif rank == 1:
    request = comm.Recv_init(weights, source=0)
    for epoch in range(3):
        request.Start()
        request.Wait()
        print("epoch", epoch, weights)
"""
        ],
        "kind": "hang",
        "ranks": [0],
        "reason": "Rank 1 waits in epoch 1 for a second message from rank 0, which started its persistent send only once, before "
        "the loop, and has returned.",
        "must_mention": ["rank 1", "Wait", "line 13"],
        "after": AFTER,
        "seconds": 30,
    },
    {
        "name": "probe_instead_of_iprobe",
        "cells": [
            """\
EVENT = 3
if rank > 0:
    for number in range(rank):
        comm.send((rank, number), dest=0, tag=EVENT)
comm.Barrier()  # now all events are there
if rank == 0:
    events = []
    while comm.probe(tag=EVENT):
        events.append(comm.recv(tag=EVENT))
    print(len(events), "events")
"""
        ],
        "kind": "hang",
        "ranks": [0],
        "reason": "Rank 0 has received all six events and waits in probe for a seventh; the other ranks have returned (iprobe "
        "would return False).",
        "must_mention": ["rank 0", "probe", "line 9"],
        "after": AFTER,
        "seconds": 30,
    },
    {
        "name": "last_rank_gets_the_remainder",
        "cells": [
            """\
n = 10
share = n // size
mine = np.empty(share)
if rank == 0:
    samples = np.arange(float(n))
    for other in range(1, size):
        stop = (other + 1) * share if other < size - 1 else n
        comm.Send(samples[other * share : stop], dest=other)
    mine[:] = samples[:share]
else:
    comm.Recv(mine, source=0)
print(rank, mine)
"""
        ],
        "kind": "error",
        "ranks": [3],
        "reason": "The message of 4 float64 from rank 0 does not fit into rank 3's array of 2 (MPI_ERR_TRUNCATE).",
        "must_mention": ["rank 3", "Recv", "line 12"],
        "after": AFTER,
        "seconds": 30,
    },
    {
        "name": "column_sent_by_a_helper_module",
        "cells": [
            """\
import pathlib
import sys
import tempfile

folder = pathlib.Path(tempfile.gettempdir()) / "strangers_halo"
if rank == 0:
    folder.mkdir(exist_ok=True)
    (folder / "halo_tools.py").write_text('''\\
import numpy as np


def send_right_edge(comm, grid, dest):
    comm.Send(grid[:, -1], dest=dest)


def receive_edge(comm, rows, source):
    edge = np.empty(rows)
    comm.Recv(edge, source=source)
    return edge
''')
comm.Barrier()
sys.path.insert(0, str(folder))
""",
            """\
import halo_tools

grid = np.arange(16.0).reshape(4, 4) + rank
if rank == 0:
    halo_tools.send_right_edge(comm, grid, dest=1)
elif rank == 1:
    print(halo_tools.receive_edge(comm, 4, source=0))
""",
        ],
        "kind": "error",
        "ranks": [0],
        "reason": "On rank 0, Send (halo_tools.py line 5, called at cell line 6) refuses grid[:, -1], which is not contiguous; rank "
        "1 waits for it in Recv.",
        "must_mention": ["rank 0", "contiguous", "halo_tools", "line 6", "line 5"],
        "after": """\
edge = np.empty(4)
if rank == 0:
    comm.Send(np.arange(4.0), dest=1)
elif rank == 1:
    comm.Recv(edge, source=0)
    assert edge[3] == 3
""",
        "seconds": 30,
        "accept": ["hang"],
    },
    {
        "name": "list_in_place_of_an_array",
        "cells": [
            """\
if rank == 0:
    losses = [2.3, 1.9, 1.4, 1.2, 1.1]
    comm.Send(losses, dest=2)
if rank == 2:
    losses = np.zeros(5)
    comm.Recv(losses, source=0)
    print(losses)
"""
        ],
        "kind": "error",
        "ranks": [0],
        "reason": "Send on rank 0 does not take a list of five numbers (send does, or an array); rank 2 waits for it in Recv.",
        "must_mention": ["rank 0", "line 4"],
        "after": """\
if rank == 0:
    comm.Send(np.array([2.3, 1.9, 1.4, 1.2, 1.1]), dest=2)
if rank == 2:
    losses = np.zeros(5)
    comm.Recv(losses, source=0)
    assert losses[4] == 1.1
""",
        "seconds": 30,
        "accept": ["hang"],
    },
    {
        "name": "generator_cannot_be_pickled",
        "cells": [
            """\
if rank == 0:
    rates = (0.1 / 2**k for k in range(5))
else:
    rates = None
rates = comm.bcast(rates, root=0)
print(rank, sum(rates))
"""
        ],
        "kind": "error",
        "ranks": [0],
        "reason": "bcast on rank 0 cannot pickle a generator (TypeError); ranks 1-3 wait in bcast for it.",
        "must_mention": ["rank 0", "generator", "line 6"],
        "after": AFTER,
        "seconds": 30,
        "accept": ["hang"],
    },
    {
        "name": "upper_case_send_lower_case_recv",
        "cells": [
            """\
features = np.linspace(0.5, 1.5, 7)
if rank == 2:
    comm.Send(features, dest=3)
elif rank == 3:
    features = comm.recv(source=2)
    print("mean", features.mean())
"""
        ],
        "kind": "error",
        "ranks": [3],
        "reason": "recv on rank 3 cannot unpickle the raw bytes that rank 2 sent with Send; use Recv, or send on rank 2.",
        "must_mention": ["rank 3", "recv", "line 6"],
        "after": """\
if rank == 2:
    comm.send(np.ones(7), dest=3)
elif rank == 3:
    assert comm.recv(source=2).sum() == 7
""",
        "seconds": 30,
    },
    {
        "name": "second_fence_inside_the_branch",
        "cells": [
            """\
from mpi4py import MPI

table = np.zeros(4)
win = MPI.Win.Create(table, comm=comm)
win.Fence()
if rank == 0:
    for other in range(1, size):
        win.Put(np.full(4, 10.0 * other), other)
    win.Fence()
print(rank, table)
"""
        ],
        "kind": "hang",
        "ranks": [1, 2, 3],
        "reason": "Rank 0 waits in its second Fence, which ranks 1-3 never called: it stands inside `if rank == 0`.",
        "must_mention": ["rank 0", "Fence", "line 10"],
        "after": AFTER,
        "seconds": 30,
        "note": "The window is not freed.",
    },
    {
        "name": "lock_never_unlocked",
        "cells": [
            """\
from mpi4py import MPI

counter = np.zeros(1)
win = MPI.Win.Create(counter, comm=comm)
one = np.ones(1)
if rank == 1:
    win.Lock(0)
    win.Accumulate(one, 0)
    win.Flush(0)
comm.Barrier()
if rank == 2:
    win.Lock(0)
    win.Accumulate(one, 0)
    win.Unlock(0)
comm.Barrier()
print(rank, counter)
"""
        ],
        "kind": "hang",
        "ranks": [1],
        "reason": "Rank 2 waits for the lock on rank 0's window, which rank 1 took at line 8 and never unlocked; the others wait "
        "in Barrier.",
        "must_mention": ["rank 2", "Barrier", "line 16"],
        "after": AFTER,
        "seconds": 30,
        "note": "The MPI decides whether rank 2 waits in Lock (line 13) or in Unlock (line 15).",
    },
    {
        "name": "start_for_two_post_by_one",
        "cells": [
            """\
from mpi4py import MPI

inbox = np.zeros(3)
win = MPI.Win.Create(inbox, comm=comm)
world = comm.Get_group()
if rank == 0:
    win.Start(world.Incl([1, 2]))
    win.Put(np.ones(3), 1)
    win.Put(np.ones(3), 2)
    win.Complete()
elif rank == 1:
    win.Post(world.Incl([0]))
    win.Wait()
    print(inbox)
"""
        ],
        "kind": "hang",
        "ranks": [2],
        "reason": "Rank 0 has started an access epoch for ranks 1 and 2, but rank 2 never called Post and has returned.",
        "must_mention": ["rank 0"],
        "after": AFTER,
        "seconds": 30,
        "note": "The MPI decides whether rank 0 waits in Start (line 8), Put or Complete (line 11).",
    },
    {
        "name": "collective_write_only_if_there_is_something",
        "cells": [
            """\
import os
import tempfile

from mpi4py import MPI

path = os.path.join(tempfile.gettempdir(), "strangers_results.bin")
found = np.arange(3 - rank, dtype="i8")  # rank 3 has found nothing
results = MPI.File.Open(comm, path, MPI.MODE_WRONLY | MPI.MODE_CREATE)
if len(found):
    results.Write_at_all(24 * rank, found)
results.Close()
"""
        ],
        "kind": "hang",
        "ranks": [3],
        "reason": "Ranks 0-2 wait in the collective Write_at_all; rank 3 has nothing to write, skipped it and waits in Close.",
        "must_mention": ["rank 3", "Write_at_all", "line 11"],
        "accept": ["error"],
        "after": AFTER,
        "seconds": 30,
    },
    {
        "name": "spawned_child_knows_nothing_of_mpi",
        "cells": [
            """\
import sys

from mpi4py import MPI

if rank == 0:
    child = MPI.COMM_SELF.Spawn(sys.executable, args=["-c", "print('hello from the child')"], maxprocs=1)
    print("spawned", child.Get_remote_size())
    child.Disconnect()
comm.Barrier()
"""
        ],
        "kind": "hang",
        "ranks": [0],
        "reason": "Rank 0 waits in Spawn for a child that never initialises MPI (it does not import mpi4py.MPI); the others wait in "
        "Barrier.",
        "must_mention": ["rank 0", "Spawn", "line 7"],
        "accept": ["error", "death"],
        "after": AFTER,
        "seconds": 60,
    },
    {
        "name": "accept_and_nobody_connects",
        "cells": [
            """\
from mpi4py import MPI

if rank == 3:
    port = MPI.Open_port()
    print("waiting for the viewer at", port)
    viewer = MPI.COMM_SELF.Accept(port)
    viewer.send(np.zeros(3), dest=0)
    viewer.Disconnect()
"""
        ],
        "kind": "hang",
        "ranks": [3],
        "reason": "Rank 3 waits in Accept for a program that connects to its port, and nobody does.",
        "must_mention": ["rank 3", "Accept", "line 7"],
        "accept": ["error", "death"],
        "after": AFTER,
        "seconds": 60,
    },
    {
        "name": "listener_thread_never_hears_anything",
        "cells": [
            """\
import threading

inbox = []


def listen():
    while True:
        word = comm.recv(source=0, tag=99)
        if word == "stop":
            break
        inbox.append(word)


if rank == 2:
    listener = threading.Thread(target=listen)
    listener.start()
if rank == 0:
    comm.send("hello", dest=2, tag=99)
if rank == 2:
    listener.join()
comm.Barrier()
print(rank, inbox)
"""
        ],
        "kind": "hang",
        "ranks": [2],
        "reason": "Rank 2 waits in join (line 21) for its thread, which waits in recv (line 9) for a word with tag 99 that rank 0 never "
        "sends; the others wait in Barrier.",
        "must_mention": ["rank 2", "Barrier", "line 22"],
        "after": AFTER,
        "seconds": 60,
    },
    {
        "name": "sys_exit_on_the_rank_without_data",
        "cells": [
            """\
import sys

data = {0: [4, 5], 1: [6], 2: [1, 2, 3]}.get(rank)
if data is None:
    sys.exit(f"rank {rank}: no data")
print("mean", comm.allreduce(sum(data)) / comm.allreduce(len(data)))
"""
        ],
        "kind": "error",
        "ranks": [3],
        "reason": "Rank 3 called sys.exit at line 6 (SystemExit: rank 3: no data); ranks 0-2 wait for it in allreduce.",
        "must_mention": ["rank 3", "line 6", "no data"],
        "accept": ["hang", "death"],
        "after": AFTER,
        "seconds": 30,
    },
]

# ---------------------------------------------------------------------------------------------------------------------
# Input, other processes, memory, objects with side effects, names that were reassigned, output
# ---------------------------------------------------------------------------------------------------------------------

FAULTS += [
    {
        "name": "input_on_rank_0",
        "cells": [
            """\
epochs = None
if rank == 0:
    epochs = int(input("How many epochs? "))
epochs = comm.bcast(epochs, root=0)
print(f"rank {rank} trains for {epochs} epochs")
"""
        ],
        "kind": "error",
        "ranks": [0],
        "reason": "Rank 0 called input() at line 4, but an engine has no keyboard; ranks 1-3 wait for it in bcast.",
        "must_mention": ["rank 0", "input", "line 4"],
        "accept": ["hang"],
        "after": AFTER,
        "seconds": 60,
    },
    {
        "name": "breakpoint_left_in_the_loop",
        "cells": [
            """\
w = np.zeros(3)
for step in range(5):
    gradient = np.full(3, rank - step)
    if rank == 1 and gradient.min() < -1:
        breakpoint()  # why is it negative?
    w -= 0.1 * comm.allreduce(gradient)
print(rank, w)
"""
        ],
        "kind": "error",
        "ranks": [1],
        "reason": "Rank 1 entered the debugger by breakpoint() at line 6 in step 3 and cannot read commands; the others wait in allreduce.",
        "must_mention": ["rank 1", "line 7"],
        "accept": ["hang", "right"],
        "after": AFTER,
        "seconds": 60,
        "note": "Right if breakpoint() does nothing on an engine and says so.",
    },
    {
        "name": "pool_workers_that_communicate",
        "cells": [
            """\
from multiprocessing import Pool


def evaluate(lr):
    loss = (1 - lr) ** 2 + rank
    return comm.allreduce(loss) / size


if rank == 0:
    with Pool(2) as pool:
        print(pool.map(evaluate, [0.1, 0.01, 0.001]))
comm.Barrier()
"""
        ],
        "kind": "hang",
        "ranks": [0],
        "reason": "Rank 0 waits at line 12 for the workers of a multiprocessing.Pool, which are no ranks and cannot take part in allreduce "
        "(line 7); the others wait in Barrier.",
        "must_mention": ["rank 0"],
        "accept": ["error", "death"],
        "after": AFTER,
        "seconds": 90,
        "note": "The forked workers have a copy of rank 0's MPI; they must not outlive the cell.",
    },
    {
        "name": "pipe_to_sort_never_closed",
        "cells": [
            """\
import subprocess

words = [f"word{(7 * i) % 10}" for i in range(10)]
ordered = None
if rank == 0:
    sort = subprocess.Popen(["sort"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    sort.stdin.write("\\n".join(words))
    sort.stdin.flush()
    ordered = sort.stdout.read().split()
ordered = comm.bcast(ordered, root=0)
print(rank, ordered[:3])
"""
        ],
        "kind": "hang",
        "ranks": [0],
        "reason": "Rank 0 reads the output of sort at line 10, which still waits for input (its stdin was never closed); the others "
        "wait in bcast.",
        "must_mention": ["rank 0", "bcast", "line 11"],
        "after": AFTER,
        "seconds": 90,
        "note": "Leaves a `sort` process behind on rank 0.",
    },
    {
        "name": "sleep_in_milliseconds",
        "cells": [
            """\
import time

if rank == 1:
    time.sleep(1500)  # a straggler, 1.5 s late
t = time.perf_counter()
comm.Barrier()
print(f"rank {rank} waited {time.perf_counter() - t:.1f} s")
"""
        ],
        "kind": "hang",
        "ranks": [1],
        "reason": "Rank 1 sleeps for 1500 s at line 5; the others wait for it in Barrier at line 7.",
        "must_mention": ["rank 1", "Barrier", "line 5", "line 7"],
        "after": AFTER,
        "seconds": 120,
    },
    {
        "name": "header_read_with_the_wrong_byte_order",
        "cells": [
            """\
header = [b"\\x01\\x00\\x00\\x00", b"\\x01\\x00\\x00\\x00", b"\\x00\\x00\\x00\\x01", b"\\x01\\x00\\x00\\x00"][rank]
images = int.from_bytes(header, "little")
pixels = np.zeros((images, 10_000_000))
total = comm.allreduce(len(pixels))
print("images:", total)
del pixels
"""
        ],
        "kind": "error",
        "ranks": [2],
        "reason": "MemoryError on rank 2 at line 4: 16777216 x 10000000 float64 are 1.2 PiB; the others wait in allreduce.",
        "must_mention": ["rank 2", "MemoryError", "Unable to allocate", "line 4"],
        "after": AFTER,
        "seconds": 30,
    },
    {
        "name": "repr_that_communicates",
        "cells": [
            """\
class SharedVector:
    def __init__(self, part):
        self.part = part

    def norm(self):
        return comm.allreduce(float(self.part @ self.part)) ** 0.5

    def __repr__(self):
        return f"SharedVector, norm {self.norm():.3f}"


v = SharedVector(np.full(3, rank + 1.0))
if rank == 0:
    print("result:", v)
"""
        ],
        "kind": "hang",
        "ranks": [1, 2, 3],
        "reason": "Printing v on rank 0 (line 15) calls allreduce in __repr__ (line 7); ranks 1-3 do not print it and have returned.",
        "must_mention": ["rank 0", "allreduce", "line 7"],
        "after": AFTER,
        "seconds": 30,
    },
    {
        "name": "del_that_communicates",
        "cells": [
            """\
class SharedTable:
    def __init__(self, n):
        self.data = np.zeros(n)

    def __del__(self):
        comm.Barrier()  # all ranks free it together


kept_tables = []
table = SharedTable(100)
if rank == 1:
    kept_tables.append(table)  # look at it later
del table
print(rank, "goes on")
"""
        ],
        "kind": "hang",
        "ranks": [1],
        "reason": "On ranks 0, 2 and 3 `del table` calls __del__, which waits in Barrier (line 7); rank 1 still has a reference, so "
        "its __del__ was never called.",
        "must_mention": ["rank 1", "Barrier", "line 7"],
        "after": AFTER,
        "seconds": 30,
        "note": "An exception in __del__ is swallowed by Python. Rank 1's table still communicates when it is freed, at the latest when "
        "the engine ends: restart the engines after this entry.",
    },
    {
        "name": "log_closed_too_early",
        "cells": [
            """\
import os
import sys
import tempfile

sys.stdout = open(os.path.join(tempfile.gettempdir(), f"strangers_log_{rank}.txt"), "w")
print("start", rank)
if rank == 3:
    sys.stdout.close()  # ought to be the last line, for all ranks
total = comm.allreduce(rank)
print("total", total)
comm.Barrier()
"""
        ],
        "kind": "error",
        "ranks": [3],
        "reason": "print on rank 3 failed at line 11: sys.stdout is a file that the cell has closed; the others wait in Barrier.",
        "must_mention": ["rank 3", "ValueError", "closed file", "line 11"],
        "after": AFTER,
        "seconds": 30,
        "note": "sys.stdout stays reassigned on all engines (on rank 3: closed), unless the lab restores it.",
    },
    {
        "name": "loop_variable_called_rank",
        "cells": [
            """\
for rank in range(size):
    print("there is a rank", rank)

if rank == 0:
    for other in range(1, size):
        comm.send("start", dest=other)
else:
    word = comm.recv(source=0)
    print(rank, word)
"""
        ],
        "kind": "hang",
        "ranks": [],
        "reason": "All four ranks wait in recv for a message from rank 0: the loop at line 2 has set `rank` to 3 everywhere, so none sends.",
        "must_mention": ["recv", "line 9"],
        "after": """\
rank = comm.Get_rank()
assert comm.allreduce(rank) == 6
""",
        "seconds": 30,
        "note": "`rank` is 3 on all engines until the after cell.",
    },
    {
        "name": "print_on_rank_0_only_calls_itself",
        "cells": [
            """\
def print(*args, **kwargs):
    if rank == 0:
        print(*args, **kwargs)


for epoch in range(3):
    print("epoch", epoch)
    comm.Barrier()
"""
        ],
        "kind": "error",
        "ranks": [0],
        "reason": "RecursionError on rank 0: the cell's own print calls itself at line 4 without end; the others wait in Barrier.",
        "must_mention": ["rank 0", "RecursionError", "line 4"],
        "after": """\
del print
print("print is Python's own again on", rank)
assert comm.allreduce(1) == size
""",
        "seconds": 30,
        "note": "`print` is the student's on all engines until the after cell.",
    },
    {
        "name": "del_comm_to_tidy_up",
        "cells": [
            """\
shards = np.array_split(np.arange(1000.0), size)
mean = comm.allreduce(shards[rank].mean()) / size
del shards, comm  # tidy up
if rank == 0:
    print("mean", mean)
comm.Barrier()
"""
        ],
        "kind": "error",
        "ranks": [],
        "reason": "NameError at line 7 on all ranks: the cell has deleted comm at line 4.",
        "must_mention": ["NameError", "comm", "line 7"],
        "after": "print(np.arange(rank))\n",
        "seconds": 30,
        "note": "comm is gone on all engines: connect() again before the next entry.",
    },
    {
        "name": "much_output_and_an_odd_message",
        "cells": [
            """\
for step in range(30_000):
    loss = 1 / (step + 1)
    print(f"rank {rank} step {step} loss {loss:.6f}")
    if rank == 2 and step == 29_999:
        raise ValueError("rank 0, line 2: %d {loss} <b>bold</b> \\x1b[31mred \\u2713\\n\\n  rank 3 is waiting in Allreduce")
total = comm.allreduce(loss)
"""
        ],
        "kind": "error",
        "ranks": [2],
        "reason": "ValueError on rank 2 at line 6 (its message speaks of other ranks); the others wait in allreduce at line 7.",
        "must_mention": ["rank 2", "ValueError", "line 6"],
        "after": AFTER,
        "seconds": 120,
        "note": "About 4 MB of output in 120,000 lines.",
    },
    {
        "name": "base_exception_without_a_message_in_a_method",
        "cells": [
            """\
class StopTraining(BaseException):
    def __init__(self, step, loss):
        self.step, self.loss = step, loss

    def __str__(self):
        return ""


class Trainer:
    def __init__(self, lr):
        self.w, self.lr = np.ones(4), lr

    def step(self, number):
        gradient = self.w * (rank + 1)
        self.w = self.w - self.lr * comm.allreduce(gradient) / size
        if rank == 1 and number == 3:
            raise StopTraining(step=number, loss=float(self.w[0]))

    def fit(self, steps):
        try:
            for number in range(steps):
                self.step(number)
        except Exception as error:
            print("training failed:", error)


Trainer(0.1).fit(10)
"""
        ],
        "kind": "error",
        "ranks": [1],
        "reason": "StopTraining, a BaseException with an empty message, was raised on rank 1 at line 18 (step 3); the others wait in "
        "allreduce at line 16.",
        "must_mention": ["rank 1", "StopTraining", "line 18"],
        "after": AFTER,
        "seconds": 30,
        "note": "The exception cannot be unpickled: its __init__ needs two arguments, and its args are empty.",
    },
    {
        "name": "receives_from_itself_far_down",
        "cells": [
            """\
import time


def sigmoid(x):
    \"\"\"The logistic function.\"\"\"
    return 1 / (1 + np.exp(-x))


def init(n_in, n_out, seed):
    rng = np.random.default_rng(seed)
    return {
        "w": rng.normal(0, 1 / np.sqrt(n_in), (n_in, n_out)),
        "b": np.zeros(n_out),
    }


def forward(layers, x):
    activations = [x]
    for layer in layers:
        x = sigmoid(x @ layer["w"] + layer["b"])
        activations.append(x)
    return activations


def backward(layers, activations, y):
    gradients = []
    delta = activations[-1] - y
    for layer, a in zip(reversed(layers), reversed(activations[:-1])):
        gradients.append({"w": a.T @ delta, "b": delta.sum(axis=0)})
        delta = (delta @ layer["w"].T) * a * (1 - a)
    return gradients[::-1]


def flatten(gradients):
    return np.concatenate([g[key].ravel() for g in gradients for key in ("w", "b")])


def unflatten(flat, layers):
    position, result = 0, []
    for layer in layers:
        entry = {}
        for key in ("w", "b"):
            n = layer[key].size
            entry[key] = flat[position : position + n].reshape(layer[key].shape)
            position += n
        result.append(entry)
    return result


def average(flat):
    def collect():
        # rank 0 collects the gradients of all ranks
        return [comm.recv(source=r) for r in range(size)]

    if rank == 0:
        everything = collect()
        mean = np.mean(everything, axis=0)
        for r in range(1, size):
            comm.send(mean, dest=r)
        return mean
    comm.send(flat, dest=0)
    return comm.recv(source=0)


def train(epochs):
    layers = [init(5, 8, seed=1), init(8, 1, seed=2)]
    rng = np.random.default_rng(10 + rank)
    x = rng.normal(size=(20, 5))
    y = (x.sum(axis=1, keepdims=True) > 0).astype(float)
    start = time.perf_counter()
    for epoch in range(epochs):
        activations = forward(layers, x)
        flat = average(flatten(backward(layers, activations, y)))
        for layer, g in zip(layers, unflatten(flat, layers)):
            for key in layer:
                layer[key] -= 0.1 * g[key]
    return time.perf_counter() - start


print(f"rank {rank}: {train(3):.2f} s")
"""
        ],
        "kind": "hang",
        "ranks": [0],
        "reason": "Rank 0 waits in recv (line 54) for a message from itself: range(size) includes rank 0, which sends none to itself; "
        "the others wait at line 63 for rank 0.",
        "must_mention": ["rank 0", "recv", "line 54", "line 63"],
        "after": AFTER,
        "seconds": 30,
    },
    {
        "name": "timeit_on_rank_0_only",
        "cells": [
            """\
gradient = np.ones(1000) * rank
if rank == 0:
    %timeit -n 20 -r 1 comm.allreduce(gradient)
else:
    comm.allreduce(gradient)
"""
        ],
        "kind": "hang",
        "ranks": [1, 2, 3],
        "reason": "%timeit calls allreduce 20 times on rank 0 (line 4), but ranks 1-3 call it once and have returned.",
        "must_mention": ["rank 0", "allreduce", "line 4"],
        "after": AFTER,
        "seconds": 30,
    },
]

# ---------------------------------------------------------------------------------------------------------------------
# Correct but unusual programs, which must not be reported
# ---------------------------------------------------------------------------------------------------------------------

FAULTS += [
    {
        "name": "right_one_rank_computes_for_12_seconds",
        "cells": [
            """\
import time

end = time.monotonic() + (12 if rank == 2 else 0)
rounds = 0
while time.monotonic() < end:
    rounds += sum(i * i for i in range(1000)) > 0
assert comm.allreduce(rank) == 6
assert rounds > 0 or rank != 2
"""
        ],
        "kind": "right",
        "ranks": [],
        "reason": "Rank 2 is only slow: the others wait 12 s for a computation, which is no mistake.",
        "must_mention": [],
        "after": AFTER,
        "seconds": 60,
    },
    {
        "name": "right_uneven_numbers_of_collectives_on_parts",
        "cells": [
            """\
from mpi4py import MPI

team = comm.Split(0 if rank < 3 else MPI.UNDEFINED, key=-rank)  # rank 2 comes first
if team != MPI.COMM_NULL:
    for _ in range(5):
        team.Barrier()
    assert team.bcast(rank, root=0) == 2
    team.Free()
pair = comm.Split(rank % 2, rank)
for _ in range(1 + 20 * (rank % 2)):
    assert pair.allreduce(rank) == (4 if rank % 2 else 2)
pair.Free()
"""
        ],
        "kind": "right",
        "ranks": [],
        "reason": "Each communicator's own ranks make the same calls; rank 3 is in no team, and the pairs need not agree.",
        "must_mention": [],
        "after": AFTER,
        "seconds": 30,
    },
    {
        "name": "right_master_and_workers",
        "cells": [
            """\
import time

from mpi4py import MPI

STOP = 1000
status = MPI.Status()
if rank == 0:
    todo, results, active = list(range(14)), {}, 0
    for worker in range(1, size):
        comm.send(todo.pop(), dest=worker, tag=1)
        active += 1
    while active:
        square = comm.recv(source=MPI.ANY_SOURCE, tag=MPI.ANY_TAG, status=status)
        results[status.Get_tag()] = square
        if todo:
            comm.send(todo.pop(), dest=status.Get_source(), tag=1)
        else:
            comm.send(None, dest=status.Get_source(), tag=STOP)
            active -= 1
    assert results == {n: n * n for n in range(14)}
else:
    while True:
        n = comm.recv(source=0, tag=MPI.ANY_TAG, status=status)
        if status.Get_tag() == STOP:
            break
        time.sleep(2.5 if rank == 1 else 0.2)
        comm.send(n * n, dest=0, tag=n)
"""
        ],
        "kind": "right",
        "ranks": [],
        "reason": "A master hands out jobs; the workers make different numbers of calls, with many tags, and one is slow.",
        "must_mention": [],
        "after": AFTER,
        "seconds": 30,
    },
    {
        "name": "right_unknown_senders_and_ibarrier",
        "cells": [
            """\
from mpi4py import MPI

# Nobody knows how many messages will come: synchronous sends, and a barrier that does not block.
targets = {0: [1, 2, 3], 1: [], 2: [3, 3], 3: [0]}[rank]
sends = [comm.issend(rank, dest=t, tag=5) for t in targets]
inbox, barrier = [], None
while True:
    if comm.iprobe(source=MPI.ANY_SOURCE, tag=5):
        inbox.append(comm.recv(source=MPI.ANY_SOURCE, tag=5))
    if barrier is None:
        if all([request.Test() for request in sends]):
            barrier = comm.Ibarrier()
    elif barrier.Test():
        break
assert sorted(inbox) == {0: [3], 1: [0], 2: [0], 3: [0, 2, 2]}[rank]
"""
        ],
        "kind": "right",
        "ranks": [],
        "reason": "Polling with iprobe and Test until an Ibarrier is complete is a well-known algorithm (NBX).",
        "must_mention": [],
        "after": AFTER,
        "seconds": 30,
    },
    {
        "name": "right_tickets_from_a_window",
        "cells": [
            """\
import time

from mpi4py import MPI

counter = np.zeros(1, dtype="i8")
win = MPI.Win.Create(counter if rank == 0 else None, comm=comm)
one, ticket = np.ones(1, dtype="i8"), np.zeros(1, dtype="i8")
mine = []
while True:
    win.Lock(0)
    win.Fetch_and_op(one, ticket, 0)
    win.Unlock(0)
    if ticket[0] >= 20:
        break
    mine.append(int(ticket[0]))
    time.sleep(0.02 * (rank + 1))
assert sorted(comm.allreduce(mine)) == list(range(20))
win.Free()
"""
        ],
        "kind": "right",
        "ranks": [],
        "reason": "One-sided calls need no partner: each rank draws as many tickets as it can.",
        "must_mention": [],
        "after": AFTER,
        "seconds": 60,
    },
    {
        "name": "right_persistent_ring_and_inactive_requests",
        "cells": [
            """\
from mpi4py import MPI

right, left = (rank + 1) % size, (rank - 1) % size
outgoing, incoming = np.zeros(3), np.zeros(3)
ring = [comm.Recv_init(incoming, source=left), comm.Send_init(outgoing, dest=right)]
MPI.Request.Waitall(ring)  # none is active yet, so this returns at once
for step in range(6):
    outgoing[:] = 10 * rank + step
    MPI.Prequest.Startall(ring)
    MPI.Request.Waitall(ring)
    assert (incoming == 10 * left + step).all()
for request in ring:
    request.Free()
"""
        ],
        "kind": "right",
        "ranks": [],
        "reason": "Persistent requests are started in every step; waiting for inactive ones returns at once.",
        "must_mention": [],
        "after": AFTER,
        "seconds": 30,
    },
    {
        "name": "right_edge_of_a_grid_is_proc_null",
        "cells": [
            """\
from mpi4py import MPI

grid = comm.Create_cart([2, 2], periods=[False, True])
up, down = grid.Shift(0, 1)
me = grid.Get_rank()
row, halo = np.full(50_000, float(me)), np.full(50_000, -1.0)
grid.Sendrecv(row, dest=down, recvbuf=halo, source=up)
assert (halo == (-1 if up == MPI.PROC_NULL else up)).all()
grid.Send(row, dest=MPI.PROC_NULL)  # to nobody: returns at once
grid.Recv(halo, source=MPI.PROC_NULL)
if rank == 3:
    comm.Recv(halo, source=MPI.PROC_NULL, tag=77)
grid.Free()
"""
        ],
        "kind": "right",
        "ranks": [],
        "reason": "Messages to and from MPI.PROC_NULL are complete at once, also on a single rank.",
        "must_mention": [],
        "after": AFTER,
        "seconds": 30,
    },
    {
        "name": "right_alltoallv_with_nothing_for_many",
        "cells": [
            """\
counts = [[(i * j) % 3 for j in range(size)] for i in range(size)]  # rank 0 sends nothing and gets nothing
sends = counts[rank]
gets = [counts[i][rank] for i in range(size)]
outgoing = np.concatenate([np.full(n, 10.0 * rank + j) for j, n in enumerate(sends)])
incoming = np.empty(sum(gets))
comm.Alltoallv([outgoing, sends], [incoming, gets])
expected = np.concatenate([np.full(counts[i][rank], 10.0 * i + rank) for i in range(size)])
assert np.array_equal(incoming, expected)

mine = np.full(rank, float(rank))
everything = np.empty(6) if rank == 2 else None
comm.Gatherv(mine, [everything, [0, 1, 2, 3]] if rank == 2 else None, root=2)
assert rank != 2 or everything.tolist() == [1, 2, 2, 3, 3, 3]
"""
        ],
        "kind": "right",
        "ranks": [],
        "reason": "In Alltoallv and Gatherv every rank has its own counts, and zero is a count.",
        "must_mention": [],
        "after": AFTER,
        "seconds": 30,
    },
    {
        "name": "right_threads_that_do_not_communicate",
        "cells": [
            """\
import queue
import threading
import time

jobs, norms = queue.Queue(), []
stop = threading.Event()


def compute():
    while (seed := jobs.get()) is not None:
        norms.append(float(np.linalg.norm(np.random.default_rng(seed).normal(size=1000))))
        time.sleep(0.05)


def heartbeat():
    while not stop.wait(0.1):
        pass


threading.Thread(target=heartbeat, daemon=True).start()  # goes on until stop is set, also after the cell
worker = threading.Thread(target=compute)
worker.start()
for seed in range(5 * (rank + 1)):
    jobs.put(seed)
jobs.put(None)
comm.Barrier()
worker.join()
assert comm.allreduce(len(norms)) == 50
"""
        ],
        "kind": "right",
        "ranks": [],
        "reason": "Threads that compute, and a daemon thread that goes on after the cell, disturb nobody.",
        "must_mention": [],
        "after": "stop.set()\nassert comm.allreduce(1) == size\n",
        "seconds": 30,
    },
    {
        "name": "right_root_runs_ahead_of_late_receivers",
        "cells": [
            """\
import time


def announce(step):
    return comm.bcast({"step": step}, root=0)


def listen():
    return comm.bcast(None, root=0)


if rank == 0:
    for step in range(30):
        announce(step)
else:
    time.sleep(6)  # the others come late
    for step in range(30):
        assert listen() == {"step": step}
"""
        ],
        "kind": "right",
        "ranks": [],
        "reason": "The same 30 bcasts are made on all ranks, at different lines and in different functions; the root may run ahead.",
        "must_mention": [],
        "after": AFTER,
        "seconds": 45,
    },
    {
        "name": "right_bcast_of_a_column_into_an_array",
        "cells": [
            """\
from mpi4py import MPI

column = np.empty(4)
if rank == 0:
    matrix = np.arange(12.0).reshape(4, 3)
    every_third = MPI.DOUBLE.Create_vector(4, 1, 3).Commit()
    comm.Bcast([matrix, 1, every_third], root=0)  # one item of a derived type ...
    every_third.Free()
    column[:] = matrix[:, 0]
else:
    comm.Bcast([column, 4, MPI.DOUBLE], root=0)  # ... matches four doubles
assert column.tolist() == [0, 3, 6, 9]
"""
        ],
        "kind": "right",
        "ranks": [],
        "reason": "One vector of four doubles and four doubles have the same type signature, so the Bcasts match.",
        "must_mention": [],
        "after": AFTER,
        "seconds": 30,
    },
    {
        "name": "right_intercommunicator_and_merge",
        "cells": [
            """\
from mpi4py import MPI

side = rank // 2
half = comm.Split(side, rank)
bridge = half.Create_intercomm(0, comm, 2 if side == 0 else 0, tag=7)
assert bridge.Get_remote_size() == 2
if side == 0:
    bridge.bcast("hello", root=MPI.ROOT if half.Get_rank() == 0 else MPI.PROC_NULL)
else:
    assert bridge.bcast(None, root=0) == "hello"
whole = bridge.Merge(high=(side == 0))
assert whole.allreduce(1) == size
assert whole.Get_rank() == (rank + 2) % 4
for old in (whole, bridge, half):
    old.Free()
"""
        ],
        "kind": "right",
        "ranks": [],
        "reason": "On an intercommunicator the root's side passes MPI.ROOT and MPI.PROC_NULL, the other side the root's number.",
        "must_mention": [],
        "after": AFTER,
        "seconds": 30,
    },
    {
        "name": "right_matched_probe_for_unknown_sizes",
        "cells": [
            """\
from mpi4py import MPI

if rank == 0:
    for _ in range(size - 1):
        status = MPI.Status()
        message = comm.Mprobe(source=MPI.ANY_SOURCE, tag=MPI.ANY_TAG, status=status)
        room = np.empty(status.Get_count(MPI.DOUBLE))
        message.Recv(room)
        assert len(room) == 40 ** status.Get_source() == room.sum()
else:
    comm.Send(np.ones(40**rank), dest=0, tag=rank)
"""
        ],
        "kind": "right",
        "ranks": [],
        "reason": "Rank 0 asks for the size of each message (up to 512 kB) by Mprobe before it receives it.",
        "must_mention": [],
        "after": AFTER,
        "seconds": 30,
    },
    {
        "name": "right_child_processes_that_end",
        "cells": [
            """\
import subprocess
import sys

answer = None
if rank == 1:
    program = "import sys, time; time.sleep(3); print(sum(map(int, sys.stdin.read().split())))"
    done = subprocess.run([sys.executable, "-c", program], input="40 2", capture_output=True, text=True, check=True)
    answer = int(done.stdout)
assert comm.bcast(answer, root=1) == 42
"""
        ],
        "kind": "right",
        "ranks": [],
        "reason": "Rank 1 runs a child process for 3 s, which gets its input and ends; the others wait in bcast.",
        "must_mention": [],
        "after": AFTER,
        "seconds": 45,
    },
    {
        "name": "right_own_operations_and_unequal_pickles",
        "cells": [
            """\
from mpi4py import MPI


def better(a, b):
    return a if a[0] >= b[0] else b


score = [3, 8, 5, 1][rank]
best = comm.allreduce((score, rank, "x" * 2000 * rank), op=better)  # objects of different sizes
assert best[:2] == (8, 1)


def hypot(a_memory, b_memory, datatype):
    a, b = np.frombuffer(a_memory, dtype="d"), np.frombuffer(b_memory, dtype="d")
    np.hypot(a, b, out=b)


op = MPI.Op.Create(hypot, commute=True)
length = np.empty(3)
comm.Allreduce(np.full(3, rank + 1.0), length, op=op)
assert np.allclose(length, 30**0.5)
op.Free()
"""
        ],
        "kind": "right",
        "ranks": [],
        "reason": "A Python function may be the operation of a reduction, and lower-case calls may take objects of different sizes.",
        "must_mention": [],
        "after": AFTER,
        "seconds": 30,
    },
    {
        "name": "right_receive_that_is_cancelled",
        "cells": [
            """\
from mpi4py import MPI

spare = np.zeros(4)
request = comm.Irecv(spare, source=MPI.ANY_SOURCE, tag=77)  # in case somebody has news
comm.Barrier()
assert not request.Test()
status = MPI.Status()
request.Cancel()
request.Wait(status)
assert status.Is_cancelled()
"""
        ],
        "kind": "right",
        "ranks": [],
        "reason": "A receive that nobody meets is cancelled, so its Wait returns.",
        "must_mention": [],
        "after": AFTER,
        "seconds": 30,
    },
    {
        "name": "right_file_written_by_one_rank",
        "cells": [
            """\
import os
import tempfile

from mpi4py import MPI

path = os.path.join(tempfile.gettempdir(), "strangers_table.bin")
if rank == 0:
    table = MPI.File.Open(MPI.COMM_SELF, path, MPI.MODE_WRONLY | MPI.MODE_CREATE)
    table.Write(np.arange(8, dtype="i4"))
    table.Close()
comm.Barrier()
table = MPI.File.Open(comm, path, MPI.MODE_RDONLY)
mine = np.empty(2, dtype="i4")
for _ in range(3 * rank):  # reads that are not collective, not even one on rank 0
    table.Read_at(8 * rank, mine)
    assert mine.tolist() == [2 * rank, 2 * rank + 1]
table.Close()
"""
        ],
        "kind": "right",
        "ranks": [],
        "reason": "Rank 0 writes alone with COMM_SELF, and Read_at is not collective, so the ranks may read as often as they like.",
        "must_mention": [],
        "after": AFTER,
        "seconds": 30,
    },
    {
        "name": "right_requests_across_cells",
        "cells": [
            """\
right, left = (rank + 1) % size, (rank - 1) % size
mailbox, parcel = np.zeros(3), np.full(3, float(rank))
pending = comm.Irecv(mailbox, source=left, tag=4)
""",
            """\
comm.Send(parcel, dest=right, tag=4)
letter = comm.isend({"from": rank}, dest=right, tag=6)
""",
            """\
pending.Wait()
assert mailbox.tolist() == [left] * 3
assert comm.recv(source=left, tag=6) == {"from": left}
letter.wait()
""",
        ],
        "kind": "right",
        "ranks": [],
        "reason": "A receive is started in one cell, met in the next and waited for in a third.",
        "must_mention": [],
        "after": AFTER,
        "seconds": 30,
        "note": "None of the three cells may be reported.",
    },
    {
        "name": "right_handled_error_and_text_like_a_report",
        "cells": [
            """\
import sys
import traceback

try:
    value = {0: 1.5, 2: 2.0}[rank]
except KeyError:
    traceback.print_exc()
    print("HangError: rank 3 never joined collective #1 (Allreduce) at cell line 99", file=sys.stderr)
    value = 0.0
assert comm.allreduce(value) == 3.5
if rank == 1:
    print("ValueError: rank 2 raised an error at line 3")
"""
        ],
        "kind": "right",
        "ranks": [],
        "reason": "Ranks 1 and 3 handle a KeyError and go on; what they print only looks like a report.",
        "must_mention": [],
        "after": AFTER,
        "seconds": 30,
    },
    {
        "name": "right_time_and_timeit_on_all_ranks",
        "cells": [
            """\
%%time
x, y = np.ones(1000), np.empty(1000)
timing = %timeit -n 50 -r 2 -q -o comm.Allreduce(x, y)
comm.Barrier()
assert (y == size).all()
for _ in range(rank):
    y += comm.rank  # a loop of another length on each rank, without communication
"""
        ],
        "kind": "right",
        "ranks": [],
        "reason": "With -n and -r given, %timeit makes the same 100 calls on every rank.",
        "must_mention": [],
        "after": AFTER,
        "seconds": 30,
    },
]
