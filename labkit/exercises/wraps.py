"""What an exercise adds to the job: communicators, arguments with code, results as data, forbidden methods.

The job is told of these by name, so they stand here and not beside the references: it can import this module.
"""

# ruff: noqa: PLC0415 (imports inside functions: they load MPI, which only a job may)

from __future__ import annotations

import copy
import pickle
import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from labkit.exercises.exercise import Case
from mpiwatch import report

if TYPE_CHECKING:
    from mpi4py import MPI

Wrap = Callable[[Any, Case], Any]

# The communicator's methods that move data between all ranks, which an exercise may forbid: blocking,
# non-blocking and persistent, of arrays and of objects.
COLLECTIVES = tuple(
    name
    for name in (*report.OF_ARRAYS, *report.OF_OBJECTS, *report.NONBLOCKING_COLLECTIVES)
    if "barrier" not in name.lower()
)
SENDS = "Send", "Isend", "Ssend", "Sendrecv", "send", "isend", "ssend", "sendrecv"
RECEIVES = "Recv", "Irecv", "recv", "irecv"
BARRIERS = "Barrier", "Ibarrier", "barrier"
SMALL_OBJECTS = 64  # bytes: a number from each rank
PATIENCE_S = 0.5


def collectives_with(*words: str) -> tuple[str, ...]:
    """Return the collectives whose name holds one of the words, in upper or lower case."""
    return tuple(name for name in COLLECTIVES if any(word in name.lower() for word in words))


def all_but(*allowed: str) -> tuple[str, ...]:
    """Return the collectives without the allowed ones."""
    return tuple(name for name in COLLECTIVES if name not in allowed)


def all_of(wraps: Sequence[Wrap], comm: Any, case: Case) -> Any:
    """Apply these wraps, one after the other. An exercise gives them as `partial(all_of, wraps)`."""
    for wrap in wraps:
        comm = wrap(comm, case)
    return comm


def at_most(calls: int, nbytes: int, finding: str, comm: Any, case: Case) -> Any:
    """Let the next collective of `nbytes` bytes or more raise RuntimeError after `calls` of them.

    The error holds the finding, in which {calls} and {nbytes} are the call's number and size.
    """
    from labkit.exercises.recording import observing

    large = 0

    def note(name: str, arguments: list[Any]) -> None:
        nonlocal large
        size = min(_sizes(name, arguments), default=0)  # sent: what comes from all ranks is larger
        large += size >= nbytes
        if size >= nbytes and large > calls:
            raise RuntimeError(finding.format(calls=large, nbytes=size))

    return observing(COLLECTIVES, note)(comm)


def in_all(times: float, number: int, finding: str, comm: Any, case: Case) -> Any:
    """Let a call raise RuntimeError by which a rank has sent or received too many bytes in this case.

    It may send or receive `times` the bytes of its argument `number`, and small objects. Each call counts
    with its largest array or object. The error holds the finding, in which {nbytes} is the sum.
    """
    from labkit.exercises.recording import observing

    most, total = times * case.arguments[comm.rank][number].nbytes + SMALL_OBJECTS, 0

    def note(name: str, arguments: list[Any]) -> None:
        nonlocal total
        of_ranks = comm.size if name in ("allgather", "gather") else 1
        total += of_ranks * max(_sizes(name, arguments), default=0)
        if total > most:
            raise RuntimeError(finding.format(nbytes=f"{total:,}"))

    return observing((*COLLECTIVES, *SENDS), note)(comm)


def _sizes(name: str, arguments: list[Any]) -> list[int]:
    """Return the bytes of the arrays in a call's arguments, or of the object that it pickles."""
    if name.islower():
        return [_size(arguments[0] if arguments else None)]
    parts = [part for each in arguments for part in (each if isinstance(each, (list, tuple)) else [each])]
    return [part.nbytes for part in parts if hasattr(part, "nbytes")]


def _size(message: Any) -> int:
    if isinstance(message, (list, tuple)):
        return sum(map(_size, message))
    return int(message.nbytes) if hasattr(message, "nbytes") else len(pickle.dumps(message))


def on_links(
    link: tuple[float, float], slower: float, slow_rank: Mapping[int, int], comm: Any, case: Case
) -> Any:
    """Emulate links (bytes per s, latency in s); that of rank `slow_rank[p]` is slower by a factor."""
    from labkit.comm import EmulatedComm, Link

    usual = Link(*link)
    links = [usual.slower(slower) if r == slow_rank[case.ranks] else usual for r in range(case.ranks)]
    return EmulatedComm(comm, links)


