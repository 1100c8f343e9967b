"""The exercises of notebook 07b: sharded gradients and parameters (ZeRO-2 and ZeRO-3)."""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

import numpy as np

from labkit.checks.compare import difference
from labkit.checks.exercise import Case, Exercise, Outcome
from labkit.exercises import wraps
from labkit.exercises.cases import calls
from labkit.exercises.nb07 import STANDS_STILL, TOGETHER, faults_of_mean
from labkit.text import counted


# Exercise 7.7
def predicted_bytes(stage, p, layers):
    """Return (parameters, gradient, state): a rank's bytes at the peak, per parameter of the network.

    `stage` is "plain", "ZeRO-1", "ZeRO-2" or "ZeRO-3". There are p ranks and equal layers, in float32.
    """
    chunk, layer = 4 / p, 4 / layers
    params, gradient, state = 4.0, 4.0, 8.0
    if stage != "plain":
        gradient, state = 4 + chunk, 2 * chunk
    if stage in ("ZeRO-2", "ZeRO-3"):
        gradient = chunk + layer
    if stage == "ZeRO-3":
        params = chunk + 2 * layer
    return params, gradient, state


PREDICTED_BYTES = Exercise(
    reference=predicted_bytes,
    cases=calls(
        predicted_bytes,
        *(
            (stage, p, layers)
            for stage in ("plain", "ZeRO-1", "ZeRO-2", "ZeRO-3")
            for p, layers in ((4, 10), (3, 5), (8, 96))
        ),
    ),
    mistakes={
        "AdamW keeps two running means, each as large as the parameters": {
            "8.0": "4.0",
            "2 * chunk": "chunk",
        },
        "the state is that of this rank's chunks alone: divide by p": {"2 * chunk": "8.0"},
        "ZeRO-1 keeps its chunks of the mean beside the whole local gradient": {"4 + chunk": "4.0"},
        "ZeRO-1 shards the state alone: the whole local gradient stays in memory": {"4 + chunk": "chunk"},
        "beside the chunks of the mean, the gradient of one layer is whole": {"chunk + layer": "chunk"},
        "two whole layers of the gradient are only there with overlap": {"+ layer": "+ 2 * layer"},
        "two layers are whole: the layer in use and the next one": {"2 * layer": "layer"},
        "beside the whole layers, the rank keeps its chunks of all parameters": {"chunk + 2": "2"},
        "ZeRO-3 includes ZeRO-2: the gradient is sharded, too": {'in ("ZeRO-2", "ZeRO-3")': '== "ZeRO-2"'},
    },
    hints=(
        "All chunks of a rank together are a p-th of the network, a layer is a part of `layers`. A parameter "
        "or a gradient takes 4 bytes, AdamW's state 8.",
        "ZeRO-1: only the gradient and the state differ from plain training. Beside the 4 bytes of the local "
        "gradient there is the mean of the chunks: 4 / p.",
        "ZeRO-2: the gradient is 4 / p + 4 / layers. ZeRO-3: the parameters are 4 / p and two layers.",
    ),
)


# Exercise 7.8
def reduce_scatter_overlapped(comm, backward, counts):
    """Run the backward pass; return this rank's chunk of each layer's mean gradient, as a dict by layer.

    `backward(ready)` calls ready(k, gradient) as soon as the gradient of layer k is complete, the last layer
    first. `gradient` is a flat array that nobody else keeps. Of its values, counts[k][r] belong to rank r.
    """
    chunks, under_way = {}, []

    def ready(k, gradient):
        gradient /= comm.size
        chunks[k] = np.empty(counts[k][comm.rank], gradient.dtype)
        request = comm.Ireduce_scatter(gradient, chunks[k], counts[k])
        under_way.append((request, gradient))  # MPI reads the gradient until the request is complete
        under_way[:] = [pair for pair in under_way if not pair[0].Test()]

    backward(ready)
    for request, _ in under_way:
        request.Wait()
    return chunks


# The last case has enough layers to show which gradients stay in memory.
SIZES = (
    (1, (4,), "float32"),
    (2, (4, 6), "float64"),
    (3, (7, 10, 3), "float32"),
    (4, (8, 3, 13, 6, 9), "float32"),
)  # ranks, values of each layer


def layers_label(p: int, sizes: Sequence[int], dtype: str) -> str:
    return f"{counted(p, 'rank')}, layers of {', '.join(map(str, sizes))} values, {dtype}"


