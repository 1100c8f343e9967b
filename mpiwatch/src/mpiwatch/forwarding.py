"""Methods with the parameters of mpi4py's own that hand their arguments on to another method."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterable
from typing import Any

from mpiwatch.library_calls import RawIntracomm


def add_methods(
    kind: type, names: Iterable[str], via: str, mpi4py_class: type = RawIntracomm, *, by_name: bool = False
) -> None:
    """Give a class these methods of mpi4py's class `mpi4py_class`, as far as this version of mpi4py has them.

    They have mpi4py's parameters. Each returns `self.via(name, *arguments)`, with all arguments by position;
    if `by_name`, `self.via(name, arguments)`, with a dict. A class method does the same with its class.
    """
    for name in names:
        if hasattr(mpi4py_class, name):
            own_method = getattr(mpi4py_class, name)
            method = _forwarding(name, via, own_method, by_name)
            is_of_object = "self" in inspect.signature(own_method).parameters
            setattr(kind, name, method if is_of_object else classmethod(method))


def _forwarding(name: str, via: str, own_method: Any, by_name: bool) -> Any:
    """Return a function with the parameters of mpi4py's method that passes all arguments on."""
    signature = inspect.signature(own_method)
    is_of_object = "self" in signature.parameters
    parameters = [parameter for parameter in signature.parameters.values() if parameter.name != "self"]
    names = tuple(parameter.name for parameter in parameters)
    defaults = tuple(parameter.default for parameter in parameters)
    required = defaults.count(inspect.Parameter.empty)

    @functools.wraps(own_method)
    def method(self: Any, *arguments: Any, **named: Any) -> Any:
        if named or not required <= len(arguments) <= len(names):
            owner = (self,) if is_of_object else ()
            try:
                bound = signature.bind(*owner, *arguments, **named)
            except TypeError:
                return own_method(*owner, *arguments, **named)  # mpi4py says what is wrong
            bound.apply_defaults()
            arguments = bound.args[len(owner) :]
        else:
            arguments += defaults[len(arguments) :]
        if by_name:
            return getattr(self, via)(name, dict(zip(names, arguments, strict=True)))
        return getattr(self, via)(name, *arguments)

    return method
