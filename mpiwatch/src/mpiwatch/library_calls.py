"""Note which call of the MPI library the main thread is inside, for the watchdog.

Python cannot interrupt a call of the MPI library, and cannot say from outside which one it is. So the classes
below, one for each of mpi4py's that has calls which wait, note a call before they make it. Wrapped
communicators derive from `NotedIntracomm`, and `install` puts all of them in the place of mpi4py's own: each
call that may wait passes here, whoever makes it. Code in C that calls MPI by itself is not seen.
"""

from __future__ import annotations

import functools
import inspect
import re
import sys
import threading
import types
import weakref
from _thread import get_ident
from collections.abc import Callable, Iterator
from types import CodeType, FrameType
from typing import Any, NamedTuple

from mpi4py import MPI

# mpi4py's own classes, also after `install`
from mpi4py.MPI import Cartcomm as RawCartcomm
from mpi4py.MPI import Comm as RawComm
from mpi4py.MPI import Distgraphcomm as RawDistgraphcomm
from mpi4py.MPI import File as RawFile
from mpi4py.MPI import Graphcomm as RawGraphcomm
from mpi4py.MPI import Intercomm as RawIntercomm
from mpi4py.MPI import Intracomm as RawIntracomm
from mpi4py.MPI import Message as RawMessage
from mpi4py.MPI import Topocomm as RawTopocomm
from mpi4py.MPI import Win as RawWin

from mpiwatch import packages
from mpiwatch.report import CONNECTING, MAKERS

# Calls of these names return at once: non-blocking and persistent ones, and those that look something up.
AT_ONCE = re.compile(
    r"I[a-z]\w*|R(put|get|accumulate|get_accumulate)|Get_(?!parent)\w+|Is_\w+|Set_(name|attr|errhandler|info)|Delete_attr|\w+_init|\w+_keyval|\w+_errhandler"
    r"|Cart_map|Graph_map|Compare|Abort|Shift|tomemory|Shared_query|Attach|Detach|Test|Seek|Ack_failed"
)
STARTING = re.compile(
    r"I(?!s_|probe)[a-z]\w*|\w+_init|i[bs]?send|irecv|issend|R(put|get|accumulate|get_accumulate)"
)
# mpi4py's calls with small letters that may wait; the others convert or are properties.
OF_OBJECTS = {
    *("send", "bsend", "ssend", "recv", "sendrecv", "probe", "mprobe", "barrier", "bcast", "gather"),
    *("scatter", "allgather", "alltoall", "reduce", "allreduce", "scan", "exscan", "neighbor_allgather"),
    "neighbor_alltoall",
}
# Functions of the module `mpi4py.MPI` that may wait.
FUNCTIONS = "Finalize", "Detach_buffer", "Flush_buffer", "Publish_name", "Unpublish_name", "Lookup_name"

# Methods that make a communicator, a window or a file, which all its ranks call.
MAKING = {
    *(*MAKERS, "Sub", "Merge", "Create_group", "Create_from_group", "Create_intercomm", "Create_from_groups"),
    *("Allocate", "Allocate_shared", "Create", "Create_dynamic", "Open"),  # of windows and files
}
# Calls that the main thread makes itself, because no other call of their kind can be made as long as one is
# under way. `mpiwatch.left_calls` takes away those that the MPI library in use lets a rank leave.
stays = {"Finalize", "Publish_name", "Unpublish_name", "Lookup_name", *MAKING, *CONNECTING}
# Makes a call of the program so that the main thread can leave it: see `mpiwatch.left_calls`.
leave: Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any] | None = None
# Waits for the other ranks before a call of MAKING or CONNECTING, if it needs it: see `mpiwatch.rendezvous`.
meet: Callable[[str, Any, tuple[Any, ...], dict[str, Any]], None] | None = None

# The name of a call, the object whose method it is, and whether the main thread can leave it.
Entry = tuple[str, Any, bool]


class Live(NamedTuple):
    """An object that is alive, and the instruction of the program that made it, if that is known."""

    reference: weakref.ref[Any]
    code: CodeType | None
    instruction: int


_live: dict[int, Live] = {}  # communicators, windows and files, by their identities


def register(handle: Any) -> None:
    """Note that a communicator, window or file is alive, and which line of the program has made it."""
    key = id(handle)
    frame: FrameType | None = sys._getframe(1)
    if leave is not None and get_ident() != main_thread.thread:
        frame = sys._current_frames().get(main_thread.thread or 0)  # it waits for this call
    while frame is not None and is_of_library(frame):
        frame = frame.f_back

    def forget(reference: weakref.ref[Any]) -> None:
        _live.pop(key, None)

    code, instruction = (frame.f_code, frame.f_lasti) if frame is not None else (None, 0)
    _live[key] = Live(weakref.ref(handle, forget), code, instruction)


