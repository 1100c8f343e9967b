"""The watchdog: a thread in each rank that notices when all unfinished ranks are stuck in MPI calls.

It samples the main thread four times a second: has it executed any bytecode, and which MPI call is it inside?
"""

from __future__ import annotations

import ctypes
import dis
import functools
import inspect
import os
import sys
import threading
import types
from collections.abc import Callable
from time import monotonic
from types import CodeType, FrameType, MemberDescriptorType, ModuleType
from typing import NamedTuple

from mpi4py import MPI

import mpiwatch
from mpiwatch import HANG_EXIT_CODE
from mpiwatch.messages import polls
from mpiwatch.recorder import (
    NAME_BYTES,
    NO_RENDEZVOUS,
    NUMBER_SHIFT,
    PLACE_BYTES,
    CellState,
    ReportRequest,
    fit,
)
from mpiwatch.report import COLLECTIVES, Reason
from mpiwatch.snapshot import Suspicion, publish, student_line_of
from mpiwatch.waiting import Watch

UNKNOWN = object()
_CALLS = "CALL", "CALL_KW", "CALL_FUNCTION_EX", "PRECALL"  # the last of 3.11, before each CALL
_ATTRIBUTES, _ITEMS = ("LOAD_ATTR", "LOAD_METHOD"), ("BINARY_SUBSCR", "BINARY_OP")
_FOREIGN = ctypes.CFUNCTYPE(None).__mro__[1]  # the base class of ctypes' functions

_CLASSES = tuple(value for value in vars(MPI).values() if isinstance(value, type))
_METHODS = {
    name: value for kind in _CLASSES for name, value in vars(kind).items() if not name.startswith("_")
}
_ANY_OBJECT = type("_AnyObject", (), dict(_METHODS))()  # has the methods of all mpi4py classes
_PREFIXES = "MPI_", "PMPI_"
_COMMON = (  # methods that objects of other libraries have, too
    "Abort Accept Attach Cancel Clone Close Commit Compare Complete Connect Create Delete Detach Disconnect "
    "Finalize Flush Free Get Get_name Init Join Lock Merge Open Pack Post Probe Put Read Recv Reduce Scan "
    "Seek Send Set Set_name Shrink Spawn Split Start Sync Test Unlock Unpack Wait Write"
)
_BUILTIN = (
    types.BuiltinFunctionType,
    types.MethodDescriptorType,
    types.ClassMethodDescriptorType,
    types.WrapperDescriptorType,
)
_UTSNAME_BYTES = 4096  # more than any system's `struct utsname` takes
SAMPLE_S = 0.25
SUSPICIOUS_SAMPLE_S = 0.05  # once this rank has been stuck for the deadline
GAP_S = 1.0  # after a longer gap between two samples, the time between them is unknown
GRACE_S = 0.5  # for a rank to leave an MPI call after a report, because the other ranks go on
STOP_S = 2.0


class Named(NamedTuple):
    """An attribute that could not be looked up; only its name is known."""

    name: str


def callee(frame: FrameType) -> object:
    """Return the function or method (as its class stores it) that a frame is calling, or UNKNOWN.

    Python keeps the called function on a frame's stack, which cannot be read. So this function follows the
    instructions that have loaded it: names and attributes. It runs nothing of the program's code.
    """
    value: object = UNKNOWN
    for opname, argument in _loads(frame.f_code, frame.f_lasti):
        if opname in _CALLS[:-1]:  # MPI calls return MPI objects
            is_class = isinstance(value, type) and issubclass(value, _CLASSES)
            value = _ANY_OBJECT if is_class or call_name(value) else UNKNOWN
        elif opname in _ATTRIBUTES:
            value = _attribute(value, str(argument))
        elif opname == "LOAD_SUPER_ATTR":  # since Python 3.12, instead of a call of `super`
            value = Named(str(argument))
        elif opname.startswith("LOAD_") and opname != "LOAD_CONST" and isinstance(argument, str):
            scopes = frame.f_locals, frame.f_globals, frame.f_builtins
            value = next((scope[argument] for scope in scopes if argument in scope), UNKNOWN)
        elif opname in _ITEMS:
            value = _any_item(value)
    return value


