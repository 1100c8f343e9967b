"""Communicators put around one another, each an mpi4py `Intracomm` that does some calls its own way."""

from __future__ import annotations

from typing import Any

import numpy as np
from mpi4py import MPI


class CommWrapper(MPI.Intracomm):
    """An `Intracomm` around another, on the same handle: what it does not do itself, the other does.

    A layer's class is made from its own and from that of the communicator it is put around, so that a call
    goes from the outer one to the inner and from there to the MPI library. What `Dup`, `Clone`, `Split`,
    `Split_type`, `Create` and `Create_group` make of it has the same layers.
    """

    innermost = False  # next to the MPI library, in whatever order layers are put around one another

    def __new__(cls, comm: MPI.Intracomm | None = None) -> Any:
        """Put a layer around `comm`. Local: no rank waits for another."""
        if comm is None:  # so mpi4py makes a duplicate
            return super().__new__(cls)
        inner = type(comm)
        if inner is MPI.Intracomm:
            bases: tuple[type, ...] = (cls,)
        elif issubclass(inner, cls):
            bases = (inner,)
        else:
            bases = (inner, cls) if cls.innermost else (cls, inner)
        about = {"__module__": cls.__module__, "__doc__": cls.__doc__}
        made = type(cls.__name__, bases, about | cls._of_a_stack(comm))
        return MPI.Intracomm.__new__(made, comm)._like(comm)

    @classmethod
    def _of_a_stack(cls, comm: MPI.Intracomm) -> dict[str, Any]:
        """Return what a new stack of layers has in common with all that is derived from it."""
        return {}

    def _like(self, other: MPI.Intracomm) -> Any:
        """Take over what other classes keep with a communicator."""
        vars(self).update(getattr(other, "__dict__", {}))
        return self

    def _before_schedule(self, name: str, array: np.ndarray) -> None:
        """Called by all ranks before they run the schedule of this name on their arrays; raise to stop it."""

    def _layered(self, new: Any) -> Any:
        if new == MPI.COMM_NULL or isinstance(new, type(self)):
            return new
        return MPI.Intracomm.__new__(type(self), new)._like(new)

    def Split(self, color: int = 0, key: int = 0) -> Any:
        return self._layered(super().Split(color, key))

    def Split_type(self, split_type: int, key: int = 0, info: MPI.Info = MPI.INFO_NULL) -> Any:
        return self._layered(super().Split_type(split_type, key, info))

    def Create(self, group: MPI.Group) -> Any:
        return self._layered(super().Create(group))

    def Create_group(self, group: MPI.Group, tag: int = 0) -> Any:
        return self._layered(super().Create_group(group, tag))
