"""The communicator's methods that an exercise may forbid, from the list of all calls that the watch knows."""

from __future__ import annotations

from mpiwatch import opcodes

# All that move data between all ranks: blocking, non-blocking and persistent, of arrays and of objects.
COLLECTIVES = tuple(
    name
    for name in (*opcodes.OF_ARRAYS, *opcodes.OF_OBJECTS, *opcodes.NONBLOCKING_COLLECTIVES)
    if "barrier" not in name.lower()
)


def collectives_with(*words: str) -> tuple[str, ...]:
    """Return the collectives whose name holds one of the words, in upper or lower case."""
    return tuple(name for name in COLLECTIVES if any(word in name.lower() for word in words))


SUMS = collectives_with("reduce", "scan")