class MicroBatches:
    """Pairs of a gradient and a number of samples, once. A model writes all gradients to the same array."""

    def __init__(self, pairs: Iterable[tuple[np.ndarray, int]]) -> None:
        self.pairs = list(pairs)
        self.gradient = self.pairs[0][0].copy() if self.pairs else np.empty(0)

    def __iter__(self) -> MicroBatches:
        return self

    def __next__(self) -> tuple[np.ndarray, int]:
        if not self.pairs:
            raise StopIteration
        self.gradient[...], samples = self.pairs.pop(0)
        return self.gradient, samples


_turns: list[tuple[set[int], list[float]]] = []  # of the case under way: see noting_turns


def noting_turns(comm: Any, case: Case) -> Any:
    """Return a communicator that notes what this rank does between two collectives: a `wrap`.

    For each such turn it notes to which ranks this one sends, and when it called the methods for messages
    and, last, the collective that ends the turn.
    """
    from labkit.exercises.recording import observing

    _turns[:] = [(set(), [])]

    def note(name: str, arguments: list[Any]) -> None:
        is_message, now = name in (*SENDS, *RECEIVES), time.perf_counter()
        ranks, times = _turns[-1]
        if is_message or times:
            times.append(now)
        if name in SENDS:
            ranks.add(next(int(each) for each in arguments if isinstance(each, (int, np.integer))))
        elif not is_message:
            _turns.append((set(), []))

    return observing((*SENDS, *RECEIVES, *COLLECTIVES, *BARRIERS), note)(comm)


def with_turns(result: Any) -> Any:
    """Return the result, and for each turn to which ranks this one has sent, and its seconds: a `digest`."""
    _turns[-1][1].append(time.perf_counter())
    return result, [(sorted(ranks), times[-1] - times[0] if times else 0.0) for ranks, times in _turns]


class Noted:
    """Something that notes how a function uses it. Sent to another process, it is its notes.

    The function gets a copy with the same notes, to which the communicator writes.
    """

    def __init__(self) -> None:
        self.notes: dict[str, Any] = {"at": None, "visited": set(), "waits": 0}
        self.notes |= {"started": [], "requests": [], "arrays": []}  # in one order

    def visit(self, layer: int) -> None:
        """Note that the pass is in this layer."""
        self.notes["at"] = layer
        self.notes["visited"].add(layer)

    def __deepcopy__(self, memo: dict[int, Any]) -> Noted:
        return copy.copy(self)

    def as_data(self) -> dict[str, Any]:
        """Return the notes, without the requests and references to arrays.

        "untested" has the numbers of the requests that were not tested in the layer after their own.
        """
        left_out = "requests", "arrays", "visited"
        notes = {name: value for name, value in self.notes.items() if name not in left_out}
        of_requests = enumerate(self.notes["requests"])
        notes["untested"] = [k for k, each in of_requests if not each.next_layer() <= each.tested]
        notes["pending"] = [bool(request) for request in self.notes["requests"]]
        end = time.monotonic() + PATIENCE_S  # messages into arrays that are gone would break the next call
        while not all(each.Test() for each in self.notes["requests"]) and time.monotonic() < end:
            time.sleep(1e-4)
        return notes


