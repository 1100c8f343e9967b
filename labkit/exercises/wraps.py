"""What an exercise adds to the job: communicators, arguments with code, results as data.

The job is told of these by name, so they stand here and not beside the references: it can import this module.
"""

# ruff: noqa: PLC0415 (imports inside functions: they load MPI, which only a job may)

from __future__ import annotations

import gc
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from numbers import Number
from typing import Any, NoReturn

import numpy as np

import mpiwatch
from labkit.checks.exercise import Call, Case
from labkit.exercises.cases import COLLECTIVES

mpiwatch.register("labkit.exercises", wraps=True)  # a report names the student's line

PATIENCE_S = 0.5
MOST_TESTS = 1000  # of one request, in one layer of a backward pass


def on_links(
    link: tuple[float, float], slower: float, slow_rank: Mapping[int, int], comm: Any, case: Case
) -> Any:
    """Emulate links (bytes per s, latency in s); that of rank `slow_rank[p]` is slower by a factor.

    Sends are not buffered: each waits for its receive.
    """
    from labkit.comm import EmulatedComm, Link

    usual = Link(*link)
    links = [usual.slower(slower) if r == slow_rank[case.ranks] else usual for r in range(case.ranks)]
    return _unbuffered_class()(EmulatedComm(comm, links))


@cache
def _unbuffered_class() -> Any:
    from labkit.comm.counting import wrap
    from mpiwatch.layers import CommWrapper

    class Unbuffered(CommWrapper):
        pass

    def wait_for_receive(comm: Any, name: str, call: Callable[[], Any], kwargs: dict[str, Any]) -> Any:
        return comm.Ssend(**kwargs) if name == "Send" else comm.Issend(**kwargs)

    wrap(Unbuffered, ("Send", "Isend"), wait_for_receive)
    return Unbuffered


def numbers_as_array(result: Any) -> Any:
    """Return a tuple or list of numbers as an array, and anything else as it is: a `digest`."""
    is_sequence = isinstance(result, (tuple, list))
    return np.array(result) if is_sequence and all(isinstance(item, Number) for item in result) else result


def once(nbytes: int, finding: str, comm: Any, case: Case) -> Any:
    """Let a second collective that sends at least `nbytes` bytes raise RuntimeError, with the finding."""
    from labkit.checks.recording import recording

    large: list[Call] = []

    def note(call: Call) -> None:
        if call.least >= nbytes:  # what comes from all ranks is larger
            large.append(call)
            if len(large) > 1:
                raise RuntimeError(finding)

    return recording(note, COLLECTIVES)(comm)


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


class Notes:
    """What a function does in the case under way: its requests, and the backward pass that it runs."""

    def reset(self) -> None:
        """Forget the case before."""
        self.at: int | None = None  # the layer of the backward pass; -1 after it
        self.visited: list[int] = []  # layers, the last one first
        self.base = 0  # where the gradient begins in memory
        self.waits = 0  # inside the backward pass
        self.together: list[str] = []  # methods for several requests that were called: "Waitall"
        self.messages: list[tuple[Any, Any]] = []  # requests, each with the array that it receives into
        self.requests: list[Any] = []  # of collectives
        # Layers whose gradient, or the array that MPI has read, is still in memory, though their request was
        # complete before; layers whose array is not, though MPI reads it.
        self.kept_in_memory: list[int] = []
        self.freed: list[int | None] = []
        self.shared: list[tuple[int | None, int | None]] = []  # layers whose requests use the same memory
        self.gradients: dict[int, Callable[[], Any]] = {}
        self.uses: list[dict[str, Any]] = []  # of gathered parameters
        self.whole = 0  # how many gathered layers were in memory at once, at most

    def visit(self, layer: int) -> None:
        """Note that the backward pass is in this layer; -1 if it has ended."""
        self.at = layer
        self.visited.append(layer)

    def in_memory(self) -> set[int]:
        """Return the layers of which the gradient, or the array that MPI reads, is in memory."""
        read = {request.layer for request in self.requests if request.array() is not None}
        return read | {k for k, gradient in self.gradients.items() if gradient() is not None}


notes = Notes()


def noting(comm: Any, case: Case) -> Any:
    """Return a communicator that notes requests, and sends no values that are still to arrive: a `wrap`."""
    from mpi4py import MPI

    notes.reset()
    return _noting_class(MPI.Request)(comm)


