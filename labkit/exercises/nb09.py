"""The exercises of notebook 09: beyond one machine."""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from labkit.checks.exercise import MPI, Case, Exercise, Outcome
from labkit.exercises.cases import calls, named
from labkit.exercises.job_script import PARTS, faults_by_part
from labkit.schedules import CostModel

NODES = named(
    {
        f"nodes {list(text)}": (list(text),)
        for text in ("a", "aa", "ab", "aba", "cabcab", "yxxyzx", "bbacaab", "")
    }
)


# Exercise 9.1
def places(nodes):
    """Return (number of the node, local rank) for each rank, from the ranks' node names.

    The nodes are numbered from 0 in the order in which their names first appear.
    """
    numbers, counts, pairs = {}, {}, []  # type: ignore[var-annotated]
    for node in nodes:
        number = numbers.setdefault(node, len(numbers))
        pairs.append((number, counts.get(node, 0)))
        counts[node] = counts.get(node, 0) + 1
    return pairs


PLACES = Exercise(
    reference=places,
    cases=NODES,
    mistakes={
        "the nodes are numbered by the alphabet; number them as their names first appear": {
            "numbers.setdefault(node, len(numbers))": "sorted(set(nodes)).index(node)"
        },
        "the local rank counts from 1; the first rank of a node has 0": {
            "counts.get(node, 0)))": "counts.get(node, 0) + 1))"
        },
        "the second number is the rank itself; count anew on each node": {
            "(number, counts.get(node, 0))": "(number, len(pairs))"
        },
        "a name that appears again is the same node; it keeps its number": {
            "    for node in nodes:": (
                "    runs = np.cumsum([a != b for a, b in zip(nodes, [None, *nodes])])\n"
                "    for node in runs.tolist():"
            )
        },
        "a pair holds the node's number, not its name": {"(number, counts": "(node, counts"},
        "the pairs are the wrong way round: the node's number first, then the local rank": {
            "(number, counts.get(node, 0))": "(counts.get(node, 0), number)"
        },
        "the result is in the order of the nodes; expected the order of the ranks": {
            "return pairs": "return sorted(pairs)"
        },
    },
    hints=(
        "Keep two dictionaries: the number of each node, and how many ranks each node has so far.",
        "`numbers.setdefault(node, len(numbers))` gives a new node the next number and returns its number.",
    ),
)


# Exercise 9.2
def job_script():
    """Return the text of a job script that trains LeNet-5 on four nodes, and saves before the limit."""
    return """#!/bin/bash
#SBATCH --job-name=lenet5
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=1
#SBATCH --time=00:30:00
#SBATCH --signal=B:USR1@60
#SBATCH --requeue
#SBATCH --open-mode=append

export OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1
if [ -e "$1/checkpoint.npz" ]; then
    options=(--resume "$1")
else
    options=(--out "$1" --model lenet5 --data digits --epochs 4)
fi
mpiexec -n "$SLURM_NTASKS" labkit train "${options[@]}" &
ranks=$!
trap 'kill -USR1 $ranks' USR1
while kill -0 $ranks 2>/dev/null; do  # as long as mpiexec runs
    wait $ranks
done
wait $ranks  # its exit code, also if a signal has interrupted the last wait
exit $?
"""


def look_at_the_script(case: Case, outcomes: Sequence[Outcome]) -> Iterator[tuple[str, str]]:
    script = outcomes[0].result
    if isinstance(script, str):
        yield from faults_by_part(script)
        return
    kind = type(script).__name__
    for part in PARTS:
        yield part, f"expected the text of a script, got {kind}. Does every path return it?"


