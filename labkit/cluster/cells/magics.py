"""ipyparallel's `%%px` for ranks that may hang, die or be stopped: the cell then ends with one message."""

from __future__ import annotations

import ast
import os
from contextlib import nullcontext
from typing import Any

import tqdm
from ipyparallel.client.magics import ParallelMagics
from ipyparallel.error import CompositeError, NoEnginesRegistered, RemoteError
from IPython import get_ipython

from labkit.cluster.cells.cell import POLL_S, Ranks
from labkit.cluster.errors import CellHung
from labkit.watch.flight_recorder.report import Report

# Set where outputs are compared (nbval): no progress bars, which come and go with the machine's load.
NONINTERACTIVE = os.environ.get("IPP_NONINTERACTIVE", "") not in ("", "0")
# Errors on other ranks that follow from a hang.
CONSEQUENCES = ("HangError", "KeyboardInterrupt", "Interrupted")


class RankMagics(ParallelMagics):
    """ipyparallel's magics, with checks before, during and after each cell."""

    ranks: Ranks
    setup_cells: dict[int, str]  # the cells that have defined names on the ranks, by execution count
    progress_after_seconds = 86400 if NONINTERACTIVE else 2

    def parallel_execute(  # noqa: PLR0917  (ipyparallel's signature)
        self,
        cell: str,
        block: bool | None = None,
        groupby: str = "type",
        save_name: str | None = None,
        stream_output: bool | None = None,
        progress_after: float | None = None,
        signal_on_interrupt: Any = None,
    ) -> Any:
        block = self.view.block if block is None else block
        stream = self.stream_output if stream_output is None else stream_output
        progress_after = self.progress_after_seconds if progress_after is None else progress_after
        self.ranks.check()
        # Cache the cell under the name that it has on the engines, for reports that quote its lines.
        self.shell.compile.cache(self.shell.transform_cell(cell), 0, raw_code=cell)
        try:
            result = super().parallel_execute(cell, block=False, save_name=save_name)
        except NoEnginesRegistered:
            raise self.ranks.death() or NoEnginesRegistered() from None
        if defines_names(cell):
            self.setup_cells[len(self.shell.user_ns.get("In", ())) - 1] = cell
        if not block:
            return result
        try:
            with result.stream_output() if stream else nullcontext():
                self.wait(result, progress_after)
                result.wait_for_output(1)
        finally:
            if not stream and result.done():
                result.wait_for_output(1)
                result.display_outputs(groupby)
        return self.raise_errors(result, stream)

    def wait(self, result: Any, progress_after: float) -> None:
        """Wait until all ranks have ended the cell; after so many seconds show a progress bar."""
        waited = 0.0
        bar = None
        try:
            while not result.wait(POLL_S):
                self.ranks.end_if_hung(result)
                waited += POLL_S
                if bar is None and 0 <= progress_after < waited:
                    bar = tqdm.tqdm(total=len(result), unit="rank", desc="%px", leave=False)
                if bar is not None:
                    bar.update(result.progress - bar.n)
        except KeyboardInterrupt:
            raise self.ranks.stop(result) from None
        finally:
            if bar is not None:
                bar.close()

    def raise_errors(self, result: Any, streamed: bool) -> None:
        """Raise what the ranks raised. Show a hang once, after the errors that caused it."""
        try:
            result.get()
        except (RemoteError, NoEnginesRegistered) as error:
            # The end of an engine is known here some milliseconds before or after its last message.
            if (died := self.ranks.death()) is not None:
                raise died from None
            errors = (
                error.elist if isinstance(error, CompositeError) else [(error.ename, error.evalue, "", {})]
            )
            reports = [evalue for name, evalue, *_ in errors if name == "HangError"]
            if not reports:
                raise
            causes = [one for one in errors if one[0] not in CONSEQUENCES]
            if causes and not streamed:
                print("\n".join(CompositeError("", causes).render_traceback()))
            raise CellHung(reports[0]) from None


def defines_names(cell: str) -> bool:
    """Return whether a cell defines or imports something that later cells may need."""
    try:
        body = ast.parse(cell).body
    except SyntaxError:
        return True
    statements = (
        ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef, ast.Assign, ast.AnnAssign, ast.With
    )  # fmt: skip
    return any(isinstance(node, statements) for node in body)


def activate(ranks: Ranks) -> None:
    """Register `%px` and `%%px` for all ranks if this is a notebook; print which cells to run again."""
    shell = get_ipython()
    if shell is None:
        return
    view = ranks.client.direct_view("all")
    view.block = True
    old = shell.magics_manager.registry.get("RankMagics")
    magics = RankMagics(shell, view)
    magics.ranks = ranks
    magics.setup_cells = {}
    if old is not None:
        if old.ranks.pids == ranks.pids:
            magics.setup_cells = old.setup_cells
        elif old.setup_cells:
            print(f"The ranks are new: run {cells(list(old.setup_cells))} again to define their names.")
    shell.magics_manager.register(magics)


def cells(numbers: list[int]) -> str:
    """Return cells' execution counts as text: `the %%px cells [3], [5] to [8]`."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    texts = [f"[{run[0]}]" if len(run) == 1 else f"[{run[0]}] to [{run[-1]}]" for run in runs]
    return f"the %%px cell{'s' * (len(numbers) > 1)} {', '.join(texts)}"


def last_hang() -> Report | None:
    """Return the report of the last hang; None if no cell hung, or if its ranks are gone."""
    shell = get_ipython()
    magics = shell.magics_manager.registry.get("RankMagics") if shell is not None else None
    recorder = magics.ranks.recorder if magics is not None else None
    return recorder.last_report() if recorder is not None else None
