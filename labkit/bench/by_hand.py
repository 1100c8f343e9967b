"""The ring as one writes it by hand, without a schedule: what does the generality of a schedule cost?"""

from __future__ import annotations

import numpy as np
from mpi4py import MPI

from labkit.comm import tags


def ring_by_hand(comm: MPI.Intracomm, array: np.ndarray) -> None:
    """Leave the sum of all ranks' arrays in `array`: reduce-scatter, then allgather, along the ring.

    Shape: (n,), contiguous, the same n and dtype on all ranks. Collective.
    """
    p, n, rank = comm.size, array.size, comm.rank
    after, before = (rank + 1) % p, (rank - 1) % p
    chunks = [array[i * n // p : (i + 1) * n // p] for i in range(p)]
    buffer = np.empty(-(-n // p), array.dtype)
    for k in range(1, p):
        mine, next_one = chunks[(rank - k) % p], chunks[(rank - k - 1) % p]
        came = buffer[: next_one.size]
        arriving = comm.Irecv(came, before, tags.RING_BY_HAND)
        comm.Send(mine, after, tags.RING_BY_HAND)
        arriving.Wait()
        next_one += came
    for k in range(p - 1):
        arriving = comm.Irecv(chunks[(rank - k - 1) % p], before, tags.RING_BY_HAND)
        comm.Send(chunks[(rank - k) % p], after, tags.RING_BY_HAND)
        arriving.Wait()
