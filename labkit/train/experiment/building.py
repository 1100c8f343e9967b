"""Build the parts of a run from its settings: links, averaging, the learning-rate schedule, the optimiser."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mpi4py import MPI

from labkit.comm import Averaging, CollectiveError, Link, parse_link, raise_together
from labkit.nn import SGD, Model
from labkit.nn.lr_schedules import LRSchedule, constant, cosine, linear_scaling, step_decay
from labkit.train import bottleneck
from labkit.train.bottleneck import Bottleneck
from labkit.train.buckets import Buckets
from labkit.units import MIB

WARM_UP_EPOCHS = 5  # as in Goyal et al., 2017


def bottlenecks(
    comm: MPI.Intracomm, settings: Mapping[str, Any]
) -> tuple[list[Bottleneck], list[Link] | None]:
    """Return the bottlenecks, and the links to emulate if any. Collective.

    Raise CollectiveError on every rank if --bottleneck or --link is wrong.
    """
    fault, links, found = None, None, []
    try:
        found = [bottleneck.parse(text) for text in settings["bottleneck"]]
        default = parse_link(settings["link"]) if settings["link"] else None
        links = bottleneck.links(found, comm.size, default)
        fault = bottleneck.check(found, comm.size, default)
        if links and settings["algorithm"] == "shared-memory":
            fault = "--algorithm shared-memory sends no messages, so there is no link to emulate"
    except ValueError as error:
        fault = str(error)
    raise_together(comm, fault)
    return found, links


def averaging(settings: Mapping[str, Any]) -> Averaging:
    """Return the averaging function. Raise CollectiveError, the same on all ranks, if there is none."""
    try:
        return Averaging(settings["algorithm"], settings["aggregate"])
    except ValueError as error:
        raise CollectiveError(f"--algorithm and --aggregate: {error}") from None


def lr_schedule(settings: Mapping[str, Any], steps: int, total: int, ranks: int) -> LRSchedule:
    """Return the learning rate by step, for a run of `total` steps, `steps` in each epoch.

    - constant
    - step: a tenth of the rate after each third of the run
    - cosine: down to 0 at the end of the run
    - warm-up: from the rate to `ranks` times the rate in the first five epochs, at most a third of the run
      (`linear_scaling`), for a global batch that is `ranks` times as large as the rate is meant for
    """
    lr = settings["lr"]
    schedules = {
        "constant": lambda: constant(lr),
        "step": lambda: step_decay(lr, -(-total // 3)),
        "cosine": lambda: cosine(lr, total),
        "warm-up": lambda: linear_scaling(ranks, min(WARM_UP_EPOCHS * steps, total // 3), constant(lr)),
    }
    return schedules[settings["lr_schedule"]]()


def contributions(settings: Mapping[str, Any]) -> bool:
    """Return whether to measure contributions: if asked for, or by default if that does not disturb the run.

    It costs two passes over the gradient in each step. It cannot be done where averaging overlaps with the
    backward pass.
    """
    wanted = settings["contributions"]
    return buckets(settings) is None if wanted is None else bool(wanted)


def buckets(settings: Mapping[str, Any]) -> Buckets | None:
    """Return the buckets of a run that averages during the backward pass; None for one that does not."""
    if settings["bucket_mb"]:
        largest = settings["bucket_mb"] * MIB
        return Buckets(largest, min(largest, Buckets().first_bytes))
    return Buckets() if settings["overlap"] else None


def optimizer(settings: Mapping[str, Any], model: Model) -> SGD | None:
    """Return the optimiser; None for plain gradient descent, which needs no velocity."""
    momentum, decay = settings["momentum"], settings["weight_decay"]
    return SGD(model.params, momentum, decay) if momentum or decay else None