@functools.lru_cache(maxsize=64)
def _loads(code: CodeType, instruction: int) -> list[tuple[str, object]]:
    """Return the operations that have loaded what an instruction calls; none if it is no call.

    They begin in the source where the call begins. Only a method's name on a later line than its object
    begins elsewhere, and so does then the call. Since Python 3.13, an instruction may load two variables: it
    begins where the first one does.
    """
    while instruction > 0 and dis.opname[code.co_code[instruction]] == "CACHE":
        instruction -= 2  # of the call before
    if instruction < 0 or dis.opname[code.co_code[instruction]] not in _CALLS:
        return []
    places = [(place[0], place[2]) for place in code.co_positions()]  # type: ignore[attr-defined,unused-ignore]
    found: list[tuple[str, object]] = []
    second: object = None  # of two variables, if only loads have followed
    for each in dis.get_instructions(code):
        names = each.argval if isinstance(each.argval, tuple) and "LOAD_FAST" in each.opname else ()
        if each.offset < instruction and places[each.offset // 2] == places[instruction // 2]:
            if not found and not names and second is not None:
                found.append(("LOAD_FAST", second))
            found.append(("LOAD_FAST", names[0]) if names else (each.opname, each.argval))
        second = names[1] if names else second if each.opname.startswith("LOAD_") else None
    return found


def _any_item(container: object) -> object:
    """Return an item of a list, tuple or dict if all are of one type: they have the same methods."""
    if type(container) not in (list, tuple, dict):
        return UNKNOWN
    values = list(container.values() if isinstance(container, dict) else container)  # type: ignore[call-overload]
    return values[0] if len({type(value) for value in values}) == 1 else UNKNOWN


def _attribute(value: object, name: str) -> object:
    """Return an attribute as it is stored: a method as its class has it. Do not run properties."""
    found: object = UNKNOWN
    if value is not UNKNOWN and not isinstance(value, Named):
        if isinstance(value, ModuleType):
            found = vars(value).get(name, UNKNOWN)
        else:
            found = inspect.getattr_static(value, name, UNKNOWN)
        if isinstance(found, MemberDescriptorType):
            found = found.__get__(value)
    return Named(name) if found is UNKNOWN else found


def mpi_call(frame: FrameType | None) -> tuple[str, bool]:
    """Return the name of the MPI call that an innermost frame is inside, and whether a wrapper made it.

    The name is empty if the frame calls something else, or if that is not certain.
    """
    through_wrapper = False
    while frame is not None:
        name = call_name(callee(frame))
        if name or not _is_wrapper(frame.f_globals.get("__name__")):
            return name, through_wrapper
        frame, through_wrapper = frame.f_back, True
    return "", through_wrapper


def call_name(function: object) -> str:
    """Return an MPI function's name; an empty text for any other function.

    MPI functions include the lab's replacements for mpi4py's methods, and functions of C named `MPI_…`.
    """
    while True:
        if isinstance(function, types.MethodType | staticmethod | classmethod):
            function = function.__func__
        elif isinstance(function, functools.partial):
            function = function.func
        else:
            break
    if isinstance(function, Named):  # of an unknown object: most names in capitals are no other library's
        name = function.name
        is_mpi4py = name[0].isupper() and name in _METHODS and name not in _COMMON.split()
        return name if name.startswith(_PREFIXES) or is_mpi4py else ""
    if isinstance(function, _FOREIGN):
        name = getattr(function, "__name__", "")
        return name if name.startswith(_PREFIXES) else ""
    name = str(getattr(function, "__name__", ""))
    if isinstance(function, types.FunctionType):
        return name if _is_wrapper(function.__module__) and name in _METHODS else ""
    if type(function).__name__ == "cython_function_or_method" or isinstance(function, _BUILTIN):
        owner = getattr(function, "__objclass__", None)
        module = getattr(function, "__module__", None) or getattr(owner, "__module__", None)
        return name if module == "mpi4py.MPI" else ""
    return ""


def _is_wrapper(module: object) -> bool:
    return isinstance(module, str) and module.startswith(tuple(mpiwatch.wrappers))


class BytecodeProbe:
    """Detects whether the main thread has executed any bytecode.

    Python lets C code ask the main thread to call a C function `int f(void *)` before one of its next
    instructions (Py_AddPendingCall). While the main thread is inside one call of C code, the function is not
    called. It must not be a Python function, or an interrupt that arrives during the call would be lost. This
    class uses the C library's `uname`, which fills the memory at its argument.
    """

    def __init__(self) -> None:
        self._answer = (ctypes.c_char * _UTSNAME_BYTES)()
        self._function = ctypes.cast(ctypes.CDLL(None).uname, ctypes.c_void_p)
        self._ask: Callable[..., int] = ctypes.pythonapi.Py_AddPendingCall
        ctypes.pythonapi.Py_AddPendingCall.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
        self._is_asked = False
        _kept.append(self._answer)

    def has_moved(self) -> bool:
        """Return whether the main thread has executed bytecode since the last call that returned True."""
        if self._is_asked and self._answer[0] == b"\0":
            return False
        self._answer[0] = b"\0"
        self._is_asked = self._ask(self._function, ctypes.addressof(self._answer)) == 0
        return True


_kept: list[object] = []  # a pending call may still write to this memory after its owner is gone


class Watchdog(threading.Thread):
    """Notes in this rank's slot which MPI call its main thread is stuck in; publishes a deadlock's report.

    The first rank to be certain publishes it. A rank that is still stuck GRACE_S later ends its process, or
    in a program leaves this to its parent; unless `in_program`, it also does so after the report of another
    hang. Ranks in watched calls raise the report.
    """

    def __init__(self, watch: Watch, in_program: bool) -> None:
        super().__init__(name="mpiwatch-watchdog", daemon=True)
        self.watch, self.recorder, self.slot = watch, watch.recorder, watch.slot
        self.deadline_s, self.in_program = watch.deadline_s, in_program
        self.main = threading.main_thread().ident
        self.probe = BytecodeProbe()
        self.is_over = threading.Event()
        self.sampled_s = self.since_s = monotonic()
        self.epoch = self.recorder.head.epoch  # when the main thread last moved
        self.call: str | None = None  # the MPI call it has been inside since then; None if not known yet
        self.suspicion = Suspicion(self.recorder)
        self.reported_s = 0.0  # when the report of a hang that this rank is stuck in was seen; 0: none was

    def stop(self) -> None:
        """End the thread: this process is ending."""
        self.is_over.set()
        self.join(STOP_S)

    def run(self) -> None:
        """Sample until `stop` is called."""
        while not self.is_over.wait(SUSPICIOUS_SAMPLE_S if self.is_late(monotonic()) else SAMPLE_S):
            now = monotonic()
            self.sample(now)
            self.act(now)

    def sample(self, now: float) -> None:
        """Note at which line the main thread is, or which MPI call it is inside, and since when."""
        polls.sample(self.watch, now)
        has_moved = self.probe.has_moved()
        if has_moved or now - self.sampled_s > GAP_S or self.slot.cell_state != CellState.RUNNING:
            self.since_s, self.call, self.reported_s = now, None, 0.0
            self.epoch = self.recorder.head.epoch
            self.slot.mpi_call_since_s = 0.0
        elif self.call is None and not self.slot.waiting_since_s:
            self.call = self.current_call(now)
        if self.call:
            self.slot.mpi_call_since_s = self.since_s
        elif self.slot.cell_state == CellState.RUNNING:
            frame = sys._current_frames().get(self.main or 0)
            self.slot.running_at = fit(student_line_of(frame), PLACE_BYTES)
        self.sampled_s = self.slot.sampled_s = now

    def current_call(self, now: float) -> str | None:
        """Return the MPI call that the main thread is in, and post its place; empty if there is none.

        A collective that all ranks have joined ends by itself, unless their arguments do not fit: return None
        as long as it may.
        """
        frame = sys._current_frames().get(self.main or 0)
        name, is_wrapped = mpi_call(frame)
        if not name:
            return ""
        if is_wrapped and self.has_joined(name) and not self.is_left_alone(now):
            return None
        self.slot.mpi_call = fit(name, NAME_BYTES)
        self.watch.post_place(frame)
        return name

    def has_joined(self, name: str) -> bool:
        """Return whether this rank's last watched collective has this name, and all its ranks began it."""
        calls = self.recorder.last_calls(self.watch.rank)
        if not calls or not (
            self.slot.joined_word >> NUMBER_SHIFT == calls[-1].number
            or (self.slot.joined_word == NO_RENDEZVOUS and self.watch.all_have_made(calls[-1]))
        ):
            return False
        operation = calls[-1].operation.decode()
        return operation == name or operation not in COLLECTIVES  # a schedule makes other calls

    def is_left_alone(self, now: float) -> bool:
        """Return whether another rank left this rank's last collective at least a deadline ago.

        It has ended its cell since, or waits in a later call.
        """
        row = self.recorder.last_calls(self.watch.rank)[-1].row
        members: list[int] = next((each.members for each in self.watch.channels if each.row == row), [])
        for slot in (self.recorder.slots[rank] for rank in members if rank != self.watch.rank):
            has_ended = slot.cell_state != CellState.RUNNING
            since_s = slot.cell_state_since_s if has_ended else slot.waiting_since_s
            if since_s and now - since_s > self.deadline_s():
                return True
        return False

    def is_late(self, now: float) -> bool:
        """Return whether this rank has been stuck for the deadline, in an MPI call or a watched call."""
        since_s = self.slot.waiting_since_s or self.slot.mpi_call_since_s
        return bool(since_s) and now - since_s > self.deadline_s()

    def act(self, now: float) -> None:
        """Publish a deadlock; end this process if it stays in an MPI call after a report."""
        if self.call and self.recorder.head.epoch != self.epoch:
            if not self.reported_s:
                self.heed_report(now)
            elif now - self.reported_s > GRACE_S:
                self.watch.before_error()
                os._exit(HANG_EXIT_CODE)  # the main thread cannot be interrupted inside MPI
        elif self.recorder.head.hub or not self.is_late(now):  # on several machines, the hub looks for one
            return
        elif self.suspicion.is_certain(now, self.deadline_s()):
            everyone = list(range(self.recorder.size))
            request = ReportRequest(Reason.DEADLOCK, self.deadline_s(), everyone, self.watch.rank)
            publish(self.recorder, self.watch.rank, self.epoch, request, int)

    def heed_report(self, now: float) -> None:
        """Note a report after which this rank must leave MPI; after any other, begin to wait anew."""
        report = self.recorder.last_report()
        assert report is not None, f"epoch {self.recorder.head.epoch} after {self.epoch} has no report"
        if report.reason is Reason.DEADLOCK or not (self.in_program or report.reason is Reason.INTERRUPTED):
            self.reported_s = now
        else:
            self.since_s, self.epoch = now, self.recorder.head.epoch
