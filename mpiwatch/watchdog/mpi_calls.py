"""Find which MPI call a frame is inside."""

from __future__ import annotations

import functools
import types
from types import FrameType

from mpi4py import MPI

import mpiwatch
from mpiwatch.watchdog.callee import UNKNOWN, Named, callee, is_foreign

_CLASSES = tuple(value for value in vars(MPI).values() if isinstance(value, type))
_METHODS = {
    name: value for kind in _CLASSES for name, value in vars(kind).items() if not name.startswith("_")
}
_ANY_OBJECT = type("_AnyObject", (), dict(_METHODS))()  # has the methods of all mpi4py classes
_PREFIXES = "MPI_", "PMPI_"


def mpi_call(frame: FrameType | None) -> tuple[str, bool]:
    """Return the name of the MPI call that an innermost frame is inside, and whether a wrapper made it.

    The name is empty if the frame calls something else, or if that is not certain.
    """
    through_wrapper = False
    while frame is not None:
        name = call_name(callee(frame, _result_of))
        if name or not _is_wrapper(frame.f_globals.get("__name__")):
            return name, through_wrapper
        frame, through_wrapper = frame.f_back, True
    return "", through_wrapper


def call_name(function: object) -> str:
    """Return an MPI function's name; an empty text for any other function.

    MPI functions include the lab's replacements for mpi4py's methods, and functions of C named `MPI_…`.
    """
    if isinstance(function, Named):
        return _foreign_name(function.name)
    if is_foreign(function):
        return _foreign_name(getattr(function, "__name__", ""))
    function = _unwrapped(function)
    if function is UNKNOWN:
        return ""
    if isinstance(function, types.FunctionType):
        is_method = _is_wrapper(function.__module__) and function.__name__ in _METHODS
        return function.__name__ if is_method else ""
    if type(function).__name__ == "cython_function_or_method" or isinstance(function, _BUILTIN):
        module = getattr(function, "__module__", None) or getattr(_owner(function), "__module__", None)
        return str(getattr(function, "__name__", "")) if module == "mpi4py.MPI" else ""
    return ""


_BUILTIN = (
    types.BuiltinFunctionType,
    types.MethodDescriptorType,
    types.ClassMethodDescriptorType,
    types.WrapperDescriptorType,
)


def _owner(function: object) -> object:
    return getattr(function, "__objclass__", None)


def _foreign_name(name: str) -> str:
    return name if name.startswith(_PREFIXES) else ""


def _unwrapped(function: object) -> object:
    while True:
        if isinstance(function, types.MethodType | staticmethod | classmethod):
            function = function.__func__
        elif isinstance(function, functools.partial):
            function = function.func
        else:
            return function


def _is_wrapper(module: object) -> bool:
    return isinstance(module, str) and module.startswith(tuple(mpiwatch.wrappers))


def _result_of(function: object) -> object:
    """Return a stand-in for the result of a call: MPI calls return MPI objects."""
    is_class = isinstance(function, type) and issubclass(function, _CLASSES)
    return _ANY_OBJECT if is_class or call_name(function) else UNKNOWN
