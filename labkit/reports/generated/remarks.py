"""What a report shows about an answer that is wrong, without naming the right one."""

from __future__ import annotations

from typing import Any

from labkit.reports.generated.faults import KINDS, answer

# What holds unless this fault is planted.
HOLDS = {
    "left out": "all ranks print the same checksum of their weights in each epoch",
    "sum": "each change of the bias is the weighted mean of the gradients times -learning_rate",
    "shards": "each shard starts where the shard of the rank before it ends",
    "count": "each accuracy is a whole count of that rank's samples",
    "unweighted": "the global loss is the mean of the local losses, weighted with the samples",
    "settings": "both runs make the same number of updates per epoch and print the same losses",
    "straggler": "all ranks need about the same time per sample; the rank with most samples takes longest",
    "clock": "all ranks take the same time per epoch",
}
# Where to look if a fault was missed: two kinds to each sentence, so that it does not give the answer away.
PLACES = {
    ("left out", "sum"): "the weights, or their changes, do not fit the rest",
    ("shards", "count"): "the numbers of samples do not fit the rest",
    ("unweighted", "settings"): "the losses do not fit each other",
    ("straggler", "clock"): "the times of one rank do not fit those of the others",
}


def remark(seed: int, given: Any) -> str | None:
    """Return why an answer `(kind, rank)` to the report of this seed is wrong; None if it is right."""
    if not isinstance(given, (tuple, list)) or len(given) != 2:
        return f"the answer is {given!r}, expected two values: kind, rank"
    (kind, rank), right = given, answer(seed)
    if not isinstance(kind, str) or kind not in KINDS:
        return f"{kind!r} is not one of the kinds {', '.join(map(repr, KINDS))}"
    if (kind, rank) == right:
        return None
    if kind == right.kind and right.rank is None:
        shown = "this fault is not on one rank: return None as the rank"
    elif kind == right.kind and rank is None:
        shown = "this fault is on one rank: return its number"
    elif kind == right.kind:
        shown = f"this fault is on another rank than {rank}"
    elif kind == "none":
        shown = next(text for kinds, text in PLACES.items() if right.kind in kinds)
    else:
        shown = HOLDS[kind]
    return f"you answered {kind!r}{'' if rank is None else f' on rank {rank}'}, but {shown}"