def with_notes(result: Any) -> Any:
    """Return the result and the notes as data: a `digest`.

    "started" has the layer, the place in the gradient and the size of each collective; "untested" has the
    numbers of those that were not tested in the layer after their own.
    """
    gc.collect()  # of a function that refers to itself, the variables may still be there
    requests = notes.requests
    everything = [*requests, *(request for request, _ in notes.messages)]
    data = {
        name: getattr(notes, name)
        for name in ("at", "waits", "together", "kept_in_memory", "freed", "shared", "uses", "whole")
    } | {
        "started": [(noted.layer, noted.place, noted.size) for noted in requests],
        "untested": [
            number for number, noted in enumerate(requests) if not noted.next_layer() <= noted.tested
        ],
        "pending": sum(map(bool, everything)),
        "in_memory": sorted(notes.in_memory()),
    }
    end = time.monotonic() + PATIENCE_S  # messages into arrays that are gone would break the next call
    while not all(request.Test() for request in everything) and time.monotonic() < end:
        time.sleep(1e-4)
    return result, data


@cache
def _noting_class(request_class: Any) -> Any:
    """Return the class of communicators that note requests; `request_class`: what MPI.Request is now.

    Strict mode replaces MPI.Request.
    """
    from mpi4py import MPI

    from mpiwatch.layers import CommWrapper, is_in_place
    from mpiwatch.strict import StrictRequest

    class NotedRequest(request_class):
        """A request that notes when it is tested and waited for, and which array MPI reads or writes."""

        def note(self, array: np.ndarray) -> None:
            self.layer = notes.at
            self.tested = set[int | None]()
            self.waits = False
            self.tests, self.tests_in = 0, notes.at  # how often, and in which layer
            self.place = (array.ctypes.data - notes.base) // array.itemsize
            self.size = array.size
            self.array = weakref.ref(_root(array), self.is_freed)
            self.span = array.ctypes.data, array.ctypes.data + array.nbytes
            for other in notes.requests:
                if other and other.array() is not None and _overlap(self.span, other.span):
                    notes.shared.append((self.layer, other.layer))
            notes.requests.append(self)

        def is_freed(self, array: object) -> None:
            """Note that the array is no longer in memory, if MPI may still read or write it."""
            if self:
                notes.freed.append(self.layer)

        def next_layer(self) -> set[int]:
            """Return the layer that was visited after this request's, or nothing."""
            after = [at for at in notes.visited if self.layer is not None and 0 <= at < self.layer]
            return set(after[:1])

        def Test(self, status: MPI.Status | None = None) -> bool:
            self.tested.add(notes.at)
            if self.waits or notes.at in (-1, None):
                return super().Test(status)
            self.tests = self.tests + 1 if self.tests_in == notes.at else 1
            self.tests_in = notes.at
            if self.tests > MOST_TESTS:  # a loop of Test(), which is a wait
                notes.waits += 1
                self.waits = True
                return super().Test(status)
            # A request completes one layer later, the first two after the pass, however fast other ranks are:
            # so the finding is the same.
            if any(self is request for request in notes.requests[:2]):
                return False
            end = time.monotonic() + PATIENCE_S
            while notes.at != self.layer and not super().Test(status) and time.monotonic() < end:
                time.sleep(1e-4)
            return not self

        def Wait(self, status: MPI.Status | None = None) -> Any:
            notes.waits += notes.at != -1
            self.waits = True
            return super().Wait(status)

        def test(self, status: MPI.Status | None = None) -> tuple[bool, None]:
            return self.Test(status), None

        def wait(self, status: MPI.Status | None = None) -> None:
            self.Wait(status)

    def are_noted(requests: Sequence[Any]) -> bool:
        return any(NotedRequest in type(request).__mro__ for request in requests)

    # MPI's own Testall and Waitall bypass the methods above. In a notebook, later cells call these, too.
    def test_all(cls: Any, requests: Sequence[Any], statuses: Any = None) -> bool:
        if not are_noted(requests):
            return plain_test_all(requests, statuses)
        notes.together.append("Testall")
        return all([request.Test() for request in requests])

    def wait_all(cls: Any, requests: Sequence[Any], statuses: Any = None) -> bool:
        if not are_noted(requests):
            return plain_wait_all(requests, statuses)
        notes.together.append("Waitall")
        return all([request.Wait() for request in requests])

    plain_test_all: Callable[..., bool] = request_class.Testall
    plain_wait_all: Callable[..., bool] = request_class.Waitall
    request_class.Testall = classmethod(test_all)
    request_class.Waitall = classmethod(wait_all)

    class Noting(CommWrapper):
        def Iallreduce(self, sendbuf: Any, recvbuf: Any, *more: Any, **named: Any) -> MPI.Request:
            return self._noted(super().Iallreduce(sendbuf, recvbuf, *more, **named), recvbuf)

        def Ireduce_scatter(self, sendbuf: Any, recvbuf: Any, *more: Any, **named: Any) -> MPI.Request:
            if is_in_place(sendbuf):
                request = super().Ireduce_scatter(sendbuf, recvbuf, *more, **named)
                return self._noted(request, recvbuf)
            # MPI reads a copy: the function's own array may go, and the notes tell when it does.
            copy = np.array(_array(sendbuf))
            request = super().Ireduce_scatter(copy, recvbuf, *more, **named)
            return self._noted(request, sendbuf)

        def Iallgatherv(self, sendbuf: Any, recvbuf: Any) -> MPI.Request:
            before = [request.array() for request in notes.requests]
            arrays = {id(array) for array in [*before, _root(_array(recvbuf))] if array is not None}
            notes.whole = max(notes.whole, len(arrays))
            return self._noted(super().Iallgatherv(sendbuf, recvbuf), recvbuf)

        def _noted(self, plain_request: MPI.Request, buffer: Any) -> MPI.Request:
            request: Any = NotedRequest(plain_request)
            # `isinstance` does not tell them apart: mpiwatch's classes of requests stand in for one another.
            if all(StrictRequest in type(one).__mro__ for one in (request, plain_request)):
                request.take_over(plain_request)
            elif hasattr(plain_request, "made"):  # in a notebook: it polls, and a recording knows it by this
                request.made = plain_request.made
                del plain_request.made  # else it would be kept as one that the program has dropped
            request.note(_array(buffer))
            return request

        def Irecv(self, buf: Any, *more: Any, **named: Any) -> MPI.Request:
            notes.messages.append((super().Irecv(buf, *more, **named), _array(buf)))
            return notes.messages[-1][0]

        def Isend(self, buf: Any, *more: Any, **named: Any) -> MPI.Request:
            if any(request and np.may_share_memory(_array(buf), into) for request, into in notes.messages):
                raise RuntimeError("the chunk to send has not arrived yet: wait for its Irecv first")
            notes.messages.append((super().Isend(buf, *more, **named), np.empty(0)))
            return notes.messages[-1][0]

    return Noting


