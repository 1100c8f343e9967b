"""Wrong answers to the exercises of notebook 09, and the finding that each must get."""

from labkit.exercises.catalogue.nb09 import hangs, hierarchy, job_script, places, prediction
from labkit.exercises.reference import reference_text

REFERENCE = {
    exercise.name: reference_text(exercise)
    for module in (places, job_script, hangs, prediction, hierarchy)
    for exercise in module.EXERCISES
}


def changed(name: str, finding: str, *changes: tuple[str, str]) -> tuple[str, str, str]:
    """Return the entry for the reference with parts replaced; raise ValueError if a part is not in it."""
    text = REFERENCE[name]
    for old, new in changes:
        if old not in text:
            raise ValueError(f"expected {old!r} in {name}")
        text = text.replace(old, new)
    return name, finding, text


WRONG = [
    changed(
        "places",
        "by the alphabet",
        ("numbers.setdefault(node, len(numbers))", "sorted(set(nodes)).index(node)"),
    ),
    changed("places", "counts from 1", ("counts.get(node, 0)))", "counts.get(node, 0) + 1))")),
    changed("places", "is the rank itself", ("counts.get(node, 0)))", "len(found)))")),
    changed("places", "not its name", ("(number, counts", "(node, counts")),
    (
        "places",
        "it keeps its number",
        """
def places(nodes):
    found, number, local = [], 0, 0
    for rank, node in enumerate(nodes):
        if rank and node == nodes[rank - 1]:
            local += 1
        elif rank:
            number, local = number + 1, 0
        found.append((number, local))
    return found
""",
    ),
    changed(
        "ring_order",
        "position in the ring",
        ("return sorted", "order = sorted"),
        ("]))", "]))\n    return [order.index(rank) for rank in range(len(nodes))]"),
    ),
    changed("ring_order", "order of the alphabet", ("nodes.index(nodes[rank])", "nodes[rank]")),
    changed(
        "ring_order", "back and forth", ("key=lambda rank: nodes.index(nodes[rank])", "key=lambda rank: rank")
    ),
    changed(
        "ring_order",
        "every message goes to another node",
        ("nodes.index(nodes[rank])", "nodes[:rank].count(nodes[rank])"),
    ),
    changed("ring_order", "falling order", ("nodes.index(nodes[rank])", "(nodes.index(nodes[rank]), -rank)")),
    changed("job_script", "--requeue", ("#SBATCH --requeue\n", "")),
    changed("job_script", "OMP_NUM_THREADS is not 1", ("export OMP_NUM_THREADS=1 ", "export ")),
    changed("job_script", "did not pass it on", ("trap 'kill -USR1 $ranks' USR1", "trap 'true' USR1")),
    changed("job_script", "does not catch SIGUSR1", ("trap 'kill -USR1 $ranks' USR1\n", "")),
    changed("job_script", ", the script with 0", ("exit $status", "exit 0")),
    changed("job_script", "labkit train --resume", ("(--resume", "(--out")),
    changed("job_script", "Is a `return` missing?", ('return """', 'text = """')),
    changed(
        "wait_for_graph",
        "the wrong way",
        ("return graph", "return {a: [b for b in graph if a in graph[b]] for a in graph}"),
    ),
    changed("wait_for_graph", "not for all others", ("if not is_in_it:", "if each is not mine:")),
    changed("wait_for_graph", "has not joined this one", (' and each["calls"][-1]["number"] == number', "")),
    changed(
        "wait_for_graph",
        "look at its activity",
        (
            'each["activity"] == "WAITING_IN_COLLECTIVE" and each["calls"][-1]["number"] == number',
            'len(each["calls"]) == number',
        ),
    ),
    changed("wait_for_graph", "peer None", ("others if peer is None", "[] if peer is None")),
    changed("wait_for_graph", "waits, too", ('mine["activity"] == "WAITING_IN_COLLECTIVE"', "False")),
    changed("spread", "hang", ("comm.allreduce(np.abs(change).max(), op=MPI.MAX)", "np.abs(change).max()")),
    changed("spread", "smallest change", ("op=MPI.MAX", "op=MPI.MIN")),
    changed("spread", "mean of the largest", (", op=MPI.MAX)", ") / comm.size")),
    changed("spread", "sum of the largest", ("op=MPI.MAX", "op=MPI.SUM")),
    changed(
        "spread",
        "rank 0 is done",
        ("comm.allreduce(np.abs(change).max(), op=MPI.MAX)", "comm.bcast(np.abs(change).max())"),
    ),
    changed("spread", "changes its argument", ("part = part + change", "part += change")),
    changed(
        "spread",
        "hang",
        (
            "comm.Sendrecv(part[-1:], dest=right, recvbuf=from_left, source=left)",
            "comm.Recv(from_left, source=left)\n        comm.Send(part[-1:], dest=right)",
        ),
    ),
    changed("predicted_step", "not shared", ("compute_s / ranks", "compute_s")),
    changed("predicted_step", "exchanged", ('"strong"', '"weak"')),
    changed("predicted_step", "2 (p - 1) rounds", ("2 * (ranks - 1)", "(ranks - 1)")),
    changed(
        "predicted_step",
        "not the whole gradient",
        ("chunk * cost.beta", "nbytes * cost.beta"),
        ("chunk * cost.gamma", "nbytes / ranks * cost.gamma"),
    ),
    changed(
        "predicted_step",
        "has a latency",
        (
            "2 * (ranks - 1) * (cost.alpha + chunk * cost.beta)",
            "(cost.alpha if ranks > 1 else 0) + 2 * (ranks - 1) * chunk * cost.beta",
        ),
    ),
    changed("predicted_step", "not p", ("(ranks - 1)", "ranks")),
    changed(
        "predicted_step",
        "only the reduce-scatter adds",
        ("+ (ranks - 1) * chunk * cost.gamma", "+ 2 * (ranks - 1) * chunk * cost.gamma"),
    ),
    changed("predicted_step", "gamma is missing", (" + (ranks - 1) * chunk * cost.gamma", "")),
    changed(
        "hierarchical_average",
        "mean of the nodes' means",
        ("inside.Reduce(array, total)", "inside.Reduce(array, total)\n    total /= inside.size"),
        ("total / comm.size", "total / nodes_used"),
        ("leaders.Free()", "nodes_used = leaders.size\n        leaders.Free()"),
    ),
    changed("hierarchical_average", "this is the sum", ("total / comm.size", "total")),
    changed(
        "hierarchical_average",
        "by the number of nodes",
        ("leaders.Free()", "used = leaders.size\n        leaders.Free()"),
        ("total / comm.size", "total / used"),
    ),
    changed(
        "hierarchical_average",
        "must all-reduce",
        ("        leaders.Allreduce(MPI.IN_PLACE, total)\n", ""),
        ("total / comm.size", "total / inside.size"),
    ),
    changed("hierarchical_average", "broadcast it inside", ("    inside.Bcast(array)\n", "")),
    changed(
        "hierarchical_average",
        "reduce inside each node",
        ("    inside.Reduce(array, total)\n", "    total[:] = array\n"),
        ("leaders.Free()", "used = leaders.size\n        leaders.Free()"),
        ("total / comm.size", "total / used"),
    ),
    (
        "hierarchical_average",
        "go from node to node",
        """
def hierarchical_average(comm, nodes, array):
    comm.Allreduce(MPI.IN_PLACE, array)
    array /= comm.size
""",
    ),
    changed("hierarchical_average", "TypeError", ("list(nodes).index(nodes[comm.rank])", "nodes[comm.rank]")),
]