def counts_of(p: int, sizes: Sequence[int]) -> list[list[int]]:
    """Return the sizes of the chunks: not those of np.array_split, whose first chunks are the longer ones."""
    return [[len(chunk) for chunk in reversed(np.array_split(np.empty(n), p))] for n in sizes]


def cut(layer: np.ndarray, p: int) -> list[np.ndarray]:
    """Return the chunks of a layer, one for each rank."""
    (counts,) = counts_of(p, [len(layer)])
    return np.split(layer, np.cumsum(counts)[:-1])


def gradient_cases() -> Iterator[Case]:
    for p, sizes, dtype in SIZES:
        arguments = []
        for rank in range(p):
            gradients = [(np.arange(1, n + 1) * 10.0**rank + k).astype(dtype) for k, n in enumerate(sizes)]
            arguments.append((wraps.LayersBackward(gradients), counts_of(p, sizes)))
        yield Case(layers_label(p, sizes, dtype), tuple(arguments))


def look_at_chunks(case: Case, outcomes: Sequence[Outcome]) -> Iterator[str]:
    sums = [sum(layer) for layer in zip(*(backward.gradients for backward, _ in case.arguments), strict=True)]
    for rank, outcome in enumerate(outcomes):
        chunks, notes = outcome.result
        expected_chunks = [cut(total, case.ranks)[rank] for total in sums]
        for fault in chain(
            faults_of_pass(notes, len(sums), case.ranks),
            faults_of_chunks(chunks, expected_chunks, case.ranks),
        ):
            yield f"rank {rank}: {fault}"


def faults_of_pass(notes: dict[str, Any], layers: int, p: int) -> Iterator[str]:
    if notes["at"] is None:
        yield "`backward` was never called"
    if notes["waits"]:
        yield f"it waits inside `ready`, {STANDS_STILL}"
    for name in notes["together"]:
        yield f"it calls MPI.Request.{name}, {TOGETHER}"
    for k in {*range(layers)} - {at for at, _, _ in notes["started"]}:
        yield f"the reduce-scatter of layer {k} was not started in `ready`, with `Ireduce_scatter`"
    if notes["pending"]:
        yield "the function returned while a reduce-scatter was under way: wait for all requests"
    if p > 1 and notes["untested"]:
        yield (
            "`ready` does not call every request's own Test(), so it cannot know what it may drop, and the "
            "MPI library may make no progress"
        )
    for k, j in notes["shared"]:
        yield (
            f"the reduce-scatter of layer {k} reads an array that the one of layer {j} still reads: give "
            "each an array of its own"
        )
    for k in notes["freed"]:
        yield (
            f"the array of layer {k} that MPI reads is freed meanwhile: keep a reference to it until its "
            "request is complete"
        )
    for k in notes["in_memory"]:
        yield (
            f"the chunk of layer {k} is a view of the whole gradient, which so stays in memory: receive into "
            "an array of the chunk's length"
        )
    for k in notes["kept_in_memory"]:
        yield (
            f"the array that the reduce-scatter of layer {k} has read is still in memory after it: keep no "
            "reference to it"
        )


def faults_of_chunks(result: Any, sums: Sequence[np.ndarray], p: int) -> Iterator[str]:
    if not isinstance(result, dict) or sorted(result) != list(range(len(sums))):
        yield f"expected a dict with the layers 0 to {len(sums) - 1} as keys, got {result!r:.60}"
    for k, total in enumerate(sums):
        yield from faults_of_mean(result[k], total, p, f"the chunk of layer {k}")


