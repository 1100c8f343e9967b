"""Train a PyTorch model with DistributedDataParallel (DDP), averaged by gloo and by an all-reduce of the lab.

    mpiexec -n 4 python -m mpi4py pytorch_ddp.py --algorithm ring
    mpiexec -n 4 python -m mpi4py pytorch_ddp.py --model transformer --mine my_ddp.py

It needs PyTorch and the lab. `labkit collect` writes my_ddp.py: `--mine` takes the ring from it.

Both trainings begin with the same weights and see the same batches, so their losses agree up to rounding. The
ranks are MPI's. DDP also needs a process group of its own, here gloo, to agree on its buckets.
"""

import argparse
import runpy
from statistics import median
from time import perf_counter

import torch
from mpi4py import MPI
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from labkit import data
from labkit.bench.collectives import gloo
from labkit.comm import ALGORITHMS
from labkit.torch import ddp_hook

CLASSES, SIDE, WIDTH = 10, 32, 64


def lenet5():
    return nn.Sequential(
        *(nn.Conv2d(1, 6, 5), nn.Tanh(), nn.AvgPool2d(2)),
        *(nn.Conv2d(6, 16, 5), nn.Tanh(), nn.AvgPool2d(2)),
        *(nn.Conv2d(16, 120, 5), nn.Tanh(), nn.Flatten()),
        *(nn.Linear(120, 84), nn.Tanh(), nn.Linear(84, CLASSES)),
    )


class Transformer(nn.Module):
    """Reads an image row by row: a row is a token."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(SIDE, WIDTH)
        self.position = nn.Parameter(0.1 * torch.randn(SIDE, WIDTH))
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 2 * WIDTH, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, images):
        """Return the logits. Shapes: images (n, 1, SIDE, SIDE), result (n, CLASSES)."""
        tokens = self.embed(images.squeeze(1)) + self.position
        return self.head(self.encoder(tokens).mean(1))


def train(comm, model, digits, options):
    """Train; return the mean loss of all ranks in each step, and the median time (s) of a step."""
    sgd = torch.optim.SGD(model.parameters(), lr=options.lr, momentum=0.9)
    losses, seconds = [], []
    for number in range(options.steps):
        first = number * options.batch * comm.size + comm.rank  # each rank takes every p-th sample
        own = [(first + comm.size * i) % len(digits.x_train) for i in range(options.batch)]
        x, y = torch.from_numpy(digits.x_train[own]), torch.from_numpy(digits.y_train[own])
        begin = perf_counter()
        sgd.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()  # DDP averages the gradients meanwhile, bucket by bucket
        sgd.step()
        seconds.append(perf_counter() - begin)
        losses.append(loss.item())
    return [sum(each) / comm.size for each in zip(*comm.allgather(losses), strict=True)], median(seconds)


def main():
    parser = argparse.ArgumentParser(description="Compare DDP with gloo and with an all-reduce of the lab.")
    parser.add_argument("--model", choices=["lenet5", "transformer"], default="lenet5")
    parser.add_argument("--algorithm", choices=ALGORITHMS, default="ring")
    parser.add_argument("--mine", metavar="FILE", help="average by the ring of your my_ddp.py instead")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--batch", type=int, default=16, help="local batch, of each rank")
    parser.add_argument("--lr", type=float, default=0.05, help="learning rate")
    parser.add_argument("--bucket-mb", type=float, default=0.1, help="size of DDP's buckets (MB)")
    options = parser.parse_args()

    comm = MPI.COMM_WORLD
    algorithm = options.algorithm
    if options.mine:
        program = runpy.run_path(options.mine)
        if "ring_sum" not in program:
            raise SystemExit(f"{options.mine} has no ring yet: write 5.1 and 5.2 of notebook 05, and collect")
        algorithm = program["ring_sum"]
    digits = data.digits((1, SIDE, SIDE))
    results = []
    with gloo(comm) as started:
        if not started:
            raise SystemExit("This example needs PyTorch with gloo: pip install torch")
        for hook in None, ddp_hook(comm, algorithm):
            torch.manual_seed(0)
            model = lenet5() if options.model == "lenet5" else Transformer()
            model = DistributedDataParallel(model, bucket_cap_mb=options.bucket_mb)
            if hook:
                model.register_comm_hook(None, hook)
            results.append(train(comm, model, digits, options))
    if comm.rank == 0:
        (theirs, theirs_s), (ours, ours_s) = results
        name = options.mine or options.algorithm
        print(f"{options.model} on {comm.size} ranks; loss by gloo and by {name}:")
        for number in sorted({1, (options.steps + 1) // 2, options.steps}):
            print(f"  step {number:3}: {theirs[number - 1]:.6f}  {ours[number - 1]:.6f}")
        furthest = max(abs(a / b - 1) for a, b in zip(ours, theirs, strict=True))
        print(f"largest relative difference {furthest:.1e}; a step takes", end=" ")
        print(f"{1e3 * theirs_s:.1f} and {1e3 * ours_s:.1f} ms")


if __name__ == "__main__":
    main()
