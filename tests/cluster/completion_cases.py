"""Completions and helps that students ask for in the cells of notebooks 00 to 06; `|` is the cursor."""

from __future__ import annotations

from typing import NamedTuple


class Case(NamedTuple):
    """A cell with a cursor, and names that must be offered, or texts that the help must hold.

    `before`: the kernel knows the answer before `connect()`, too.
    """

    cell: str
    expected: tuple[str, ...]
    before: bool = True

    @property
    def code(self) -> str:
        return self.cell.replace("|", "", 1)

    @property
    def cursor(self) -> int:
        return self.cell.index("|")


# The cells that have run on the ranks before.
SETUP = (
    """%%px
import time
from mpi4py import MPI

from labkit import data, nn

digits = comm.bcast(data.load("digits") if rank == 0 else None)
right, left = (rank + 1) % size, (rank - 1) % size
outgoing, incoming = np.array([10**rank]), np.zeros(1, dtype=int)
rng = np.random.default_rng(rank)
settings = {"lr": 0.5, "momentum": 0.9}
""",
    '''%%px
def average_by_root(comm, gradient, weight=1.0, *, root=0):
    """Leave the weighted mean of all ranks' gradients in `gradient`."""
    gradient *= weight
    return comm.rank == root


class Layer:
    """A layer with weights."""

    def __init__(self, n: int, seed: int = 0) -> None:
        self.weights = np.zeros(n)

    def forward(self, x: np.ndarray) -> np.ndarray:
        """Return the outputs for a batch."""
        return x @ self.weights

    @property
    def biggest(self) -> float:
        return max(self.weights)


layers = [Layer(3), Layer(4)]
model = Layer(2)
''',
)

COMPLETIONS = (
    # 00: the first cells
    Case("%%px\ncomm.|", ("Allreduce", "Send", "allreduce", "rank")),
    Case("%%px\ncomm.Allr|", ("Allreduce",)),
    Case("%%px\nif rank == 0:\n    comm.se|", ("send", "sendrecv")),
    Case("%%px\nprint(ra|)", ("rank", "range")),
    Case("%%px\nprint(f'I am rank {ra|}')", ("rank",)),
    Case("%%px\nprint(f'of {comm.si|}')", ("size",)),
    Case("%%px\nout|", ("outgoing",), before=False),
    Case("%%px\noutgoing.|", ("shape", "dtype", "sum", "copy"), before=False),
    Case("%%px\nsi|", ("size",)),
    Case("%px comm.Bc|", ("Bcast",)),
    Case("%px comm.bar|", ("barrier",)),
    Case("x = 1\n%px print(le|)", ("left", "len"), before=False),
    Case("%%px --targets 2\nri|", ("right",), before=False),
    Case("# the first cell\n\n%%px\nnp.ze|", ("zeros", "zeros_like")),
    Case("%%px --ta|", ("--targets",)),
    Case("%%time\n%%px\ncomm.Ba|", ("Barrier",)),
    Case("%%px\nimport nu|", ("numpy", "numbers")),
    Case("%%px\nfrom mpi4py import M|", ("MPI",)),
    Case("%%px\nfrom labkit.comm import Coun|\n", ("CountingComm",)),
    Case("%%px\nreq = comm.Isend(outgoing, dest=right)\nreq.Wa|", ("Wait", "Waitall")),
    Case("%%px\nstatus = MPI.Status()\ncomm.recv(status=status)\nstatus.Get_so|", ("Get_source",)),
    # 01: NumPy and the student's functions
    Case("%%px\nnp.zeros(3, dt|)", ("dtype=",)),
    Case("%%px\nnp.random.de|", ("default_rng",)),
    Case("%%px\nrng.no|", ("normal",), before=False),
    Case("%%px\nimport numpy as numeric\nnumeric.lins|", ("linspace",)),
    Case("%%px\ndef loss_of(params, x):\n    return 0.0\n\nloss|", ("loss_of",)),
    Case("%%px\ndef average(comm, grad):\n    comm.Reduce_sc|", ("Reduce_scatter", "Reduce_scatter_block")),
    Case('%%px\ndef relu(x):\n    """Shape: x (n,)."""\n    return x.cl|', ("clip",)),
    Case("%%px\nmean = np.zeros(4)\nmean.resh|\ncomm.Allreduce(MPI.IN_PLACE, mean)", ("reshape",)),
    Case("%%px\nlayers[0].|", ("weights", "forward", "biggest"), before=False),
    Case("%%px\nlayers[-1].weights.dt|", ("dtype",), before=False),
    Case("%%px\nmodel.fo|", ("forward",), before=False),
    Case("%%px\nfor layer in layers:\n    layer.wei|", ("weights",), before=False),
    Case("%%px\nsettings['|", ("lr", "momentum"), before=False),
    # 03 to 06
    Case("%%px\ndigits.x_|", ("x_train", "x_test"), before=False),
    Case("%%px\naverage_by_root(comm, outgoing, we|)", ("weight=",), before=False),
    Case("%%px\ncomm.Allreduce(MPI.IN|, outgoing)", ("IN_PLACE",)),
    Case("%%px\ncomm.Allreduce(outgoing, incoming, op=MPI.MA|)", ("MAX", "MAXLOC")),
    Case("%%px\nnode = comm.Split(rank // 2)\nnode.Allg|", ("Allgather", "Allgatherv")),
    Case("%%px\nbegan = time.perf|", ("perf_counter",)),
)