class Backward:
    """A backward pass that fills a gradient layer by layer, from its end."""

    def __init__(self, grads: np.ndarray, values: np.ndarray, starts: Sequence[int]) -> None:
        self.grads = grads
        self.values = values
        self.starts = starts

    def __call__(self, finished: Callable[[int], object]) -> None:
        notes.base, stop = self.grads.ctypes.data, len(self.grads)
        for start in self.starts:
            self.grads[start:stop] = self.values[start:stop]
            notes.visit(start)
            stop = start
            finished(start)
        notes.visit(-1)


class LayersBackward:
    """A backward pass that hands over each layer's gradient and keeps no reference to it."""

    def __init__(self, gradients: Sequence[np.ndarray]) -> None:
        self.gradients = gradients

    def __call__(self, ready: Callable[[int, np.ndarray], object]) -> None:
        for k in reversed(range(len(self.gradients))):
            complete = {request.layer for request in notes.requests if not request}
            notes.visit(k)
            gradient = self.gradients[k].copy()
            notes.gradients[k] = weakref.ref(gradient)
            ready(k, gradient)
            del gradient
            notes.kept_in_memory += sorted(complete & notes.in_memory())
        notes.visit(-1)


class LayersUsed:
    """What computes with the parameters of one layer after the other."""

    def __call__(self, k: int, params: np.ndarray) -> None:
        gathers, uses = notes.requests, notes.uses
        of_gathers = [(gather.array(), gather) for gather in gathers]
        arrays = [(array, gather) for array, gather in of_gathers if array is not None]
        complete = not any(request and np.may_share_memory(params, array) for array, request in arrays)
        ahead, alive = len(gathers) - len(uses) - 1, len({id(array) for array, _ in arrays})
        note = {"k": k, "params": np.array(params), "complete": complete, "ahead": ahead, "alive": alive}
        note["waited"] = any(request.waits for request in gathers[len(uses) + 1 :])
        uses.append(note)