REDUCE_SCATTER_OVERLAPPED = Exercise(
    reference=reduce_scatter_overlapped,
    cases=gradient_cases,
    digest=wraps.with_notes,
    mistakes={
        "… not started in `ready`": {
            "    backward(ready)": (
                "    gradients = {}\n    backward(gradients.__setitem__)\n    ready(0, gradients[0])"
            )
        },
        "… stands still": {"pair[0].Test()": "pair[0].Wait()"},
        "… under way": {"    for request, _ in under_way:\n        request.Wait()\n": ""},
        "… does not call every request's": {
            "        under_way[:] = [pair for pair in under_way if not pair[0].Test()]\n": ""
        },
        "… own Test()": {  # of the newest one alone
            "under_way[:] = [pair for pair in under_way if not pair[0].Test()]": "request.Test()"
        },
        "… is freed meanwhile": {"(request, gradient))": "(request, None))"},
        "… of layer 1 that MPI reads is freed meanwhile": {  # only the newest array is kept
            "chunks, under_way = {}, []": "chunks, under_way, last = {}, [], [None]",
            "(request, gradient))": "(request, None))\n        last[0] = gradient",
        },
        "… that MPI reads is freed": {
            "gradient /= comm.size": "whole = gradient / np.float32(comm.size)",
            "scatter(gradient,": "scatter(whole,",
        },
        "… holds the sum": {"        gradient /= comm.size\n": ""},
        "… twice": {"    return chunks": "    return {k: chunk / comm.size for k, chunk in chunks.items()}"},
        "… is a view of the whole gradient": {
            "np.empty(counts[k][comm.rank], gradient.dtype)": "gradient[: counts[k][comm.rank]]",
            "Ireduce_scatter(gradient, chunks[k], counts": "Ireduce_scatter(MPI.IN_PLACE, gradient, counts",
        },
        "… is still in memory after it": {
            "chunks, under_way = {}, []": "chunks, under_way, gradients = {}, [], []",
            "chunks[k] = np": "gradients.append(gradient)\n        chunks[k] = np",
        },
        "… expected a dict": {"    return chunks": "    return list(chunks.values())"},
        "… `backward` was never called": {"    backward(ready)\n": ""},
    },
    look=look_at_chunks,
    wrap=wraps.noting,
    forbidden=("Allreduce", "allreduce", "Iallreduce", "Reduce", "Ireduce"),
    hints=(
        "As in exercise 7.4, define a function inside yours: `ready(k, gradient)`. It starts the "
        "reduce-scatter of this layer, and tests those that are under way.",
        "The reduce-scatter receives into an array of this rank's chunk alone, "
        "`np.empty(counts[k][comm.rank], gradient.dtype)`. Keep pairs (request, gradient) in a list, "
        "and drop each pair whose request is complete: "
        "`under_way[:] = [pair for pair in under_way if not pair[0].Test()]`.",
        "`request = comm.Ireduce_scatter(gradient, chunks[k], counts[k])`, after `gradient /= comm.size`. "
        "When `backward(ready)` has returned, call Wait() of each request that is left.",
    ),
)


# Exercise 7.9
def gather_ahead(comm, chunks, counts, order, use):
    """Call use(k, params) for each layer k in `order`, with the layer's parameters gathered from all ranks.

    `order` is a list of at least one layer. chunks[k] is this rank's chunk of layer k's parameters, and
    counts[k][r] the number of values of rank r's chunk. While `use` computes with one layer, the gather of
    the next one in `order` is under way. No more than these two layers are whole at any time.
    """

    def start(k):
        whole = np.empty(sum(counts[k]), chunks[k].dtype)
        return whole, comm.Iallgatherv(chunks[k], [whole, counts[k]])

    ahead = start(order[0])
    for place, k in enumerate(order):
        params, request = ahead  # the layer before is no longer referenced: its memory is free
        if place + 1 < len(order):
            ahead = start(order[place + 1])
        request.Wait()
        use(k, params)


def parameter_cases() -> Iterator[Case]:
    for p, sizes, dtype in SIZES:
        whole = [(100 * k + np.arange(n)).astype(dtype) for k, n in enumerate(sizes)]
        chunks = [[cut(layer, p)[rank].copy() for layer in whole] for rank in range(p)]
        for order in [[*range(len(sizes))], [*reversed(range(len(sizes)))]][: len(sizes)]:
            arguments = (
                (rank_chunks, counts_of(p, sizes), order, wraps.LayersUsed()) for rank_chunks in chunks
            )
            yield Case(f"{layers_label(p, sizes, dtype)}, order {order}", tuple(arguments))


def look_at_uses(case: Case, outcomes: Sequence[Outcome]) -> Iterator[str]:
    chunks, (_, _, order, _) = [arguments[0] for arguments in case.arguments], case.arguments[0]
    whole = [np.concatenate(part) for part in zip(*chunks, strict=True)]
    for rank, outcome in enumerate(outcomes):
        notes = outcome.result[1]
        for fault in faults_of_uses(notes["uses"], order, whole):
            yield f"rank {rank}: {fault}"
        if notes["whole"] > 2:
            yield (
                f"rank {rank}: {notes['whole']} layers are in memory when a gather starts: keep no reference "
                "to a layer that has been used"
            )
        if notes["pending"]:
            fault = "the function returned while a gather was under way: start none after the last layer"
            yield f"rank {rank}: {fault}"