HELPS = (
    Case(
        "%%px\ncomm.Allreduce(|",
        ("comm.Allreduce(sendbuf: BufSpec | InPlace, recvbuf", "Reduce to All"),
    ),
    Case("%%px\ncomm.Send|(outgoing, right)", ("comm.Send(buf: BufSpec, dest: int, tag: int = 0)",)),
    Case("%%px\ncomm.Sendrecv(outgoing, dest=right, |)", ("comm.Sendrecv(sendbuf: BufSpec, dest: int",)),
    Case("%px comm.bcast(|", ("comm.bcast(obj: Any, root: int = 0)",)),
    Case("%%px\nnp.zeros(|", ("np.zeros(shape, dtype=None", "filled with zeros")),
    Case("%%px\nnp.concatenate(|", ("np.concatenate(", "axis")),
    Case("%%px\nnp.add(|", ("np.add(x1, x2",)),
    Case("%%px\nprint(|", ("print(*args, sep=' '", "Prints the values")),
    Case(
        "%%px\naverage_by_root(|",
        ("average_by_root(comm, gradient, weight=1.0, *, root=0)", "weighted mean"),
        before=False,
    ),
    Case("%%px\naverage_by_root|", ("Type:      function",), before=False),
    Case("%%px\nLayer(|", ("Layer(n: int, seed: int = 0)", "A layer with weights"), before=False),
    Case(
        "%%px\nmodel.forward(|",
        ("model.forward(x: np.ndarray) -> np.ndarray", "outputs for a batch"),
        before=False,
    ),
    Case("%%px\noutgoing|", ("(1,)", "int64", "ndarray"), before=False),
    Case("%%px\nrank|", ("int",)),
    Case("%%px\ncomm|", ("Intracomm",)),
    Case("%%px\nMPI.Wtime(|", ("MPI.Wtime() -> float", "elapsed time")),
    Case("%%px\nrng.normal(|", ("rng.normal(", "normal (Gaussian) distribution"), before=False),
    Case(
        "%%px\ndef square(x, power=2):\n    'Return a power.'\n\nsquare(|",
        ("square(x, power=2)", "Return a power."),
    ),
    Case("%%px\ncomm.Isend(outgoing, dest=(rank + 1) % si|ze)", ("comm.Isend(buf: BufSpec, dest: int",)),
    Case("%%px\nlen(|", ("len(obj, /)", "number of items")),
)
