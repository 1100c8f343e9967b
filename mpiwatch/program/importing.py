"""Call a function as soon as the program has initialised MPI: on its import of mpi4py.MPI, or in MPI.Init."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

NAME = "mpi4py.MPI"


def call_after_init(function: Callable[[], None]) -> None:
    """Call the function once, in the program's main thread, when MPI has been initialised."""
    sys.meta_path.insert(0, _Finder(function))


class _Finder(MetaPathFinder):
    """Finds mpi4py.MPI once, through the other finders, and replaces its loader."""

    def __init__(self, function: Callable[[], None]) -> None:
        self.function = function

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != NAME:
            return None
        sys.meta_path.remove(self)
        for finder in sys.meta_path:
            spec = finder.find_spec(fullname, path, target)
            if spec is not None and spec.loader is not None:
                spec.loader = _Loader(spec.loader, self.function)
                return spec
        return None


class _Loader(Loader):
    """Loads a module with another loader, and then calls a function."""

    def __init__(self, loader: Loader, function: Callable[[], None]) -> None:
        self.loader, self.function = loader, function

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self.loader.exec_module(module)
        if module.__spec__ is not None:
            module.__spec__.loader = module.__loader__ = self.loader
        if module.Is_initialized():
            self.function()
        else:
            for name in "Init", "Init_thread":
                setattr(module, name, self._then_calling(getattr(module, name)))

    def _then_calling(self, init: Callable[..., Any]) -> Callable[..., Any]:
        def init_and_watch(*arguments: Any, **named: Any) -> Any:
            result = init(*arguments, **named)
            self.function()
            return result

        init_and_watch.__name__, init_and_watch.__doc__ = init.__name__, init.__doc__
        return init_and_watch