def gradient(params: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the gradient of a linear model's squared error. Shapes: params (n,), x (N, n), y (N,)."""
    mean_gradient: np.ndarray = x.T @ (x @ params - y) / len(x)
    return mean_gradient


class GradientOfModel:
    """The same gradient of a model that holds its parameters itself, as the models of the notebooks do."""

    def __init__(self, params: np.ndarray) -> None:
        self.params = params

    def __call__(self, params: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Return the gradient at the model's parameters. Shapes: params (n,), x (N, n), y (N,)."""
        return gradient(self.params, x, y)


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
    """Return the parts, and the names of those that lie apart from the rest; else the result."""
    if not isinstance(result, dict):
        return result
    roots = {name: id(_root(part)) for name, part in result.items()}
    parts_at = Counter(roots.values())
    shared = max(parts_at, key=parts_at.__getitem__, default=None)
    apart = [name for name, root in roots.items() if root != shared]
    if len(roots) > 1 and len(parts_at) == len(roots):  # no two parts share memory
        apart = list(roots)
    return {"parts": {name: np.array(part) for name, part in result.items()}, "apart": apart}


def _overlap(one: tuple[int, int], other: tuple[int, int]) -> bool:
    return one[0] < other[1] and other[0] < one[1]


def _array(buffer: Any) -> Any:
    return buffer[0] if isinstance(buffer, (list, tuple)) else buffer


def _root(array: Any) -> Any:
    return _root(array.base) if isinstance(getattr(array, "base", None), np.ndarray) else array


class JobOnTrial:
    """A job for the probes of notebook 11, with a clock of its own: each part takes a set time on a rank.

    `number` counts its steps. It has not been restarted, and its step uses a gradient of its own.
    """

    def __init__(self, rank: int, size: int) -> None:
        self.rank = rank
        self.size = size
        self.batches = [20 + 7 * other for other in range(size)]
        self.batch = self.batches[rank]
        self.steps, self.loss = 8, 2.5
        self.number = 2
        self.now_s = 50.0
        self.params, self.grads, self.used = np.full((3, 5), 7.0) + np.arange(5.0)

    def __getattr__(self, name: str) -> NoReturn:
        if name in ("world", "comm", "loop"):
            raise AttributeError(
                f"job.{name} is not there in a check: use the function's communicator, and job.step()"
            )
        raise AttributeError(f"a job has no attribute {name!r}")

    def clock(self) -> float:
        return self.now_s

    def restart(self) -> None:
        self.number = 0
        self.params = np.arange(5.0) + (self.rank == 2)
        self.grads = np.zeros(5)
        self.used = np.zeros(5)

    def times_s(self, number: int, samples: int) -> np.ndarray:
        """Return how long the parts of a step take, in s. Shape: (4,)."""
        usual = np.array([3.0, 8.0 + 24 * (self.rank == 1), 5.0, 2.0]) * [samples / 16, samples / 16, 1, 1]
        return 1e-3 * usual * [1.5, 1.0, 1.25, 9.0, 1.125, 30.0, 2.0][number % 7]

    def _pass(self, part: int, samples: int = 16) -> None:
        self.now_s += float(self.times_s(self.number, samples)[part])

    def load(self, samples: int | None = None) -> tuple[np.ndarray, np.ndarray]:
        count = self.batch if samples is None else samples
        self._pass(0, count)
        return np.full((count, 2), self.rank + 1.0), np.arange(count)

    def compute(self, x: np.ndarray, y: np.ndarray) -> None:
        self.grads[:] = x[0, 0] * np.array([1.0, -2, 4, 0.5, 3]) + 0.1 * len(y) * np.arange(5)
        self.grads[0] += 4.0 * self.number
        self._pass(1, len(y))

    def average(self) -> None:
        self.grads[:] = [2.0, 1, -1, 3, 0.5 * self.rank]
        self._pass(2)

    def update(self) -> None:
        self._pass(3)
        self.used[:] = self.grads
        self.params = self.params - 0.5 * self.grads
        self.grads[:] = 11.0
        self.number += 1

    def step(self) -> None:
        self.compute(*self.load())
        self.average()
        self.update()
