"""The program of a job: run cells of students, and call their function on cases.

    python -m labkit.checks.job FOLDER

The folder holds `task`, and gets the judge's requests, one after the other: the text of a cell, and the cases
to try it on. For each request, each rank writes what happens to a file of its own: it judges nothing. It
knows no expected result, and imports no module that holds one.
"""

# ruff: noqa: PLC0415 (imports inside functions: a job without ranks does not load MPI)

from __future__ import annotations

import copy
import faulthandler
import functools
import itertools
import json
import linecache
import os
import pickle
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout, suppress
from numbers import Number
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, BinaryIO, TextIO

from labkit.checks.exercise import Call, Case, Fault
from labkit.checks.limits import limit
from labkit.checks.transport import CELL, MAX_PRINTED, Writer, pack
from labkit.cores import WaitForCores
from labkit.text import lines_of
from mpiwatch.report import FindingKind, advise, request_kind

MAX_TEXT = 800
OTHER_RESULT = (
    "a second call with the same arguments returns something else: does it change a default argument?"
)
KEPT_RESULT = "a call changes what an earlier one has returned: make a new result in each call"
LEAST_POLL_S, POLL_S = 0.0005, 0.005  # pauses while waiting for the next request
LEAST_S = 2.0  # of a core, or asleep, before a function counts as one that does not end
DEADLINE_SIGNALS = signal.SIGALRM, signal.SIGPROF  # at which the main thread writes its stack


def main(folder: Path) -> None:
    """Run the job that the folder describes, as one of its ranks."""
    task = pickle.loads((folder / "task").read_bytes())  # the judge wrote it
    advise(cell="")  # a finding names a line of the answer, which is one cell
    # Threads that mpiwatch and MPI start here inherit this mask, so only the main thread gets these signals.
    signal.pthread_sigmask(signal.SIG_BLOCK, DEADLINE_SIGNALS)
    ranks = _OneProcess(folder, 0)
    if task["on_ranks"]:
        ranks = _Ranks(folder, pickle.loads(task["cases"]), task["is_strict"])
    signal.pthread_sigmask(signal.SIG_UNBLOCK, DEADLINE_SIGNALS)
    try:
        _answer_requests(folder, task, ranks)
    except Exception as error:  # an error of the check, not of the student's code
        ranks.writer.write(check=_describe(error))
        os._exit(1)
    ranks.finalize()
    os._exit(0)  # at once: the check waits for it