def live_objects() -> list[tuple[Any, Live]]:
    """Return the communicators, windows and files that are alive, oldest first."""
    objects = ((live.reference(), live) for live in list(_live.values()))
    return [(handle, live) for handle, live in objects if handle is not None]


def is_of_library(frame: FrameType) -> bool:
    """Return whether a frame belongs to mpiwatch or a library on top of it, and not to the program."""
    return packages.is_library(frame.f_globals.get("__name__", ""))


class MainThread:
    """Which call of the MPI library the main thread is inside: a new `Entry` for each call, else None."""

    def __init__(self) -> None:
        self.entry: Entry | None = None
        self.thread = threading.main_thread().ident


main_thread = MainThread()  # of this process


class LikeMpi4py(type):
    """Lets mpi4py's own objects count as instances of the class that stands in for theirs."""

    def __instancecheck__(cls, instance: object) -> bool:
        replaced = REPLACED.get(cls)
        return isinstance(instance, replaced) if replaced else super().__instancecheck__(instance)

    def __subclasscheck__(cls, subclass: type) -> bool:
        replaced = REPLACED.get(cls)
        return issubclass(subclass, replaced) if replaced else super().__subclasscheck__(subclass)


REPLACED: dict[type, type] = {}  # a class that stands in for one of mpi4py's -> mpi4py's own


def like(replacement: type, mpi4py_class: type) -> None:
    """Let a class stand in for mpi4py's own one in messages, tracebacks, help and `isinstance`."""
    REPLACED[replacement] = mpi4py_class
    replacement.__name__ = replacement.__qualname__ = mpi4py_class.__name__
    replacement.__module__ = mpi4py_class.__module__
    for name, method in vars(replacement).items():
        function = getattr(method, "__func__", method)
        if hasattr(mpi4py_class, name) and callable(function) and not function.__doc__:
            function.__doc__ = getattr(mpi4py_class, name).__doc__