JOB_SCRIPT = Exercise(
    reference=job_script,
    cases=lambda: [Case("this script", ((),))],
    mistakes={
        "… --requeue": {"#SBATCH --requeue\n": ""},
        "… OMP_NUM_THREADS is not 1": {"export OMP_NUM_THREADS=1 ": "export "},
        "… did not pass it on": {"trap 'kill -USR1 $ranks' USR1": "trap 'true' USR1"},
        "… does not catch SIGUSR1": {"trap 'kill -USR1 $ranks' USR1\n": ""},
        "… which interrupts `wait`: go on and wait again": {
            "while kill -0 $ranks 2>/dev/null; do  # as long as mpiexec runs\n    wait $ranks\ndone\n": ""
        },
        "… the script killed mpiexec": {"kill -USR1 $ranks'": "kill -USR1 $ranks; sleep 60; kill -9 $ranks'"},
        "… , the script with 0": {"exit $?": "exit 0"},
        "… labkit train --resume": {"(--resume": "(--out"},
        "… Does every path return it?": {'return """': 'text = """'},
    },
    parts=PARTS,
    look_at_parts=look_at_the_script,
    deadline_s=60.0,
    hints=(
        "Begin with the #SBATCH lines, one option per line, above the first command.",
        "`mpiexec … &`, then `ranks=$!`, then `trap 'kill -USR1 $ranks' USR1`.",
        "Call `wait $ranks` in a loop for as long as `kill -0 $ranks` succeeds: a signal interrupts `wait`. "
        "Call it once more after the loop, for the exit code.",
    ),
)


# Exercise 9.3
def wait_for_graph(ranks):
    """Return, for each rank of a hang report, the sorted list of the ranks that it waits for, as a dict.

    `ranks` is the report's list `ranks`: a dict for each rank, with its number (`rank`), its `activity`, the
    `message` and the `calls` (collectives, the last one is the latest).
    """
    graph = {}
    for mine in ranks:
        others = [rank["rank"] for rank in ranks if rank["rank"] != mine["rank"]]
        waits = []
        if mine["activity"] == "WAITING_FOR_MESSAGE":
            peer = mine["message"]["peer"]
            waits = others if peer is None else [peer]
        elif mine["activity"] == "WAITING_IN_COLLECTIVE":
            number = mine["calls"][-1]["number"]
            for rank in ranks:
                is_in_it = (
                    rank["activity"] == "WAITING_IN_COLLECTIVE" and rank["calls"][-1]["number"] == number
                )
                if not is_in_it:
                    waits.append(rank["rank"])
        graph[mine["rank"]] = sorted(waits)
    return graph


def row(rank: int, activity: str, done: int, peer: int | None = None, held: int = 9) -> dict[str, Any]:
    """Return the report's row of a rank that has made this many calls, of which it holds the last ones."""
    calls = [{"number": k + 1, "operation": "allreduce"} for k in range(done)][-held:]
    message = {"operation": "Recv", "peer": peer, "tag": None} if activity == RECEIVING else None
    return {"rank": rank, "activity": activity, "message": message, "calls": calls}


