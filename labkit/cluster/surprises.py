"""One sentence for errors that surprise in a notebook with ranks, below the error's own message."""

from __future__ import annotations

import re
from collections.abc import Container, Sequence

from labkit.cluster.failures import Failure

UNDEFINED = re.compile(r"name '(\w+)' is not defined")
READ_ONLY = re.compile(r"read-only|not writable")


def sentence(failures: Sequence[Failure], names: Container[str]) -> str:
    """Return a sentence about what the ranks raised; empty if nothing is to be said.

    `names` are those of the notebook's own process.
    """
    for failure in failures:
        undefined = UNDEFINED.match(failure.message) if failure.name == "NameError" else None
        if undefined is not None and undefined[1] in names:
            name = undefined[1]
            return (
                f"`{name}` exists in the notebook's own process, not on the ranks: define it in a %%px cell, "
                f'or send it to the ranks with `rc[:].push({{"{name}": {name}}})`.'
            )
        if failure.name in ("ValueError", "BufferError") and READ_ONLY.search(failure.message):
            return (
                "An array that the notebook has pushed or scattered is read-only on the ranks: "
                "`x = x.copy()` in a %%px cell makes one that can be changed."
            )
    return ""