def _noted(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that makes a call and notes it meanwhile; its first argument is the object."""
    meets = name in MAKING or name in CONNECTING

    @functools.wraps(call)
    def noted(*arguments: Any, **named: Any) -> Any:
        if get_ident() != main_thread.thread:
            return _replaced(call(*arguments, **named))
        if meets and meet is not None:
            meet(name, arguments[0], arguments[1:], named)
        outer = main_thread.entry
        can_leave = leave is not None and name not in stays and not is_of_library(sys._getframe(1))
        main_thread.entry = name, arguments[0] if arguments else None, can_leave
        try:
            if can_leave and leave is not None:
                result = leave(call, arguments, named)
            else:
                result = call(*arguments, **named)
        finally:
            main_thread.entry = outer
        return None if result is None else _replaced(result)

    return noted


def _replaced(result: Any) -> Any:
    """Return an object of mpi4py's own class as one whose calls are noted; return others unchanged."""
    replacement = REPLACEMENTS.get(type(result))
    return result if replacement is None else replacement(result)


def _starting(call: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that starts something, and returns a request that polls."""

    @functools.wraps(call)
    def starting(*arguments: Any, **named: Any) -> Any:
        result = call(*arguments, **named)
        if isinstance(result, tuple):  # of Idup: the communicator and the request
            return tuple(map(_replaced, result))
        return _replaced(result)

    return starting


def _add_calls(kind: type, mpi4py_class: type) -> None:
    """Give a class all methods of mpi4py's `mpi4py_class` class that may wait; they note their calls.

    Methods that return requests return requests that poll.
    """
    for name in calls_that_start(mpi4py_class):
        setattr(kind, name, _starting(getattr(mpi4py_class, name)))
    for name in _calls_that_wait(mpi4py_class):
        if _is_class_method(vars(mpi4py_class)[name]):
            setattr(kind, name, classmethod(_noted(name, _call_of_class(kind, mpi4py_class, name))))
        else:
            setattr(kind, name, _noted(name, getattr(mpi4py_class, name)))


def calls_that_start(mpi4py_class: type) -> Iterator[str]:
    """Yield the names of the methods that return requests."""
    return (name for name in vars(mpi4py_class) if STARTING.fullmatch(name))


def _calls_that_wait(mpi4py_class: type) -> Iterator[str]:
    for name, value in vars(mpi4py_class).items():
        is_method = callable(value) or _is_class_method(value)
        if is_method and (name in OF_OBJECTS or (name[0].isupper() and not AT_ONCE.fullmatch(name))):
            yield name


def _registering(mpi4py_class: Any) -> Callable[..., Any]:
    """Return a `__new__` that registers what mpi4py's own class makes."""

    def new(cls: type, *arguments: Any, **named: Any) -> Any:
        handle = mpi4py_class.__new__(cls, *arguments, **named)
        register(handle)
        return handle

    return new


def _is_class_method(value: object) -> bool:
    """Return whether what a class stores under a name is a class method, also one of C code."""
    return isinstance(value, (classmethod, types.ClassMethodDescriptorType))


def _call_of_class(kind: type, mpi4py_class: type, name: str) -> Callable[..., Any]:
    """Return a function that calls a class method of `mpi4py_class` for a class derived from `kind`."""
    method = getattr(mpi4py_class, name)
    signature = inspect.signature(method)  # of the bound method: it lacks the class
    makes = f"{mpi4py_class.__name__}.{name}" if "comm" in signature.parameters else ""

    @functools.wraps(method)
    def call(cls: type, *arguments: Any, **named: Any) -> Any:
        if makes:
            _meet_on_comm(makes, signature, arguments, named)
        return getattr(super(kind, cls), name)(*arguments, **named)

    first = inspect.Parameter("cls", inspect.Parameter.POSITIONAL_ONLY)
    vars(call)["__signature__"] = signature.replace(parameters=[first, *signature.parameters.values()])
    return call


def _meet_on_comm(makes: str, signature: inspect.Signature, arguments: Any, named: Any) -> None:
    """Wait until all ranks of a communicator make a window or open a file on it.

    The library makes a communicator for it. As long as one rank waits there, no rank can make another.
    """
    try:
        comm = signature.bind(*arguments, **named).arguments.get("comm")
    except TypeError:
        return  # mpi4py says what is wrong
    before = getattr(comm, "_before_derivation", None)
    if before is not None:
        before(makes)
    if meet is not None:
        meet(makes, comm, (), {})


class NotedComm(RawComm, metaclass=LikeMpi4py):
    """An `MPI.Comm` whose calls are noted."""


class NotedIntracomm(RawIntracomm, metaclass=LikeMpi4py):
    """An `MPI.Intracomm` whose calls are noted."""

    def __reduce__(self) -> Any:
        """Pickle `MPI.COMM_SELF` by its name, as mpi4py does."""
        return "COMM_SELF" if self is MPI.COMM_SELF else super().__reduce__()


class NotedIntercomm(RawIntercomm, metaclass=LikeMpi4py):
    """An `MPI.Intercomm` whose calls are noted."""


class NotedTopocomm(RawTopocomm, metaclass=LikeMpi4py):
    """An `MPI.Topocomm` whose calls are noted."""


class NotedCartcomm(RawCartcomm, metaclass=LikeMpi4py):
    """An `MPI.Cartcomm` whose calls are noted."""


class NotedGraphcomm(RawGraphcomm, metaclass=LikeMpi4py):
    """An `MPI.Graphcomm` whose calls are noted."""


class NotedDistgraphcomm(RawDistgraphcomm, metaclass=LikeMpi4py):
    """An `MPI.Distgraphcomm` whose calls are noted."""


class NotedWin(RawWin, metaclass=LikeMpi4py):
    """An `MPI.Win` whose calls are noted."""


class NotedFile(RawFile, metaclass=LikeMpi4py):
    """An `MPI.File` whose calls are noted."""


class NotedMessage(RawMessage, metaclass=LikeMpi4py):
    """An `MPI.Message` whose calls are noted."""


NOTED: dict[type, Any] = {}  # mpi4py's own class -> the one whose calls are noted
REPLACEMENTS: dict[type, Any] = {}  # the same, also of requests once these poll (`requests.replace_requests`)
for _own, _kind in {
    RawComm: NotedComm,
    RawIntracomm: NotedIntracomm,
    RawIntercomm: NotedIntercomm,
    RawTopocomm: NotedTopocomm,
    RawCartcomm: NotedCartcomm,
    RawGraphcomm: NotedGraphcomm,
    RawDistgraphcomm: NotedDistgraphcomm,
    RawWin: NotedWin,
    RawFile: NotedFile,
    RawMessage: NotedMessage,
}.items():
    for _base in _own.__mro__[:-1]:
        _add_calls(_kind, _base)
    if _own is not RawMessage:
        setattr(_kind, "__new__", _registering(_own))  # noqa: B010
    like(_kind, _own)
    NOTED[_own] = REPLACEMENTS[_own] = _kind


def install() -> None:
    """Put the classes and functions whose calls are noted in the place of mpi4py's."""
    for mpi4py_class, kind in NOTED.items():
        setattr(MPI, mpi4py_class.__name__, kind)
    setattr(MPI, "COMM_SELF", NotedIntracomm(MPI.COMM_SELF))  # noqa: B010  (mpi4py's stubs declare it final)
    for name in FUNCTIONS:
        function = getattr(MPI, name, None)  # not every version of mpi4py has all
        if function is not None:
            setattr(MPI, name, _noted(name, function))