RECEIVING, JOINED = "WAITING_FOR_MESSAGE", "WAITING_IN_COLLECTIVE"
WAIT_FOR_GRAPH = Exercise(
    reference=wait_for_graph,
    cases=named(
        {
            "two ranks that receive from each other": ([row(0, RECEIVING, 0, 1), row(1, RECEIVING, 0, 0)],),
            "three ranks, two receive from rank 0": (
                [row(0, "RETURNED", 0), row(1, RECEIVING, 0, 0), row(2, RECEIVING, 0, 0)],
            ),
            "three ranks in another order": (
                [row(2, JOINED, 2), row(0, RECEIVING, 1, 2), row(1, JOINED, 2)],
            ),
            "four ranks in another order, two of them missing": (
                [row(3, JOINED, 2), row(2, "RETURNED", 1), row(1, JOINED, 2), row(0, "RETURNED", 1)],
            ),
            "a report that holds the last call alone": (
                [row(0, JOINED, 3, held=1), row(1, JOINED, 2, held=1), row(2, JOINED, 3, held=1)],
            ),
            "a missing rank": ([row(0, JOINED, 2), row(1, "RETURNED", 1), row(2, JOINED, 2)],),
            "a missing rank that has finished the same number of calls as the others before": (
                [row(0, JOINED, 1), row(1, RECEIVING, 1, 2), row(2, JOINED, 1), row(3, JOINED, 1)],
            ),
            "two collectives": ([row(0, JOINED, 3), row(1, JOINED, 2), row(2, JOINED, 3)],),
            "a receive from any source": ([row(0, RECEIVING, 0), row(1, "EXITED", 4), row(2, JOINED, 5)],),
            "a chain to a rank that computes": (
                [row(0, RECEIVING, 0, 2), row(1, "RUNNING", 0), row(2, RECEIVING, 0, 1)],
            ),
        }
    ),
    mistakes={
        "the arrows point the wrong way: list the ranks that this rank waits for": {
            "return graph": "return {a: [b for b in graph if a in graph[b]] for a in graph}"
        },
        "a rank in a collective waits for all ranks that are not in it, not for all others": {
            "if not is_in_it:": "if rank is not mine:"
        },
        "a rank in another collective (another number) has not joined this one: it is waited for": {
            ' and rank["calls"][-1]["number"] == number': ""
        },
        "a rank that has finished this collective is no longer in it: look at its activity, too": {
            'rank["activity"] == "WAITING_IN_COLLECTIVE" and rank["calls"][-1]["number"]': (
                'len(rank["calls"])'
            )
        },
        "a rank waits for those in an earlier collective, and also for those in a later one": {
            "== number": ">= number"
        },
        "a receive from any source (peer None) waits for all other ranks": {"others if": "[] if"},
        "a rank in a collective waits, too: for the ranks that are not in it": {
            'mine["activity"] == "WAITING_IN_COLLECTIVE"': "False"
        },
    },
    hints=(
        "Three cases, by `activity`: WAITING_FOR_MESSAGE waits for `message['peer']`, "
        "WAITING_IN_COLLECTIVE for every rank that is not in this collective, anything else for no rank.",
        "A rank is in collective number k if its activity is WAITING_IN_COLLECTIVE and its last call, "
        "`calls[-1]['number']`, is k.",
    ),
)


# Exercise 9.4
def spread(comm, wire, limit):
    """Let heat spread along a ring of wire until no value changes by `limit`; return (steps, wire).

    Shape: wire (n,), the same on all ranks, n >= p; each rank computes its part of np.array_split. Each rank
    returns the number of steps and the whole wire.
    """
    left, right = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
    part = np.array_split(wire, comm.size)[comm.rank]
    steps = 0
    while True:
        from_left, from_right = np.empty(1), np.empty(1)
        comm.Sendrecv(part[-1:], dest=right, recvbuf=from_left, source=left)
        comm.Sendrecv(part[:1], dest=left, recvbuf=from_right, source=right)
        padded = np.concatenate([from_left, part, from_right])
        change = (padded[:-2] - 2 * part + padded[2:]) / 4
        part = part + change
        steps += 1
        largest = comm.allreduce(np.abs(change).max(), op=MPI.MAX)
        if largest < limit:
            break
    return steps, np.concatenate(comm.allgather(part))


def wires() -> Iterator[Case]:
    # On three and four ranks, rank 0 is neither the first nor the last whose part stops changing.
    for p, n, first, heated, limit in (
        (1, 6, 0, 2, 5.0),
        (2, 7, 0, 2, 5.0),
        (3, 12, 4, 3, 2.0),
        (4, 26, 5, 5, 0.5),
    ):
        wire = np.zeros(n)
        wire[first : first + heated] = 100.0
        yield Case(f"{p} ranks, {n} values, limit {limit}", ((wire, limit),) * p)


def spread_on_one_rank(wire: np.ndarray, limit: float) -> tuple[int, np.ndarray]:
    largest, steps = np.inf, 0
    while largest >= limit:
        change = (np.roll(wire, 1) - 2 * wire + np.roll(wire, -1)) / 4
        wire, largest, steps = wire + change, np.abs(change).max(), steps + 1
    return steps, wire


def look_at_the_neighbours(case: Case, outcomes: Sequence[Outcome]) -> Iterator[str]:
    for rank, outcome in enumerate(outcomes if case.ranks > 1 else ()):
        for neighbour in ((rank - 1) % case.ranks, (rank + 1) % case.ranks):
            steps, sent = outcome.result[0], outcome.messages[neighbour]
            if sent < steps:
                yield (
                    f"the result is right, but in {steps} steps rank {rank} sent {sent} messages to its "
                    f"neighbour {neighbour}; let each rank compute its own part only, and send its ends in "
                    "every step"
                )


