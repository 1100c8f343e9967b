"""Wrong answers on equal weights and the mean of the buffers."""

from tests.exercises.changed import but

WRONG = [
    # (function, words of the finding, the cell as a student may write it)
    (
        "weights_equal",
        "rank 0's only",
        """
import hashlib

def weights_equal(comm, weights):
    mine = hashlib.sha256(weights.tobytes()).digest()
    return mine == comm.bcast(mine)
""",
    ),
    (
        "weights_equal",
        "only rank 0 knows",
        """
import hashlib

def weights_equal(comm, weights):
    hashes = comm.gather(hashlib.sha256(weights.tobytes()).digest())
    if comm.rank == 0:
        return len(set(hashes)) == 1
""",
    ),
    (
        "weights_equal",
        "hash() differs from process to process",
        """
def weights_equal(comm, weights):
    return len(set(comm.allgather(hash(weights.tobytes())))) == 1
""",
    ),
    (
        "weights_equal",
        "send a hash, a few bytes, not the weights",
        """
def weights_equal(comm, weights):
    everyone = comm.allgather(weights.tobytes())
    return all(each == everyone[0] for each in everyone)
""",
    ),
    (
        "weights_equal",
        "difference of one bit is overlooked",
        """
import hashlib

def weights_equal(comm, weights):
    rounded = weights.round(4).tobytes()
    return len(set(comm.allgather(hashlib.sha256(rounded).digest()))) == 1
""",
    ),
    (
        "weights_equal",
        "a sum does not say where",
        """
def weights_equal(comm, weights):
    bits = int(weights.view(np.uint32).sum(dtype=np.uint64))
    return len(set(comm.allgather(bits))) == 1
""",
    ),
    (
        "weights_equal",
        "always True",
        """
def weights_equal(comm, weights):
    return comm.allreduce(weights is weights, MPI.LAND)
""",
    ),
    ("average_buffers", "unchanged", but("average_buffers", ("buffers[...] =", "buffers ="))),
    (
        "average_buffers",
        "plain mean",
        but(
            "average_buffers", ("buffers * samples", "buffers"), ("sum(comm.allgather(samples))", "comm.size")
        ),
    ),
    (
        "average_buffers",
        "is the sum of the buffers",
        """
def average_buffers(comm, buffers, samples):
    comm.Allreduce(MPI.IN_PLACE, buffers)
""",
    ),
    (
        "average_buffers",
        "not divided by the samples of all ranks",
        but("average_buffers", (" / sum(comm.allgather(samples))", "")),
    ),
    (
        "average_buffers",
        "by the number of ranks",
        but("average_buffers", ("sum(comm.allgather(samples))", "comm.size")),
    ),
    (
        "average_buffers",
        "rank 0's buffers",
        """
def average_buffers(comm, buffers, samples):
    comm.Bcast(buffers, root=0)
""",
    ),
    (
        "average_buffers",
        "only rank 0 has the mean",
        """
def average_buffers(comm, buffers, samples):
    total, counts = np.empty_like(buffers), comm.gather(samples)
    comm.Reduce(buffers * samples, total)
    if comm.rank == 0:
        buffers[...] = total / sum(counts)
""",
    ),
    (
        "average_buffers",
        "different bits",
        """
def average_buffers(comm, buffers, samples):
    total = sum(comm.allgather(samples))
    term = buffers * samples / total
    result = term.copy()
    for step in range(1, comm.size):
        other = np.empty_like(term)
        comm.Sendrecv(term, (comm.rank + step) % comm.size, 0, other, (comm.rank - step) % comm.size, 0)
        result += other
    buffers[...] = result
""",
    ),
    ("momentum_step", "params is unchanged", but("momentum_step", ("params -= lr", "params = params - lr"))),
]
