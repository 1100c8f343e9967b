"""`labkit train`: the training loop as a batch job."""

# ruff: noqa: PLC0415 (imports inside functions: NumPy and MPI load only where the command runs)

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    import numpy as np
    from mpi4py import MPI

    from labkit.comm import SharedSet
    from labkit.comm.emulation.links import Link
    from labkit.data import Scheme
    from labkit.nn import Model
    from labkit.train import Bottleneck, Epoch, Step, Straggler

# Where the user says nothing: the data set, epochs, learning rate and batch that suit a model. A batch of
# None is every sample, as in report A.
DEFAULTS: dict[str, dict[str, Any]] = {
    "linear": {"data": "linear", "epochs": 10, "lr": 0.1, "batch": None},
    "softmax": {"data": "digits", "epochs": 30, "lr": 0.5, "batch": 64},
}

# The lists of labkit.data and labkit.comm; to ask those would load NumPy.
DATA = ("linear", "digits", "mnist", "cifar10")
ALGORITHM = (
    "mpi", "allgather", "root", "ring", "tree", "recursive-doubling", "halving-doubling", "shared-memory"
)  # fmt: skip
AGGREGATE = ("sum", "mean", "weighted", "median", "trimmed-mean")
SHARD = ("contiguous", "strided", "shuffled", "by-label", "outlying", "weighted")

DRAWN = 8  # the last steps of the timeline; all of them are in the trace


@click.command
@click.option("--model", type=click.Choice(list(DEFAULTS)), default="linear", show_default=True)
@click.option("--data", type=click.Choice(DATA), help="Data set. [default: what suits the model]")
@click.option(
    "--shard",
    type=click.Choice(SHARD),
    help="Which samples each rank gets. With strided, shuffled and weighted the result does not depend on "
    "the number of ranks. [default: contiguous, with a batch strided]",
)
@click.option(
    "--epochs", type=click.IntRange(min=1), help="Passes over the data. [default: linear 10, softmax 30]"
)
@click.option(
    "--lr",
    type=click.FloatRange(min=0, min_open=True),
    help="Learning rate. [default: linear 0.1, softmax 0.5]",
)
@click.option(
    "--batch",
    type=click.IntRange(min=1),
    help="Samples in a step, of all ranks together: so the result does not depend on their number. "
    "[default: linear all samples, softmax 64]",
)
@click.option(
    "--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of weights and shuffling."
)
@click.option(
    "--bottleneck",
    multiple=True,
    metavar="RANK:KIND=AMOUNT",
    help="Slow one rank down: 3:slow-processor=3, 3:slow-link=100mbit (emulated; with --link also a factor), "
    "3:jitter=5ms or 3:pause=2s@10 (before step 10). May be given more than once.",
)
@click.option(
    "--link", metavar="RATE[+LATENCY]", help="Emulate the link of every rank, such as 1gbit or 1gbit+50us."
)
@click.option(
    "--algorithm",
    type=click.Choice(ALGORITHM),
    default="mpi",
    show_default=True,
    help="How the ranks' gradients come together: by MPI's own Allreduce, by one of ours, or, ranks of one "
    "machine, in memory that they share.",
)
@click.option(
    "--aggregate",
    type=click.Choice(AGGREGATE),
    default="weighted",
    show_default=True,
    help="What is made of them: a mean weighted by batch size, a mean where each rank counts alike, their "
    "sum, which multiplies the learning rate by the number of ranks, or, with --algorithm allgather, "
    "a median or a mean without the largest and smallest.",
)
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Directory for the results.")
@click.option("--ordered", is_flag=True, help="Put the lines of an epoch in order of their rank.")
def command(model: str, out: Path, seed: int, ordered: bool, **given: Any) -> None:
    """Train a model on the ranks that mpiexec started, one shard of the data each.

    Every rank prints, by epoch: its own and the global loss, the mean of its gradients, its contribution to
    the averaged gradient, and the time it waited and transferred. Rank 0 writes the results to --out.
    """
    from labkit.cli.ranks import ending_together, under_mpiexec

    if not under_mpiexec():  # one by itself: Open MPI would leave its shared memory behind
        os.environ.setdefault("OMPI_MCA_btl", "self")
    from mpi4py import MPI

    settings = {
        **DEFAULTS[model],
        **{name: value for name, value in given.items() if value not in (None, ())},
    }
    # Neighbouring samples for a step with all of them, as in report A; dealt like cards where steps are
    # smaller.
    settings.setdefault("shard", "contiguous" if settings["batch"] is None else "strided")
    comm = MPI.COMM_WORLD
    with ending_together(comm, "labkit train"):
        _run(comm, {"model": model, **settings, "seed": seed}, out, ordered)