SPREAD = Exercise(
    reference=spread,
    cases=wires,
    expected=lambda case: [spread_on_one_rank(*case.arguments[0])] * case.ranks,
    mistakes={
        "it stops when the rank with the smallest change is done; wait for the largest": {"MAX": "MIN"},
        "it stops when the ranks' mean of the largest changes is small; take their maximum": {
            ", op=MPI.MAX)": ") / comm.size"
        },
        "it stops when the ranks' sum of the largest changes is small; take their maximum": {"MAX": "SUM"},
        "it stops when rank 0 is done; other ranks may still change": {
            "comm.allreduce(np.abs(change).max(), op=MPI.MAX)": "comm.bcast(np.abs(change).max())"
        },
        "the change of the last step is not added to the wire": {
            "        part = part + change\n": "",
            "            break\n": "            break\n        part = part + change\n",
        },
        "… send its ends in every step": {
            "np.array_split(wire, comm.size)[comm.rank]": "wire",
            "comm.Sendrecv(part[-1:], dest=right, recvbuf=from_left, source=left)": "from_left[:] = part[-1]",
            "comm.Sendrecv(part[:1], dest=left, recvbuf=from_right, source=right)": "from_right[:] = part[0]",
            "comm.allgather(part)": "[part]",
        },
        "… changes its argument": {"part = part + change": "part += change"},
        "… is waiting in allgather": {
            "comm.allreduce(np.abs(change).max(), op=MPI.MAX)": "np.abs(change).max()"
        },
    },
    look=look_at_the_neighbours,
    hints=(
        "A rank leaves the loop when *its own* part changes by less than the limit. Ranks whose part is "
        "cold leave in the first step; the others then wait for values that no rank sends.",
        "All ranks must leave in the same step, so all of them must compare the same number.",
        "`largest = comm.allreduce(largest, op=MPI.MAX)` before the `if`.",
    ),
)


# Exercise 9.5
def predicted_step(ranks, compute_s, nbytes, model, scaling):
    """Return the time (s) of a step on `ranks` ranks: computation, then a ring all-reduce of the gradient.

    `compute_s` is the computation time on one rank, `nbytes` the size of the gradient. `model` has alpha (s
    per message), beta (s per byte sent) and gamma (s per byte reduced). `scaling` is "strong" (the ranks
    share the computation evenly) or "weak" (each rank computes as long as one rank alone).
    """
    chunk = nbytes / ranks
    averaging = 2 * (ranks - 1) * (model.alpha + chunk * model.beta) + (ranks - 1) * chunk * model.gamma
    if scaling == "strong":
        return compute_s / ranks + averaging
    return compute_s + averaging


PREDICTED_STEP = Exercise(
    reference=predicted_step,
    cases=calls(
        predicted_step,
        *(
            (ranks, compute_s, nbytes, CostModel(alpha, beta, gamma), scaling)
            for ranks, compute_s, nbytes, alpha, beta, gamma in (
                (1, 2.0, 64, 0.5, 0.25, 0.125),
                (2, 1.0, 64, 0.5, 0.0, 0.0),
                (4, 1.0, 64, 0.0, 0.25, 0.0),
                (4, 1.0, 64, 0.0, 0.0, 0.125),
                (4, 1.0, 64, 0.5, 0.25, 0.125),
                (3, 1.0, 100, 0.5, 0.25, 0.125),
                (256, 3.0, 1 << 20, 2e-5, 1e-9, 3e-10),
            )
            for scaling in ("strong", "weak")
        ),
    ),
    tolerance=1e-6,
    mistakes={
        "the computation is not shared: in strong scaling each rank does 1/p of it": {
            "compute_s / ranks": "compute_s"
        },
        "in weak scaling each rank computes as long as one rank alone": {
            "return compute_s + averaging": "return compute_s / ranks + averaging"
        },
        "strong and weak scaling are exchanged": {'"strong":': '"weak":'},
        "a ring all-reduce has 2 (p - 1) rounds: reduce-scatter and all-gather": {"2 * ": ""},
        "each message carries a chunk of n / p bytes, not the whole gradient": {"nbytes / ranks": "nbytes"},
        "each of the 2 (p - 1) messages has a latency, not only the first": {
            "2 * (ranks - 1) * (model.alpha + chunk * model.beta)": (
                "(model.alpha if ranks > 1 else 0) + 2 * (ranks - 1) * chunk * model.beta"
            )
        },
        "there are p - 1 rounds in each half of a ring, not p": {"(ranks - 1)": "ranks"},
        "only the reduce-scatter adds: gamma counts p - 1 chunks": {"+ (ranks - 1)": "+ 2 * (ranks - 1)"},
        "the reduction cost gamma is missing": {" + (ranks - 1) * chunk * model.gamma": ""},
    },
    hints=(
        "Count for one rank: how many messages and bytes does it send, how many bytes does it add?",
        "It sends 2 (p - 1) messages of n / p bytes. Only the p - 1 of the reduce-scatter are reduced.",
    ),
)