def _spoil_new_memory() -> None:
    """Let NumPy's new arrays without values hold what no answer can use: else they often hold zeros."""
    import numpy as np

    def spoiled(make: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(make)
        def make_spoiled(*arguments: Any, **named: Any) -> Any:
            array = make(*arguments, **named)
            if array.dtype.kind in "fc":
                array.fill(np.nan)
            elif array.dtype.kind in "iu":
                array.fill(np.iinfo(array.dtype).max)
            return array

        return make_spoiled

    for name in "empty", "empty_like":
        setattr(np, name, spoiled(getattr(np, name)))


def _answer_requests(folder: Path, task: dict[str, Any], ranks: _OneProcess) -> None:
    writer = ranks.writer
    stacks = (folder / f"rank-{ranks.rank}.stack").open("wb")
    _write_stack_at_deadline(stacks)
    namespace: dict[str, Any] = {"__name__": "exercise"}
    if task["on_ranks"]:
        # Forked ranks have one seed for the hashes of texts, and processes that are started have others.
        seed = os.urandom(8)
        namespace["hash"] = lambda value: hash(value) if isinstance(value, Number) else hash((seed, value))
    exec(compile(task["prelude"], "<prelude>", "exec"), namespace)
    limit(task["processes"])
    _spoil_new_memory()
    sys.stdout, sys.stderr = _Printed(sys.stdout, writer), _Printed(sys.stderr, writer)
    for number in itertools.count():
        request = _wait_for(folder / f"request-{number}")
        if request["text"] is None:  # the last one
            break
        writer.write(cell=True)
        with _Deadline(task["deadline_s"], task["extra_s"], ranks.pids):
            _answer_request(request, task, ranks, _fresh_module(namespace))
        writer.start_request(number + 1)  # the judge then reads what this request has given


def _fresh_module(namespace: dict[str, Any]) -> dict[str, Any]:
    """Return the namespace of a new module with these names, in which pickle finds the cell's classes."""
    module = ModuleType(namespace["__name__"])
    vars(module).update(namespace)
    sys.modules[module.__name__] = module
    return vars(module)


def _write_stack_at_deadline(file: BinaryIO) -> None:
    """Let the main thread, which runs the student's code, write its stack to a file at a deadline's signal.

    It leaves out other threads: one of them may end while its stack is read, and the process then dies of
    SIGSEGV.
    """
    for signum in DEADLINE_SIGNALS:
        faulthandler.register(signum, file=file, all_threads=False)


class _Deadline:
    """Lets the main thread write its stack if what it contains does not end: a context manager.

    It has `seconds` of a core. Asleep, it has as many of the clock, and `extra_s` more while a rank of the
    job has waited for a core for all but LEAST_S of them: on a busy server, a correct function takes many
    times as long, and a rank sleeps while it waits for one that waits for a core. `pids`: of the ranks.
    """

    def __init__(self, seconds: float, extra_s: float, pids: Sequence[int]) -> None:
        self.began = time.monotonic()
        self.seconds = seconds
        self.extra_s = extra_s
        self.wait = WaitForCores(pids)
        self.has_ended = threading.Event()
        self.thread = threading.Thread(target=self._watch, name="deadline", daemon=True)

    def __enter__(self) -> None:
        # Code of a library, inside one call, may keep every other thread waiting.
        signal.setitimer(signal.ITIMER_PROF, self.seconds)
        signal.setitimer(signal.ITIMER_REAL, self.seconds + self.extra_s)
        with suppress(RuntimeError):  # no thread can be started: the timers end the text
            self.thread.start()

    def __exit__(self, *_: object) -> None:
        self.has_ended.set()
        for timer in (signal.ITIMER_PROF, signal.ITIMER_REAL):
            signal.setitimer(timer, 0)

    def _watch(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, DEADLINE_SIGNALS)
        if self.has_ended.wait(self.seconds):
            return
        while self._own_s() < LEAST_S:
            if self.has_ended.wait(POLL_S):
                return
        main_thread = threading.main_thread().ident
        assert main_thread is not None, "the main thread runs"
        signal.pthread_kill(main_thread, signal.SIGALRM)

    def _own_s(self) -> float:
        """Return for how long no rank of the job has waited for a core."""
        return time.monotonic() - self.began - self.wait.longest_s()


def _wait_for(path: Path) -> dict[str, Any]:
    """Wait asleep for a request of the judge, and return it."""
    pause = LEAST_POLL_S
    while not path.exists():
        time.sleep(pause)
        pause = min(2 * pause, POLL_S)
    request: dict[str, Any] = json.loads(path.read_bytes())
    return request


def _answer_request(
    request: dict[str, Any], task: dict[str, Any], ranks: _OneProcess, names: dict[str, Any]
) -> None:
    """Define the function and call it on the request's cases, until it raises an error."""
    cases = pickle.loads(task["cases"])  # anew: the function of an earlier text may have changed something
    ranks.faults()  # of an earlier text: forget them
    ranks.results.clear()
    function, error = _define(request["text"], task["name"], names, ranks.writer), None
    for number in request["cases"]:
        if ranks.any_failed(function is None or error is not None):
            break
        if ranks.begin_case(cases[number]) and function is not None:
            error = _call_on_case(function, number, cases, task, ranks)
        ranks.end_case(error)
    ranks.leave(free=not ranks.any_failed(function is None or error is not None) and request["free"])


def shares_memory_with(result: Any, arguments: tuple[Any, ...]) -> bool:
    """Return whether a result shares memory with an argument."""
    import numpy as np

    if not isinstance(result, np.ndarray):
        return False
    arrays = [argument for argument in arguments if isinstance(argument, np.ndarray)]
    return any(np.shares_memory(result, array) for array in arrays)


def _define(text: str, name: str, namespace: dict[str, Any], writer: Writer) -> Callable[..., Any] | None:
    """Run the student's cell, and return the function that it defines; None if an error comes before that.

    An error below the function, in a test print for example, says nothing about the function.
    """
    linecache.cache[CELL] = len(text), None, [f"{line}\n" for line in lines_of(text)], CELL
    try:
        exec(compile(text, CELL, "exec"), namespace)
        function: Callable[..., Any] = namespace[name]
        return function
    except BaseException as error:
        is_defined = isinstance(error, Exception) and isinstance(namespace.get(name), FunctionType)
        writer.write(**{"below" if is_defined else "error": _describe(error)})
        return namespace[name] if is_defined else None


def _describe(error: BaseException, result_type: str = "") -> dict[str, Any]:
    """Return an error as data, with the innermost line of the student's cell, or 0."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == CELL]
    if isinstance(error, SyntaxError) and error.filename == CELL:
        lines.append(error.lineno)
    said = str(error).splitlines() or [""]
    kind, text = type(error).__name__, said[0]
    if type(error).__name__ == "StrictError":  # of mpiwatch.strict, which is loaded only where it is used
        text = getattr(error, "reason", text)
    if type(error).__module__ == "mpi4py.MPI":  # the last line of MPI's error stack says what is wrong
        kind, text = f"MPI.{kind}", text.removesuffix(", error stack:")
        if len(said) > 1:
            text += f": {said[-1].rpartition('): ')[2]}"
    return {
        "type": kind,
        "text": text[:MAX_TEXT],
        "line": (lines or [0])[-1] or 0,
        "name": str(getattr(error, "name", "") or "") if isinstance(error, NameError) else "",
        "result_type": result_type,
    }


class _Printed:
    """A stream that also records what a student's code prints, up to MAX_PRINTED characters."""

    def __init__(self, stream: TextIO, writer: Writer) -> None:
        self.stream = stream
        self.writer = writer
        self.left = MAX_PRINTED

    def write(self, text: str) -> int:
        if self.left > 0:
            self.writer.write(printed=text[: self.left].replace(f"{CELL}:", "line "))
        self.left -= len(text)
        return self.stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


class _Silent:
    """A stream that discards what is written, and otherwise behaves like another stream."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def _call_on_case(
    function: Callable[..., Any], number: int, cases: list[Case], task: dict[str, Any], ranks: _OneProcess
) -> dict[str, Any] | None:
    """Call the student's function and write what it did; return the error that it has raised."""
    case, writer = cases[number], ranks.writer
    arguments = copy.deepcopy(case.arguments[ranks.rank])
    first = ranks.communicator(case, task["wrap"])
    writer.write(begin=number)
    result_type = ""
    try:
        result = function(*first, *arguments)
        if task["digest"] is not None:
            result_type = type(result).__name__
            result = task["digest"](result)
        packed, faults = pack(result), ranks.faults()
        shares_memory = task["returns_new"] and shares_memory_with(result, arguments)
        if not task["on_ranks"] and task["digest"] is None:
            ranks.results.append((result, packed))
            before = packed
            arguments = copy.deepcopy(case.arguments[0])
            silent: Any = _Silent(sys.stdout), _Silent(sys.stderr)
            with redirect_stdout(silent[0]), redirect_stderr(silent[1]):  # the first call has printed
                packed = pack(function(*arguments))  # what counts: it must not depend on an earlier call
            if json.dumps(packed) != json.dumps(before):  # as text: nan is not equal to itself
                faults.append(Fault("state", OTHER_RESULT, ""))
            if any(
                json.dumps(pack(earlier)) != json.dumps(as_returned) for earlier, as_returned in ranks.results
            ):
                faults.append(Fault("state", KEPT_RESULT, ""))
    except BaseException as raised:
        error = _describe(raised, result_type)
        writer.write(case=number, error=error)
        return error
    changed = [pack(argument) for argument in arguments]
    traffic = ranks.traffic(case.ranks)
    writer.write(
        case=number, result=packed, arguments=changed, faults=faults, shares_memory=shares_memory, **traffic
    )
    return None


def _fault(finding: Any) -> Fault:
    """Return a finding of strict mode as data that can be written."""
    return Fault(finding.category.value, finding.text, finding.place, finding.kind.name)


def _not_completed(operation: str, place: str) -> Fault:
    """Return the fault that nobody has waited for the request of an operation."""
    text = f"the request of {operation} was never waited for"
    return Fault("request lifecycle", text, place, request_kind(operation).name)


class _OneProcess:
    """The rank of a job without MPI."""

    def __init__(self, folder: Path, rank: int) -> None:
        self.rank = rank
        self.writer = Writer(folder, rank)
        self.pids = [os.getpid()]  # of all ranks
        self.results: list[tuple[Any, Any]] = []  # of the present text, and as they were

    def any_failed(self, failed: bool) -> bool:
        """Return whether any rank has failed, when all ranks have called this."""
        return failed

    def begin_case(self, case: Case) -> bool:
        """Return whether this rank takes part in a case."""
        return True

    def communicator(self, case: Case, wrap: Callable[[Any, Case], Any] | None) -> tuple[Any, ...]:
        """Return the function's first arguments."""
        return ()

    def traffic(self, size: int) -> dict[str, list[Any]]:
        """Return what the function has sent in this case, and which methods it has called."""
        return {"sent": [], "messages": [], "calls": []}

    def faults(self) -> list[Fault]:
        """Return what strict mode has found in this case."""
        return []

    def end_case(self, error: dict[str, Any] | None = None) -> None:
        """Let ranks that wait for this one know that it has ended the case, with an error or without."""

    def finalize(self) -> None:
        """Leave MPI."""

    def leave(self, free: bool) -> None:
        """Finish a text; free its communicators, of which few can be watched, unless messages are pending."""


class _Ranks(_OneProcess):
    """A rank of a job on MPI ranks, which `mpiwatch` watches."""

    def __init__(self, folder: Path, cases: list[Case], is_strict: bool) -> None:
        from mpi4py import MPI

        if not MPI.Is_initialized():  # the process that has forked this one has loaded it only
            MPI.Init_thread()
        from labkit.checks.recording import Counting, is_in_call, recording

        super().__init__(folder, MPI.COMM_WORLD.rank)
        self.watch = getattr(MPI.COMM_WORLD, "watch", None)
        self.private_comm = MPI.Intracomm.Dup(MPI.Intracomm(MPI.COMM_WORLD))  # not watched, not counted
        self.pids = self.private_comm.allgather(os.getpid())
        # Lets messages travel on whose receives a function has left behind.
        self.progress: Callable[[], object] = lambda: None
        if is_strict:
            from mpiwatch import strict

            world: Any = MPI.COMM_WORLD  # a watched one
            strict.begin(world, is_in_call)
            self.progress = strict.progress
            strict.report_errors_to(self.note)
        self.is_strict = is_strict
        self.counted = Counting(MPI.COMM_WORLD)
        self.comms: dict[int, Any] = {}  # by the number of ranks
        self.used: list[Any] = []  # communicators of the present text
        self.calls: list[Call] = []  # of the present case
        self.requests: list[Any] = []  # of the present case; strict mode keeps its own
        self.recording = recording(self.calls.append, open_requests=None if is_strict else self.requests)
        setattr(MPI, "COMM_WORLD", self.recording(self.counted))  # noqa: B010
        for size in sorted({case.ranks for case in cases}):
            self.comms[size] = self.counted.Split(0 if self.rank < size else 1, self.rank)
        self.end_case()

    def note(self, finding: Any) -> None:
        """Write a finding of strict mode at once: MPI may end this process for it."""
        self.writer.write(fault=_fault(finding))

    def any_failed(self, failed: bool) -> bool:
        """Wait asleep, so that a rank that waits here does not take the core from one that works."""
        import numpy as np
        from mpi4py import MPI

        mine, on_any = np.array([int(failed)]), np.zeros(1, int)
        request = self.private_comm.Iallreduce(mine, on_any, MPI.MAX)
        while not request.Test():
            self.progress()
            time.sleep(0.001)
        return bool(on_any[0])

    def begin_case(self, case: Case) -> bool:
        takes_part = self.rank < case.ranks
        if takes_part and self.watch is not None:
            self.watch.begin_cell()
        self.any_failed(False)  # a rank must not wait for one that has not begun
        return takes_part

    def communicator(self, case: Case, wrap: Callable[[Any, Case], Any] | None) -> tuple[Any, ...]:
        comm = self.comms[case.ranks].Dup()
        self.used.append(comm)
        if wrap is not None:
            comm = wrap(comm, case)
        self.counted.reset()
        self.calls.clear()
        return (self.recording(comm),)

    def traffic(self, size: int) -> dict[str, list[Any]]:
        counted = list(self.counted.counts.sent.values())  # each of shape (2, ranks)
        messages, nbytes = [
            [int(sum(part[row][rank] for part in counted)) for rank in range(size)] for row in (0, 1)
        ]
        return {"sent": nbytes, "messages": messages, "calls": list(self.calls)}

    def faults(self) -> list[Fault]:
        if not self.is_strict:
            pending = [request for request in self.requests if request.request]
            self.requests.clear()
            return [_not_completed(request.operation, request.place) for request in pending]
        from labkit.checks.recording import forget_requests
        from mpiwatch import strict

        forget_requests()
        # Of what is never freed, only communicators count: MPI has few of them.
        counted = FindingKind.COMMUNICATOR_NOT_FREED
        findings = [
            finding for finding in strict.end_function() if not finding.is_remark or finding.kind is counted
        ]
        return [_fault(finding) for finding in findings]

    def end_case(self, error: dict[str, Any] | None = None) -> None:
        if self.watch is not None:
            from mpiwatch.sessions import CellState

            state = CellState.RAISED if error else CellState.RETURNED
            error_type = error["type"] if error else ""
            self.watch.end_cell(state, error_type, error_type)

    def finalize(self) -> None:
        from mpi4py import MPI

        MPI.Finalize()

    def leave(self, free: bool) -> None:
        for comm in self.used if free else ():
            comm.Free()
        self.used.clear()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
