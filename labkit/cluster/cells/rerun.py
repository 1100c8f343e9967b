"""Which cells to run again when the ranks are new: those that have defined names on them."""

from __future__ import annotations

import ast
from typing import Any

from mpiwatch.wording import runs

RUNS_SHOWN = 6  # of consecutive cells; a longer list is hard to read


class SetupCells:
    """The cells that have defined names on the ranks, with their numbers as the notebook shows them now."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}  # by the cell's id, or by its text where cells have no id

    def started(self, key: str, deleted: list[str]) -> None:
        """Forget the number that a cell had before this run, and the cells that the user has deleted."""
        for gone in (key, *deleted):
            self.numbers.pop(gone, None)

    def succeeded(self, key: str, number: int, text: str) -> None:
        """Remember a cell that has ended without an error on all ranks, if it defines names."""
        if defines_names(text):
            self.numbers[key] = number

    def phrase(self) -> str:
        """Return the cells as text: `the %%px cells [3], [5] to [8]`; empty if there are none."""
        found = runs(self.numbers.values())
        if len(found) > RUNS_SHOWN:
            return f"all %%px cells from [{found[0][0]}] to [{found[-1][-1]}], except those that failed,"
        texts = [f"[{run[0]}]" + f" to [{run[-1]}]" * (len(run) > 1) for run in found]
        return f"the %%px cell{'s' * (len(self.numbers) > 1)} {', '.join(texts)}" if texts else ""


def defines_names(text: str) -> bool:
    """Return whether a cell defines or imports something that later cells may need."""
    try:
        body = ast.parse(text).body
    except SyntaxError:  # magics
        return True
    statements = (
        ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef, ast.Assign, ast.AnnAssign, ast.With
    )  # fmt: skip
    return any(isinstance(node, statements) for node in body)


def identity(shell: Any, text: str) -> tuple[str, list[str]]:
    """Return the id of the cell that runs, or its text if it has no id, and the ids of deleted cells."""
    parent: dict[str, Any] = getattr(shell, "get_parent", dict)() or {}
    metadata = parent.get("metadata") or {}
    return str(metadata.get("cellId") or text), list(metadata.get("deletedCells") or [])
