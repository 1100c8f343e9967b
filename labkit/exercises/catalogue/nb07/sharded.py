"""An optimiser whose momentum is sharded over the ranks."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from labkit.exercises.exercise import Case, Exercise, Outcome

if TYPE_CHECKING:
    from mpi4py import MPI  # the reference's prelude imports it; a notebook's kernel must not load MPI


def sharded_step(comm, params, grads, velocity, lr, momentum):  # type: ignore[no-untyped-def]  # noqa: PLR0917
    """Update `params` in place with the mean gradient of all ranks; each rank updates its own chunk.

    Shapes: params, grads (n,); velocity: this rank's chunk. The n values are cut into one chunk for each
    rank, as np.array_split cuts them. The rule is velocity = momentum * velocity + mean gradient, then
    params -= lr * velocity. Change `velocity` in place, too.
    """
    counts = [len(chunk) for chunk in np.array_split(params, comm.size)]
    start = sum(counts[: comm.rank])
    mean = np.empty_like(velocity)
    comm.Reduce_scatter(grads, mean, counts)
    mean /= comm.size
    velocity *= momentum
    velocity += mean
    params[start : start + len(velocity)] -= lr * velocity
    comm.Allgatherv(MPI.IN_PLACE, [params, counts])


def _sharded_cases() -> Sequence[Case]:
    cases = []
    sizes = (
        *((1, 3, "float32"), (2, 4, "float32"), (2, 5, "float64"), (3, 8, "float32")),
        *((4, 3, "float32"), (4, 26, "float32")),
    )
    for p, n, dtype in sizes:
        rng = np.random.default_rng(n)
        params = rng.normal(size=n).astype(dtype)
        velocity = np.array_split(rng.normal(size=n).astype(dtype), p)
        arguments = [
            (params.copy(), rng.normal(size=n).astype(dtype), velocity[rank].copy(), 0.5, 0.75)
            for rank in range(p)
        ]
        cases.append(Case(f"{p} ranks, {n} parameters, {dtype}", tuple(arguments)))
    return cases


def _whole(case: Case, mean: bool = True) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return all parameters, the mean (or summed) gradient and all ranks' velocity before the step."""
    params, grads, velocity, _, _ = zip(*case.arguments, strict=True)
    total = np.sum(grads, axis=0, dtype=grads[0].dtype)
    return params[0], total / case.ranks if mean else total, np.concatenate(velocity)


def _stepped(case: Case, mean: bool = True, **change: float) -> tuple[np.ndarray, np.ndarray]:
    params, grads, velocity = _whole(case, mean)
    factor = {"gradient": 1.0, "momentum": 0.75, **change}
    velocity = (factor["momentum"] * velocity + factor["gradient"] * grads).astype(params.dtype)
    return (params - 0.5 * velocity).astype(params.dtype), velocity


def _own_chunk_only(case: Case) -> Sequence[Any]:
    before, (after, _) = _whole(case)[0], _stepped(case)
    bounds = np.cumsum([0, *(len(arguments[2]) for arguments in case.arguments)])
    stepped = [before.copy() for _ in range(case.ranks)]
    for rank, (start, stop) in enumerate(pairwise(bounds)):
        stepped[rank][start:stop] = after[start:stop]
    return stepped


def _at_equal_offsets(case: Case) -> Sequence[Any]:
    """Return what each rank's chunk at rank * (n // p) leads to, if the ranks gather the right chunks."""
    params, grads, velocity = _whole(case)
    bounds, gathered = np.cumsum([0, *(len(each[2]) for each in case.arguments)]), params.copy()
    for rank, (start, stop) in enumerate(pairwise(bounds)):
        own, shifted = params.copy(), rank * (len(params) // case.ranks)
        own[shifted : shifted + stop - start] -= 0.5 * (0.75 * velocity[start:stop] + grads[start:stop])
        gathered[start:stop] = own[start:stop]
    return [gathered] * case.ranks


def _every_rank(case: Case, result: tuple[np.ndarray, np.ndarray]) -> Sequence[Any]:
    return [result[0]] * case.ranks


def _look_at_velocity(case: Case, outcomes: Sequence[Outcome]) -> str | None:
    bounds = np.cumsum([0, *(len(arguments[2]) for arguments in case.arguments)])
    for rank, (start, stop) in enumerate(pairwise(bounds)):
        before, after = case.arguments[rank][2], outcomes[rank].arguments[2]
        if stop > start and np.array_equal(before, after):
            return (
                f"rank {rank}: the parameters are right, but `velocity` is unchanged, so the next step "
                "begins from the old one. Change it in place (velocity *= …)"
            )
        if not np.allclose(after, _stepped(case)[1][start:stop], rtol=1e-4, atol=1e-6):
            return f"rank {rank}: the parameters are right, but `velocity` does not hold this chunk's new one"
    return None


EXERCISES = [
    Exercise(
        reference=sharded_step,
        title="A sharded optimiser (ZeRO-1)",
        difficulty=4,
        minutes=25,
        cases=_sharded_cases,
        expected=lambda case: _every_rank(case, _stepped(case)),
        suspects={
            "the ranks' gradients are added up: divide the sum by the number of ranks": lambda case: (
                _every_rank(case, _stepped(case, mean=False))
            ),
            "the chunks do not all begin at rank * (n // p): the first n % p of them are longer": (
                _at_equal_offsets
            ),
            "each rank has updated only its own chunk: gather the other ranks' chunks": _own_chunk_only,
            "the momentum is missing: velocity = momentum * velocity + mean": lambda case: _every_rank(
                case, _stepped(case, momentum=0.0)
            ),
            "the gradient is scaled by 1 - momentum, which this rule does not do": lambda case: _every_rank(
                case, _stepped(case, gradient=0.25)
            ),
            "the old velocity is not multiplied by momentum": lambda case: _every_rank(
                case, _stepped(case, momentum=1.0)
            ),
        },
        look=_look_at_velocity,
        on_ranks=True,
        result_in=0,
        may_change=(1, 2),
        forbidden=("Allreduce", "allreduce", "Iallreduce", "Reduce", "reduce", "allgather", "gather"),
        prelude="import numpy as np\nfrom mpi4py import MPI",
        hints=(
            "Four steps: reduce-scatter the gradients, update the velocity of your chunk, update your chunk "
            "of the parameters, all-gather the chunks.",
            "Reduce_scatter_block needs equal chunks. Reduce_scatter(sendbuf, recvbuf, counts) takes each "
            "rank's number of values: `counts = [len(c) for c in np.array_split(params, comm.size)]`.",
            "`comm.Allgatherv(MPI.IN_PLACE, [params, counts])` gathers the chunks in place.",
        ),
    ),
]