def faults_of_uses(
    uses: Sequence[dict[str, Any]], order: list[int], whole: list[np.ndarray]
) -> Iterator[str]:
    for place, note in enumerate(uses):
        k, ahead, alive = (note[name] for name in ("k", "ahead", "alive"))
        if place >= len(order) or k != order[place]:
            wanted = f"layer {order[place]}" if place < len(order) else "no more calls"
            yield f"call {place + 1} of `use` is for layer {k}, expected {wanted}: follow `order`"
        if not note["complete"]:
            yield f"`use` gets layer {k} in an array that a gather is still filling: wait for that one first"
        wrong = difference(note["params"], whole[k], 0.0, f"for layer {k}, `params`")
        if wrong:
            others = [j for j, layer in enumerate(whole) if not difference(note["params"], layer, 0.0)]
            yield f"`use` gets the parameters of layer {others[0]} for layer {k}" if others else wrong
        during = f"while `use` has layer {k},"
        if ahead < 1 and place + 1 < len(order):
            yield f"{during} no gather is under way: start the next layer's before you call `use`"
        if ahead > 1:
            yield f"{during} {ahead} more are gathered: start only the next one's gather"
        if note["waited"]:
            yield f"{during} the next layer's gather has been waited for: wait just before its own `use`"
        if alive > 2:
            yield f"{during} {alive} layers are in memory: keep no reference to those that have been used"
    if len(uses) < len(order):
        yield f"`use` was called for {len(uses)} of {len(order)} layers"


GATHER_AHEAD = Exercise(
    reference=gather_ahead,
    cases=parameter_cases,
    digest=wraps.with_notes,
    mistakes={
        "… no gather is under way": """
def gather_ahead(comm, chunks, counts, order, use):
    for k in order:
        params = np.empty(sum(counts[k]), chunks[k].dtype)
        comm.Allgatherv(chunks[k], [params, counts[k]])
        use(k, params)
""",
        "… start only the next one": {
            "ahead = start(order[0])": "gathers = [start(k) for k in order]",
            "params, request = ahead": "params, request = gathers.pop(0)",
            "        if place + 1 < len(order):\n            ahead = start(order[place + 1])\n": "",
        },
        "… has been waited for": {
            "        request.Wait()\n": "",
            "counts[k]])": "counts[k]]).Wait()",
        },
        "… layers are in memory": {
            "    ahead = start(order[0])": "    used = []\n    ahead = start(order[0])",
            "        use(k, params)": "        use(k, params)\n        used.append(params)",
        },
        "… that a gather is still filling": {"        request.Wait()\n": ""},
        "… follow `order`": {"in enumerate(order)": "in enumerate(range(len(chunks)))"},
        "… gets the parameters of layer": {"start(order[place + 1])": "start((k + 1) % len(chunks))"},
        "… start none after the last layer": {
            "        if place + 1 < len(order):\n            ahead = start(order[place + 1])\n": (
                "        ahead = start(order[(place + 1) % len(order)])\n"
            )
        },
        "… `params` has shape": {"use(k, params)": "use(k, chunks[k])"},
        "… `use` was called for": {"in enumerate(order)": "in enumerate(order[:-1])"},
    },
    look=look_at_uses,
    wrap=wraps.noting,
    hints=(
        "Write a function `start(k)` inside yours: it makes an array for the whole layer, starts the gather "
        "and returns both the array and the request.",
        "`comm.Iallgatherv(chunks[k], [whole, counts[k]])` starts the gather. Call `start` for the first "
        "layer before the loop. In the loop: start the next layer, wait for this one, use it.",
        "Two pairs of names are enough: `params, request = ahead`, then `ahead = start(order[place + 1])`, "
        "if there is a next layer. Giving a name a new value drops the old array.",
    ),
)


QUESTIONS = {
    "07b-last-layer": "The gather of the last layer before its backward pass: it has just been dropped. "
    "Without it, a step has one exposed gather fewer, and less traffic. The memory does not "
    "grow: two layers may be whole.",
    "07b-update": "ZeRO-1 exposes all reduce-scatters and all gathers, (LAYERS, LAYERS): `average` "
    "begins after the backward pass, and `update` waits. ZeRO-2 exposes the last reduce-scatter and all "
    "gathers, (1, LAYERS). ZeRO-3 exposes the last reduce-scatter and the first gather of each pass, (1, 2). "
    "Starting all gathers first hides only AdamW's own time, which is short: the link carries one gather "
    "after the other. To hide them, let the next forward pass begin with the first layers while the others "
    "are on their way.",
    "07b-slow-link": "Whole gradients wait for the link, in the end those of nearly all layers. "
    "Let the backward pass wait as long as, say, two reduce-scatters are under way. This costs no time: the "
    "backward pass would wait for the link at its end anyway. `labkit train` does so.",
}
