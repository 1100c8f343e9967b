"""examples/distributed_training.py trains on any number of ranks as one rank with all the data does."""

from __future__ import annotations

import contextlib
import csv
import io
import runpy
import shutil
import sys
import tempfile
from pathlib import Path
from unittest import mock

import numpy as np
from mpi4py import MPI

PROGRAM = Path(__file__).parents[3] / "examples" / "distributed_training.py"
EPOCHS, LR = 3, 0.1


def on_one_rank(n: int) -> tuple[np.ndarray, list[float]]:
    """Return the parameters and losses of gradient descent, written anew: a column of ones has the bias."""
    samples = runpy.run_path(str(PROGRAM))["make_data"](n)
    x, y = np.column_stack([samples[:, :-1], np.ones(n)]), samples[:, -1]
    params, losses = np.zeros(x.shape[1]), []
    for _ in range(EPOCHS):
        losses.append(np.mean((x @ params - y) ** 2))
        params -= LR * 2 / n * x.T @ (x @ params - y)
    return params, losses


def check_the_example_equals_one_rank_and_writes_its_files(comm: MPI.Intracomm) -> None:
    for n in 13, 3:  # with 3 samples, some of 4 or 5 ranks have none
        out = Path(comm.bcast(tempfile.mkdtemp() if comm.rank == 0 else None))
        options = f"--samples {n} --epochs {EPOCHS} --lr {LR} --out {out}".split()
        printed = io.StringIO()
        with mock.patch.object(sys, "argv", ["program", *options]), contextlib.redirect_stdout(printed):
            runpy.run_path(str(PROGRAM), run_name="__main__")
        if comm.rank > 0:
            assert printed.getvalue() == "", "only rank 0 prints"
            continue
        params, losses = on_one_rank(n)
        lines = printed.getvalue().splitlines()
        assert [line for line in lines if line.startswith("epoch")] == [
            f"epoch {epoch}: loss {loss:.4f}" for epoch, loss in enumerate(losses, 1)
        ]
        ranks = [line.split(":")[0] for line in lines if not line.startswith("epoch")]
        assert ranks == [f"  rank {rank}" for rank in range(comm.size)] * EPOCHS
        contents = {file.name: file.read_bytes() for file in out.iterdir()}
        shutil.rmtree(out)
        assert contents.pop("loss.png").startswith(b"\x89PNG")
        text = {name: content.decode() for name, content in contents.items()}
        np.testing.assert_allclose(np.loadtxt(io.StringIO(text.pop("weights.txt"))), params[:-1], rtol=1e-9)
        np.testing.assert_allclose(np.loadtxt(io.StringIO(text.pop("bias.txt"))), params[-1], rtol=1e-9)
        for name in "sync_times.csv", "contributions.csv":
            rows = list(csv.DictReader(io.StringIO(text.pop(name))))
            assert [(int(row.pop("rank")), int(row.pop("epoch"))) for row in rows] == [
                (rank, epoch) for rank in range(comm.size) for epoch in range(1, EPOCHS + 1)
            ]
            assert all(float(value) >= 0 for row in rows for value in row.values())
            if name == "contributions.csv" and comm.size == 1:
                assert {value for row in rows for value in row.values()} == {"1.0"}
        assert not text, f"unexpected files: {sorted(text)}"
