"""The numbers under which calls are noted, and their names: operations, dtypes, reductions."""

from __future__ import annotations

import numpy as np

UNKNOWN = -1  # matches anything: a derived datatype, or a buffer that cannot be inspected

# From NumPy's number of a dtype to one number per dtype: C's long and long long may be the same.
DTYPES: dict[int, int] = {
    np.dtype(char).num: np.dtype(np.dtype(char).str).num
    for char in np.typecodes["All"]
    if char not in "OSUVMm"
}
DTYPE_NAMES = {
    DTYPES[np.dtype(char).num]: np.dtype(char).name for char in np.typecodes["All"] if char not in "OSUVMm"
}

REDUCTIONS = (
    *("SUM", "PROD", "MAX", "MIN", "LAND", "BAND", "LOR", "BOR", "LXOR", "BXOR", "MAXLOC", "MINLOC"),
    *("REPLACE", "NO_OP"),
)

# Everything that a rank can wait in; the position in OPERATIONS is the number.
OF_ARRAYS = (
    *("Barrier", "Bcast", "Reduce", "Allreduce", "Gather", "Gatherv", "Scatter", "Scatterv", "Allgather"),
    *("Allgatherv", "Alltoall", "Alltoallv", "Alltoallw", "Reduce_scatter", "Reduce_scatter_block"),
    *("Scan", "Exscan"),
)
OF_OBJECTS = (
    *("barrier", "bcast", "reduce", "allreduce", "gather", "scatter", "allgather", "alltoall", "scan"),
    "exscan",
)
OF_COMMUNICATORS = (  # they make or free one
    *("Dup", "Dup_with_info", "Clone", "Split", "Split_type", "Create", "Create_cart", "Create_graph"),
    *("Create_dist_graph", "Create_dist_graph_adjacent", "Sub", "Free", "Disconnect"),
)
COLLECTIVES = (*OF_ARRAYS, *OF_OBJECTS, *OF_COMMUNICATORS)
MESSAGES = (
    *("Send", "Ssend", "Recv", "Sendrecv", "Sendrecv_replace", "Probe", "Mprobe"),
    *("send", "ssend", "recv", "sendrecv", "probe", "mprobe"),
)
# Non-blocking calls return requests, for which a rank can wait. Not every version of mpi4py has all of them.
NONBLOCKING_SENDS = (
    *("Isend", "Ibsend", "Issend", "Irsend", "isend", "ibsend", "issend"),
    *("Send_init", "Bsend_init", "Ssend_init", "Rsend_init", "Psend_init"),
)
NONBLOCKING_RECEIVES = ("Irecv", "irecv", "Recv_init", "Precv_init")
_NEIGHBORS = ("allgather", "allgatherv", "alltoall", "alltoallv", "alltoallw")
NONBLOCKING_COLLECTIVES = (
    *(f"I{name.lower()}" for name in OF_ARRAYS),
    *(f"{name}_init" for name in OF_ARRAYS),
    *(f"Ineighbor_{name}" for name in _NEIGHBORS),
    *(f"Neighbor_{name}_init" for name in _NEIGHBORS),
)
PROBES = ("Iprobe", "iprobe", "Improbe", "improbe")
SENDS = ("Send", "Ssend", "send", "ssend", *NONBLOCKING_SENDS)
OPERATIONS = {
    name: number
    for number, name in enumerate(
        (
            *(*COLLECTIVES, *MESSAGES),
            *(*NONBLOCKING_SENDS, *NONBLOCKING_RECEIVES, "Isendrecv", "Isendrecv_replace"),
            *(*NONBLOCKING_COLLECTIVES, "Wait", *PROBES),
        )
    )
}
OPERATION_NAMES = tuple(OPERATIONS)
SCHEDULES = 1 << 10  # a schedule's number is this and a hash of its name
assert len(OPERATIONS) < SCHEDULES
