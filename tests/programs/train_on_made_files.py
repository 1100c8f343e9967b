"""Run `labkit train --data mnist` on generated files: mpiexec -n p python … FOLDER there|missing."""

import os
import sys
from pathlib import Path

from mpi4py import MPI

from labkit import data
from labkit.cli import main

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.made_sets import archive_files, random_samples, source_for, write_files

folder = Path(sys.argv[1])
parts = random_samples("mnist", 200, 30)
files = archive_files("mnist", parts)
if MPI.COMM_WORLD.rank == 0 and sys.argv[2] == "there":
    write_files(folder / "mnist", files)
MPI.COMM_WORLD.Barrier()
os.environ["LABKIT_DATA"] = str(folder)
data.SOURCES["mnist"] = source_for("mnist", parts, files)
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