def _run(comm: MPI.Intracomm, settings: dict[str, Any], out: Path, ordered: bool) -> None:
    from labkit import data
    from labkit.comm import (
        CollectiveError,
        EmulatedComm,
        SharedSet,
        algorithm,
        print_by_rank,
        raise_together,
        sleeping_barrier,
    )
    from labkit.nn import MODELS
    from labkit.train import Straggler, Timeline, gather, record, train
    from labkit.train.files import prepare

    bottlenecks, links = _slowed(comm, settings)
    try:
        averaging = algorithm(settings["algorithm"], settings["aggregate"])
    except ValueError as error:  # on all ranks alike
        raise CollectiveError(f"--algorithm and --aggregate: {error}") from None
    fault = None
    if comm.rank == 0:
        try:
            prepare(out)
        except OSError as error:
            fault = f"cannot write to --out {out}: {error.strerror}"
    raise_together(comm, fault)

    dataset = SharedSet(comm, settings["data"])
    raise_together(comm, _misfit(settings, dataset.labelled))
    model = MODELS[settings["model"]](dataset.features, dataset.outputs, settings["seed"])
    run = record(comm, settings)
    world = EmulatedComm(comm, links) if links else comm
    if isinstance(world, EmulatedComm):
        run["links"] = world.emulated
    straggler = Straggler(bottlenecks, comm.rank, comm.size, settings["seed"])
    if settings["shard"] == "weighted":
        run["speeds"] = _speeds(comm, model, dataset, straggler)

    def scheme(epoch: int) -> Scheme:
        return data.scheme(
            settings["shard"],
            targets=dataset.targets,
            seed=settings["seed"],
            epoch=epoch,
            speeds=run.get("speeds", ()),
        )

    x, y = dataset.shard(scheme(1))
    batch = settings["batch"]
    if batch and settings["shard"] == "weighted":
        n = len(dataset.targets)
        batch = data.in_order(scheme(1)(n, comm.rank, comm.size), n, batch)
    timeline = Timeline(comm)
    rows = train(
        world,
        model,
        x,
        y,
        epochs=settings["epochs"],
        lr=settings["lr"],
        batch=batch,
        algorithm=averaging,
        on_epoch=lambda row: print_by_rank(comm, _line(row), ordered),
        reshard=(lambda epoch: dataset.shard(scheme(epoch))) if settings["shard"] == "shuffled" else None,
        straggler=straggler,
        timeline=timeline,
    )
    rows, steps = gather(comm, rows), timeline.gather()
    fault = None
    if test := dataset.test():
        try:
            click.echo(_save(out, model, test, rows, steps, run))
        except OSError as error:
            fault = f"cannot write to --out {out}: {error.strerror}"
    sleeping_barrier(comm)  # rank 0 draws the plot
    raise_together(comm, fault)


def _misfit(settings: dict[str, Any], labelled: bool) -> str | None:
    """Return what is wrong with the pair of model and data, if anything."""
    if labelled == (settings["model"] == "softmax"):
        return None
    return (
        f"the model {settings['model']!r} does not fit the data {settings['data']!r}, whose targets are "
        f"{'labels' if labelled else 'values'}; use --data {DEFAULTS[settings['model']]['data']}"
    )


def _slowed(comm: MPI.Intracomm, settings: dict[str, Any]) -> tuple[list[Bottleneck], list[Link] | None]:
    """Return the bottlenecks, and the links to emulate if any; a CollectiveError if the user's are none."""
    from labkit.comm import raise_together
    from labkit.comm.emulation.links import parse_link
    from labkit.train import bottleneck

    fault, links = None, None
    try:
        found = [bottleneck.parse(text) for text in settings.get("bottleneck", ())]
        usual = parse_link(settings["link"]) if settings.get("link") else None
        links = bottleneck.links(found, comm.size, usual)
        fault = bottleneck.check(found, comm.size, usual)
        if links and settings["algorithm"] == "shared-memory":
            fault = "--algorithm shared-memory sends no messages, so there is no link to emulate"
    except ValueError as error:
        fault = str(error)
    raise_together(comm, fault)
    return found, links


def _speeds(comm: MPI.Intracomm, model: Model, dataset: SharedSet, straggler: Straggler) -> list[float]:
    """Return the ranks' speeds, measured on as many samples each. Collective."""
    from labkit.data import strided
    from labkit.train import speeds

    x, y = dataset.shard(strided)
    few = min(256, len(dataset.targets) // comm.size)
    return speeds(comm, model, x[:few], y[:few], straggler)


def _line(row: Epoch) -> str:
    means = " ".join(f"{name} {mean:+.4f}" for name, mean in row.gradient_mean.items())
    parts = " ".join(f"{name} {100 * part:.2f} %" for name, part in row.contribution.items())
    return (
        f"epoch {row.epoch}: loss {row.local_loss:.4f} (all ranks {row.global_loss:.4f}) · "
        f"mean gradient {means} · contribution {parts} · "
        f"wait {1e3 * row.wait_s:.3f} ms, transfer {1e3 * row.transfer_s:.3f} ms"
    )


def _save(  # noqa: PLR0917
    out: Path,
    model: Model,
    test_set: tuple[np.ndarray, np.ndarray],
    rows: list[Epoch],
    steps: list[Step],
    run: dict[str, Any],
) -> str:
    """Write the results, and return a line that sums them up."""
    import numpy as np

    from labkit.plots import losses, timeline
    from labkit.train import save, save_trace
    from labkit.train.files import atomic_write

    x, y = test_set
    test = {"test_loss": model.loss(x, y)}
    says = f"test loss {test['test_loss']:.4f}"
    if np.issubdtype(y.dtype, np.integer):
        test["test_accuracy"] = float((model.predict(x) == y).mean())
        says += f", test accuracy {100 * test['test_accuracy']:.2f} %"

    ranks = range(run["ranks"])
    figure = losses(
        [[row.local_loss for row in rows if row.rank == rank] for rank in ranks],
        [row.global_loss for row in rows if row.rank == 0],
    )
    with atomic_write(out / "loss.png") as file:
        figure.savefig(file, format="png", dpi=150)
    save_trace(out / "trace.json", steps, run)
    last = steps[-1].step
    with atomic_write(out / "timeline.png") as file:
        slowed = [*([run["links"]] if "links" in run else []), *run["settings"].get("bottleneck", ())]
        figure = timeline(steps, ", ".join(slowed), max(1, last - DRAWN + 1))
        figure.savefig(file, format="png", dpi=150)
    save(out, model, rows, {**run, **test})
    return f"{says}; results in {out}"