# Exercise 9.6
def ring_order(nodes):
    """Return the ranks in the order in which the ring visits them, one node after the other.

    The nodes are in the order in which their names first appear, and the ranks of a node in the order of
    their numbers.
    """
    return sorted(range(len(nodes)), key=lambda rank: nodes.index(nodes[rank]))


RING_ORDER = Exercise(
    reference=ring_order,
    cases=NODES,
    mistakes={
        "this is each rank's position in the ring; expected the ranks in the order of the positions": {
            "return sorted": "order = sorted",
            "]))": "]))\n    return [order.index(rank) for rank in range(len(nodes))]",
        },
        "this is the order of the ranks' numbers, which goes back and forth between the nodes": {
            "nodes.index(nodes[rank])": "rank"
        },
        "the nodes are in the order of the alphabet; expected the order in which they first appear": {
            "nodes.index(nodes[rank])": "nodes[rank]"
        },
        "this visits all local ranks 0 first, then all 1: every message goes to another node": {
            "nodes.index": "nodes[:rank].count"
        },
        "these are the nodes' names; expected the ranks' numbers": {
            "range(len(nodes)), key=lambda rank: nodes.index(nodes[rank])": "nodes, key=nodes.index"
        },
        "the ranks of a node are in falling order": {
            "nodes.index(nodes[rank])": "(nodes.index(nodes[rank]), -rank)"
        },
    },
    hints=(
        "Sort the ranks by the number of their node. `sorted` keeps the order of equal ones.",
        "Write `sorted(range(len(nodes)), key=…)`. `nodes.index(name)` is where a name first appears.",
    ),
)


QUESTIONS = {
    "09-lost": "The ranks train on after the checkpoint. What they compute until the limit (at a real one, "
    "for up to S + 60 seconds) is computed again, from the same state with the same samples. That needs the "
    "parameters, the velocity of momentum, and progress and settings (with the seed), which give the next "
    "samples. Without a signal, everything since the last checkpoint is lost; `--checkpoint-every N` writes "
    "one every N steps.",
    "09-cycle": "In the report of four ranks, 0 → 1 → 0: rank 0 needs rank 1, and rank 1 needs all ranks in "
    "its collective, so this is a deadlock. The second graph has the same cycle, because rank 0 has arrows "
    "to ranks 1 and 2, but no deadlock: rank 0 needs one sender, and rank 2, which waits for no rank, will "
    "be it.",
    "09-fastest": "The time is T/p + 2(p - 1)(α + βn/p). Its derivative is zero at p* = √((T - 2βn) / "
    "2α). With your T, the formula gives the numbers of ranks in the output, which were found by trying all "
    "p. Olivia's p* lies below Piz Daint's, though its bandwidth is higher: its latency is, "
    "too. T is far larger than 2βn, so ten times the bandwidth hardly moves p*, while a tenth of the "
    "latency multiplies it by √10, to more ranks than images.",
    "09-leaders": "No: seven cards of each node would be idle. Reduce-scatter inside the node, then let "
    "each GPU all-reduce its chunk with the GPUs of the same local rank on other nodes, and all-gather "
    "inside the node. This is the sum in two levels of exercise 5.6.",
}
