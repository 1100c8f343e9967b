"""Training on data sets in shards: steps that do not depend on p, and shards that do not fit."""

from __future__ import annotations

import contextlib
import io
import re
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest
from mpi4py import MPI

from labkit import data
from labkit.cli import main
from labkit.comm import SharedSet
from labkit.nn import linear_regression, softmax_regression
from labkit.train import Batches, load_run, train
from tests.made_sets_on_ranks import made_set
from tests.raising import error_on_every_rank

LR = 0.02  # at 0.1 the loss on these images of noise rises, and rounding errors grow with it


def check_training_on_ranks_equals_training_on_one_rank(comm: MPI.Intracomm) -> None:
    """The shards of ranks that are unequally fast, over three epochs."""
    with made_set(comm, n=103):
        for scheme in "strided", "shuffled", "weighted":
            models, losses = [], []
            for on in comm, MPI.COMM_SELF:
                speeds = [1.0 + 3 * rank for rank in range(on.size)]
                dataset = SharedSet(on, "mnist")
                batches = Batches.of(on, dataset, scheme, 10, seed=5, speeds=speeds)
                shards = [batches.epoch(number).x for number in (1, 2, 3)]
                assert all((x is shards[0]) == (scheme != "shuffled") for x in shards[1:])
                model = softmax_regression(dataset.features, dataset.outputs)
                losses.append([row.global_loss for row in train(on, model, batches, epochs=3, lr=LR)])
                models.append(model.params)
            np.testing.assert_allclose(*models, rtol=0, atol=2e-6 * np.abs(models[1]).max())
            np.testing.assert_allclose(*losses, rtol=1e-5)


def check_a_data_set_in_files_trains_or_is_reported_missing(comm: MPI.Intracomm) -> None:
    options = [
        "--model",
        "softmax",
        "--data",
        "mnist",
        "--epochs",
        "2",
        "--lr",
        "0.01",
        "--shard",
        "shuffled",
    ]
    for there in True, False:
        out = Path(comm.bcast(tempfile.mkdtemp() if comm.rank == 0 else None))
        printed = io.StringIO()
        with made_set(comm, n=103, there=there), contextlib.redirect_stderr(printed):
            with pytest.raises(SystemExit) as ended:
                main(["train", *options, "--out", str(out)])
            assert ended.value.code == (0 if there else 2), printed.getvalue()
        said = printed.getvalue()
        assert said.count("Offline, use the embedded data set") == (not there and comm.rank == 0), said
        assert "Traceback" not in said
        if comm.rank == 0:
            assert (out / "model.npz").exists() == there
            assert not there or load_run(out).params.shape == (7850,)
            shutil.rmtree(out)


def check_a_preset_stands_beside_its_report_on_the_reports_data(comm: MPI.Intracomm) -> None:
    out, said = Path(comm.bcast(tempfile.mkdtemp() if comm.rank == 0 else None)), io.StringIO()
    options = "--data", "mnist", "--samples", "40", "--batch", "20", "--epochs", "2", "--out", str(out)
    with made_set(comm, n=103), contextlib.redirect_stdout(said), pytest.raises(SystemExit) as ended:
        main(["train", "--preset", "report-e-ring", *options])
    assert ended.value.code == 0, said.getvalue()
    if comm.rank == 0:
        table = said.getvalue()[said.getvalue().index("Report E") :]
        figure = re.search(r"^loss, epoch 1 .* 2\.27$", table, re.MULTILINE)
        assert bool(figure) == (comm.size == 4), table
        assert ("mpiexec -n 4 labkit train --preset report-e-ring" in table) == (comm.size != 4), table
        assert "Changed: samples 40, epochs 2, batch 20" in table and "fetch" not in table, table
        shutil.rmtree(out)


def check_every_rank_raises_if_slices_or_shards_do_not_fit(comm: MPI.Intracomm) -> None:
    whole = data.linear(n=40)
    mine = data.strided(40, comm.rank, comm.size)
    x, y = whole.x_train[mine], whole.y_train[mine]
    last = comm.rank == comm.size - 1
    held, fewest = len(x), 40 // comm.size  # the last rank holds the fewest
    for bad in (
        [slice(0, 2), slice(3, held)],
        [slice(0, 2), slice(2, held - 1)],
        [slice(0, held + 1), slice(held + 1, held)],
    ):
        slices = bad if last else [slice(0, 2), slice(2, held)]
        said = error_on_every_rank(comm, lambda cut=slices: Batches(comm, x, y, slices=cut))
        expected = f"expected slices that cut 0 … {fewest} into pieces, got "
        assert said.startswith(f"rank {comm.size - 1}: {expected}"), said
    said = error_on_every_rank(comm, lambda: Batches(comm, x, y, slices=[]))
    assert "expected slices that cut" in said, said
    said = error_on_every_rank(comm, lambda: Batches(comm, x, y, 10, slices=[slice(0, held)]))
    assert "expected a global batch or slices, got both" in said, said
    if comm.size > 1:
        cut = [slice(0, held)] if last else [slice(0, 1), slice(1, held)]
        said = error_on_every_rank(comm, lambda: Batches(comm, x, y, slices=cut))
        assert "expected 2 slices as on rank 0, got 1 slices" in said, said
    empty = [slice(0, 0), slice(0, held)]
    said = error_on_every_rank(comm, lambda: Batches(comm, x, y, slices=empty))
    assert "expected a sample in each step" in said, said

    for shard, words in (
        ((x[:-1], y[:-1]), f"expected a shard of {fewest} samples in epoch 2 as before, got {fewest - 1}"),
        ((x.astype(np.float64), y), "float64"),
    ):
        batches = Batches(comm, x, y, reshard=lambda epoch, shard=shard: shard if last else (x, y))
        said = error_on_every_rank(
            comm, lambda batches=batches: train(comm, linear_regression(), batches, epochs=3, lr=0.1)
        )
        assert words in said, said