class Backward(Noted):
    """A backward pass that notes what is averaged meanwhile."""

    def __init__(self, grads: np.ndarray, own: np.ndarray, starts: Sequence[int]) -> None:
        super().__init__()
        self.grads, self.own, self.starts = grads, own, starts

    def __call__(self, finished: Callable[[int], object]) -> None:
        stop = len(self.grads)
        for start in self.starts:
            self.grads[start:stop] = self.own[start:stop]
            self.visit(start)
            stop = start
            finished(start)
        self.notes["at"] = -1  # the backward pass has ended

    def __deepcopy__(self, memo: dict[int, Any]) -> Backward:
        copied = copy.copy(self)
        copied.grads = copy.deepcopy(self.grads, memo)  # which the function gets, too
        return copied

    def as_data(self) -> dict[str, Any]:
        """Return the notes, with places in `grads` instead of addresses."""
        base = self.grads.ctypes.data
        places = [
            ((address - base) // self.grads.itemsize, size, at) for address, size, at in self.notes["started"]
        ]
        return {**super().as_data(), "started": places}


@cache
def _noting_class() -> Any:
    """Return the class of a communicator that notes which part of which array is averaged, and when."""
    from mpi4py import MPI

    from mpiwatch.wrapper import CommWrapper, is_in_place

    class NotedRequest(MPI.Request):
        """A request that notes when it is tested and waited for."""

        notes: dict[str, Any]
        layer = -1  # whose backward pass has started it
        tested: set[int]  # in which layers
        waits = False

        def next_layer(self) -> set[int]:
            """Return the layer that was visited after this request's, or nothing."""
            after = [at for at in self.notes["visited"] if self.layer is not None and at < self.layer]
            return {max(after)} if after else set()

        def Test(self, status: MPI.Status | None = None) -> bool:
            at = self.notes["at"]
            self.tested.add(at)
            if self.waits or -1 in (at, self.layer):
                return super().Test(status)
            # A request completes one layer later, however fast other ranks are, so the finding is the same.
            end = time.monotonic() + PATIENCE_S
            while at != self.layer and not super().Test(status) and time.monotonic() < end:
                time.sleep(1e-4)
            return not self

        def Wait(self, status: MPI.Status | None = None) -> Any:
            self.notes["waits"] += self.notes["at"] != -1
            self.waits = True
            return super().Wait(status)

    class Noting(CommWrapper):
        """A communicator that notes which part of which array is averaged or gathered, and when."""

        notes: dict[str, Any]

        def Iallreduce(self, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM) -> MPI.Request:
            array = _array(recvbuf)
            self.notes["started"].append((array.ctypes.data, array.size, self.notes["at"]))
            return self._noted(super().Iallreduce(sendbuf, recvbuf, op), array, self.notes["at"])

        def Ireduce_scatter(self, sendbuf: Any, recvbuf: Any, *arguments: Any, **named: Any) -> MPI.Request:
            self.notes["started"].append(self.notes["at"])
            read = _array(recvbuf if is_in_place(sendbuf) else sendbuf)
            made = super().Ireduce_scatter(sendbuf, recvbuf, *arguments, **named)
            return self._noted(made, read, self.notes["at"])

        def Iallgatherv(self, sendbuf: Any, recvbuf: Any) -> MPI.Request:
            return self._noted(super().Iallgatherv(sendbuf, recvbuf), _array(recvbuf))

        def _noted(self, made: MPI.Request, array: np.ndarray, layer: int = -1) -> MPI.Request:
            request = NotedRequest(made)
            request.notes, request.layer, request.tested = self.notes, layer, set()
            self.notes["requests"].append(request)
            self.notes["arrays"].append(weakref.ref(_root(array)))
            return request

    return Noting


class LayersBackward(Noted):
    """A backward pass that hands over each layer's gradient and keeps no reference to it."""

    def __init__(self, gradients: Sequence[np.ndarray]) -> None:
        super().__init__()
        self.gradients, self.refs = gradients, dict[int, weakref.ref[np.ndarray]]()
        # Layers whose gradient, or the array that MPI has read, is still in memory, though their request was
        # complete before; layers whose array is not, though MPI reads it.
        self.notes |= {"kept": [], "freed": []}

    def __call__(self, ready: Callable[[int, np.ndarray], object]) -> None:
        for k in reversed(range(len(self.gradients))):
            complete = {at for at, request, _ in self._started() if not request}
            self.visit(k)
            gradient = self.gradients[k].copy()
            self.refs[k] = weakref.ref(gradient)
            ready(k, gradient)
            del gradient
            self.notes["kept"] += sorted(complete & self._in_memory())
            self.notes["freed"] += [
                k for at, request, array in self._started() if at == k and request and array() is None
            ]
        self.notes["at"] = -1  # the backward pass has ended

    def _started(self) -> list[tuple[int, Any, Callable[[], Any]]]:
        pairs = zip(self.notes["requests"], self.notes["arrays"], strict=True)
        return [(request.layer, request, array) for request, array in pairs]

    def _in_memory(self) -> set[int]:
        """Return the layers of which the gradient, or the array that MPI reads, is in memory."""
        read = {at for at, _, array in self._started() if array() is not None}
        return read | {k for k, gradient in self.refs.items() if gradient() is not None}

    def as_data(self) -> dict[str, Any]:
        """Return the notes, with the layers whose gradients the function's result keeps in memory."""
        return {**super().as_data(), "views": sorted(self._in_memory())}


class LayersUsed(Noted):
    """What computes with the parameters of one layer after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.notes |= {"uses": []}

    def __call__(self, k: int, params: np.ndarray) -> None:
        gathers = list(zip(self.notes["arrays"], self.notes["requests"], strict=True))
        arrays = [(array, request) for ref, request in gathers if (array := ref()) is not None]
        complete = not any(request and np.may_share_memory(params, array) for array, request in arrays)
        ahead, alive = len(gathers) - len(self.notes["uses"]) - 1, len({id(array) for array, _ in arrays})
        note = {"k": k, "params": np.array(params), "complete": complete, "ahead": ahead, "alive": alive}
        note["waited"] = any(request.waits for _, request in gathers[len(self.notes["uses"]) + 1 :])
        self.notes["uses"].append(note)


def noting(comm: MPI.Intracomm, case: Case) -> MPI.Intracomm:
    """Return a communicator that writes to the notes of this rank's `Noted`: a `wrap`."""
    made: MPI.Intracomm = _noting_class()(comm)
    (noted,) = (each for each in case.arguments[comm.rank] if isinstance(each, Noted))
    vars(made)["notes"] = noted.notes
    return made


_requests: list[tuple[Any, Any]] = []  # of the case under way: each with the array that it receives into


@cache
def _requesting_class() -> Any:
    """Return the class of a communicator that notes requests and sends no values that are still to arrive."""
    import mpiwatch
    from mpiwatch.wrapper import CommWrapper

    mpiwatch.wrappers.append(__name__)  # a report names the student's line

    class Requesting(CommWrapper):
        def Irecv(self, buf: Any, *arguments: Any, **named: Any) -> MPI.Request:
            _requests.append((super().Irecv(buf, *arguments, **named), _array(buf)))
            return _requests[-1][0]

        def Isend(self, buf: Any, *arguments: Any, **named: Any) -> MPI.Request:
            if any(request and np.may_share_memory(_array(buf), into) for request, into in _requests):
                raise RuntimeError("the chunk to send has not arrived yet: wait for its Irecv first")
            _requests.append((super().Isend(buf, *arguments, **named), np.empty(0)))
            return _requests[-1][0]

    return Requesting


def _array(buffer: Any) -> Any:
    return buffer[0] if isinstance(buffer, (list, tuple)) else buffer


def noting_requests(comm: Any, case: Case) -> Any:
    """Return a communicator that notes requests and sends no chunk that is still being received: a `wrap`."""
    _requests.clear()
    return _requesting_class()(comm)


def requests_left(result: Any) -> list[bool]:
    """Return for each request of the function whether it is still under way: a `digest`."""
    return [bool(request) for request, _ in _requests]


def gradient(params: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the gradient of a linear model's squared error. Shapes: params (n,), x (N, n), y (N,)."""
    found: np.ndarray = x.T @ (x @ params - y) / len(x)
    return found


def loss_and_gradient(params: np.ndarray, x: np.ndarray, y: np.ndarray) -> tuple[float, np.ndarray]:
    """Return the same model's loss, half the mean squared error, and its gradient."""
    return float(np.mean((x @ params - y) ** 2)) / 2, gradient(params, x, y)


def average(comm: Any, grads: np.ndarray, samples: int) -> None:
    """Leave the mean over the samples of all ranks in grads (n,)."""
    comm.Allreduce(grads * grads.dtype.type(samples / comm.allreduce(samples)), grads)


def descend(params: np.ndarray, grads: np.ndarray) -> None:
    """Take a step of gradient descent, in place. Shapes: both (n,)."""
    params -= grads.dtype.type(0.1) * grads


def rounds_as_list(rounds: Any) -> Any:
    """Return the rounds as a list, which can be sent; for anything else, its type's name."""
    is_text = isinstance(rounds, str)
    return list(rounds) if isinstance(rounds, Iterable) and not is_text else type(rounds).__name__


def with_memory(result: Any) -> Any:
    """Return each part with the words "view" or "copy": whether all parts have one memory."""
    if not isinstance(result, dict):
        return result
    roots = {id(_root(part)) for part in result.values()}
    memory = "view" if len(roots) == 1 else "copy"
    return {name: [np.array(part), memory] for name, part in result.items()}


def _root(array: Any) -> Any:
    return _root(array.base) if isinstance(getattr(array, "base", None), np.ndarray) else array
