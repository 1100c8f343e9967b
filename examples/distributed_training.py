"""Train a linear model on any number of MPI ranks: data-parallel training in one file, to take home.

    mpiexec -n 4 python -m mpi4py distributed_training.py --epochs 10 --out runs/example

It needs numpy, mpi4py and matplotlib, and nothing of the lab. With `-m mpi4py`, an error on one rank ends all
ranks.

Rank 0 makes the data and scatters it. In each epoch, every rank computes the gradient of its shard, Allreduce
adds up the gradients, and all ranks take the same step. So the weights are equal on all ranks, and equal to
those that one rank with all the data would compute.
"""

import argparse
import io
import os
from pathlib import Path

import numpy as np
from mpi4py import MPI

FEATURES = 10


def make_data(n, seed=0):
    """Return n samples, shape (n, FEATURES + 1): inputs x, and in the last column y = x @ w + b + noise."""
    rng = np.random.default_rng(seed)
    w, b = rng.normal(size=FEATURES), rng.normal()
    x = rng.normal(size=(n, FEATURES))
    return np.column_stack([x, x @ w + b + 0.1 * rng.normal(size=n)])


def scatter(comm, samples, n):
    """Return this rank's shard of the n samples of rank 0. The first n % p shards have one sample more."""
    counts = [n // comm.size + (rank < n % comm.size) for rank in range(comm.size)]
    shard = np.empty((counts[comm.rank], FEATURES + 1))
    sent = [samples, [count * (FEATURES + 1) for count in counts]] if comm.rank == 0 else None
    comm.Scatterv(sent, shard, root=0)
    return shard


def loss_and_gradient(x, y, params, n):
    """Return this rank's part of the loss sum((x @ w + b - y)**2) / n, and of its gradient.

    n counts the samples of all ranks, so the parts of all ranks add up to the loss and to its gradient.
    """
    w, b = params[:-1], params[-1]
    error = x @ w + b - y  # the forward pass
    dpred = 2 * error / n  # the backward pass, from the loss to the parameters
    dw, db = x.T @ dpred, dpred.sum()
    return error @ error / n, np.append(dw, db)  # flat, so that one Allreduce averages both


def train(comm, shard, n, *, epochs, lr):
    """Return the parameters, and for each epoch the loss and a row (rank, epoch, sync_s, to_w, to_b)."""
    x, y = shard[:, :-1], shard[:, -1]
    params = np.zeros(FEATURES + 1)  # w, then b
    losses, rows = [], []
    for epoch in range(1, epochs + 1):
        part, own = loss_and_gradient(x, y, params, n)
        total = np.empty_like(own)
        comm.Barrier()  # without it, the time below would contain the wait for the slowest rank
        start = MPI.Wtime()
        comm.Allreduce(own, total, op=MPI.SUM)
        sync_s = MPI.Wtime() - start
        params -= lr * total

        # A contribution can exceed 100 %: the gradients of two ranks may point in opposite directions.
        to_w = np.linalg.norm(own[:-1]) / np.linalg.norm(total[:-1])
        to_b = abs(own[-1]) / abs(total[-1])
        losses.append(comm.allreduce(part))
        rows.append((comm.rank, epoch, sync_s, to_w, to_b))
        line = (
            f"  rank {comm.rank}: local loss {part * n / max(1, len(x)):.4f}, "
            f"contribution to w {to_w:.0%}, to b {to_b:.0%}, Allreduce {1e3 * sync_s:.3f} ms"
        )
        lines = comm.gather(line)  # rank 0 prints for all, so that the lines come in order
        if comm.rank == 0:
            print(f"epoch {epoch}: loss {losses[-1]:.4f}", *lines, sep="\n", flush=True)
    return params, losses, rows


def write(path, content):
    """Write a file that is complete or absent, even if the program is killed."""
    part = path.with_suffix(".part")
    part.write_bytes(content if isinstance(content, bytes) else content.encode())
    os.replace(part, path)


def lines_of(rows):
    """Return the rows as comma-separated lines."""
    return "".join(",".join(str(value) for value in row) + "\n" for row in rows)


def draw(losses):
    """Return a figure of the losses as the bytes of a PNG file."""
    import matplotlib.figure  # noqa: PLC0415  (only rank 0 draws)

    axes = matplotlib.figure.Figure().subplots()
    axes.plot(range(1, len(losses) + 1), losses, marker="o")
    axes.set(xlabel="epoch", ylabel="mean squared error over all samples")
    picture = io.BytesIO()
    axes.figure.savefig(picture, format="png")
    return picture.getvalue()


def main():
    parser = argparse.ArgumentParser(description="Train a linear model on MPI ranks.")
    parser.add_argument("--samples", type=int, default=1000, help="number of samples on all ranks together")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--lr", type=float, default=0.1, help="learning rate")
    parser.add_argument("--out", type=Path, default=Path("runs/example"), help="folder for the results")
    options = parser.parse_args()

    comm, n = MPI.COMM_WORLD, options.samples
    shard = scatter(comm, make_data(n) if comm.rank == 0 else None, n)
    params, losses, rows = train(comm, shard, n, epochs=options.epochs, lr=options.lr)
    rows_by_rank = comm.gather(rows)
    if comm.rank == 0:
        rows = [row for rows in rows_by_rank for row in rows]
        times = [("rank", "epoch", "seconds"), *((rank, epoch, s) for rank, epoch, s, *_ in rows)]
        parts = [("rank", "epoch", "to_w", "to_b"), *((rank, epoch, *part) for rank, epoch, _, *part in rows)]
        options.out.mkdir(parents=True, exist_ok=True)
        write(options.out / "weights.txt", lines_of([w] for w in params[:-1]))
        write(options.out / "bias.txt", lines_of([params[-1:]]))
        write(options.out / "sync_times.csv", lines_of(times))
        write(options.out / "contributions.csv", lines_of(parts))
        write(options.out / "loss.png", draw(losses))


if __name__ == "__main__":
    main()
