"""`labkit train --data mnist` on a made set: mpiexec -n p python … FOLDER there|missing."""

import os
import sys
from pathlib import Path

from mpi4py import MPI

from labkit import data
from labkit.cli import main

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.made_sets import files_of, made, put, source_of

folder = Path(sys.argv[1])
parts = made("mnist", 200, 30)
files = files_of("mnist", parts)
if MPI.COMM_WORLD.rank == 0 and sys.argv[2] == "there":
    put(folder / "mnist", files)
MPI.COMM_WORLD.Barrier()
os.environ["LABKIT_DATA"] = str(folder)
data.SOURCES["mnist"] = source_of("mnist", parts, files)
options = [
    "--model",
    "softmax",
    "--data",
    "mnist",
    "--epochs",
    "2",
    "--lr",
    "0.01",
    "--out",
    str(folder / "out"),
]
main(["train", *options, "--shard", "shuffled"])
