"""Replicas: what ranks do so that their copies of the model agree.

All that concerns buffers (the running statistics of batch normalisation) belongs here. Parameters stay equal
because every rank applies the same averaged gradient. Buffers are computed from each rank's local batches, so
they differ from rank to rank after the first step; PyTorch's DDP broadcasts those of rank 0 before each
forward pass (`broadcast_buffers`).
"""

from __future__ import annotations

from mpi4py import MPI

from labkit.nn import Model


def broadcast_model(comm: MPI.Intracomm, model: Model) -> None:
    """Give every rank the parameters and buffers of rank 0. Collective."""
    comm.Bcast(model.params)
    comm.Bcast(model.buffers)
