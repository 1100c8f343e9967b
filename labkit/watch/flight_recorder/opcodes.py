"""The numbers by which calls are noted on the board, and their names: operations, types, reductions."""

from __future__ import annotations

import numpy as np

UNKNOWN = -1  # is like anything: a derived datatype, or a buffer of a kind that is not looked into

# NumPy's number of a type, one for those that are the same under two names (C's long and long long).
KINDS: dict[int, int] = {
    np.dtype(char).num: np.dtype(np.dtype(char).str).num
    for char in np.typecodes["All"]
    if char not in "OSUVMm"
}
KIND_NAMES = {
    KINDS[np.dtype(char).num]: np.dtype(char).name for char in np.typecodes["All"] if char not in "OSUVMm"
}

REDUCTIONS = (
    "SUM",
    "PROD",
    "MAX",
    "MIN",
    "LAND",
    "BAND",
    "LOR",
    "BOR",
    "LXOR",
    "BXOR",
    "MAXLOC",
    "MINLOC",
    "REPLACE",
    "NO_OP",
)

# All that a rank can be seen to wait in, by number.
COLLECTIVES = (
    *(
        "Barrier",
        "Bcast",
        "Reduce",
        "Allreduce",
        "Gather",
        "Gatherv",
        "Scatter",
        "Scatterv",
        "Allgather",
        "Allgatherv",
    ),
    *("Alltoall", "Alltoallv", "Alltoallw", "Reduce_scatter", "Reduce_scatter_block", "Scan", "Exscan"),
    *(
        "barrier",
        "bcast",
        "reduce",
        "allreduce",
        "gather",
        "scatter",
        "allgather",
        "alltoall",
        "scan",
        "exscan",
    ),
    *("Dup", "Dup_with_info", "Clone", "Split", "Split_type", "Create", "Create_cart", "Create_graph"),
    *("Create_dist_graph", "Create_dist_graph_adjacent", "Sub", "Free", "Disconnect"),
)
MESSAGES = (
    "Send",
    "Ssend",
    "Recv",
    "Sendrecv",
    "Sendrecv_replace",
    "Probe",
    "Mprobe",
    "send",
    "ssend",
    "recv",
    "sendrecv",
)
OPS = {name: number for number, name in enumerate((*COLLECTIVES, *MESSAGES, "probe", "mprobe"))}
OP_NAMES = tuple(OPS)
