"""ipyparallel's `%%px`, with more to it: a cell whose ranks hang, die or are stopped ends, and says so."""

from __future__ import annotations

import ast
import os
from contextlib import nullcontext
from typing import Any

import tqdm
from ipyparallel.client.magics import ParallelMagics
from ipyparallel.error import CompositeError, NoEnginesRegistered, RemoteError
from IPython import get_ipython

from labkit.cluster.cell import POLL_S, Hang, Ranks
from labkit.watch.flight_recorder.report import Report

# Set where outputs are compared (nbval): no progress bars in them, which come and go with the load.
NONINTERACTIVE = os.environ.get("IPP_NONINTERACTIVE", "") not in ("", "0")


class RankMagics(ParallelMagics):
    """The parallel magics over ranks that can hang or die."""

    ranks: Ranks
    setup: dict[int, str]  # the cells that have left names on the ranks, by their number in the notebook
    progress_after_seconds = 86400 if NONINTERACTIVE else 2

    def parallel_execute(  # noqa: PLR0917  (as ipyparallel has it)
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
        patience = self.progress_after_seconds if progress_after is None else progress_after
        self.ranks.check()
        # Under the name that it has on the engines, too, for reports that quote a line.
        self.shell.compile.cache(self.shell.transform_cell(cell), 0, raw_code=cell)
        try:
            result = super().parallel_execute(cell, block=False, save_name=save_name)
        except NoEnginesRegistered:
            raise self.ranks.lost() or NoEnginesRegistered() from None
        if leaves_names(cell):
            self.setup[len(self.shell.user_ns.get("In", ())) - 1] = cell
        if not block:
            return result
        try:
            with result.stream_output() if stream else nullcontext():
                self.wait(result, patience)
                result.wait_for_output(1)
        finally:
            if not stream and result.done():
                result.wait_for_output(1)
                result.display_outputs(groupby)
        return self.finish(result, stream)

    def wait(self, result: Any, patience: float) -> None:
        """Wait until all ranks have ended the cell; after `patience` seconds with a progress bar."""
        waited = 0.0
        bar = None
        try:
            while not result.wait(POLL_S):
                self.ranks.look_after(result)
                waited += POLL_S
                if bar is None and 0 <= patience < waited:
                    bar = tqdm.tqdm(total=len(result), unit="rank", desc="%px", leave=False)
                if bar is not None:
                    bar.update(result.progress - bar.n)
        except KeyboardInterrupt:
            raise self.ranks.stop(result) from None
        finally:
            if bar is not None:
                bar.close()

    def finish(self, result: Any, streamed: bool) -> None:
        """Raise what the ranks have raised; a hang once, after the errors that have led to it."""
        try:
            result.get()
        except (RemoteError, NoEnginesRegistered) as error:
            # An engine's end is known here some milliseconds before or after its last message.
            if (died := self.ranks.lost()) is not None:
                raise died from None
            each = error.elist if isinstance(error, CompositeError) else [(error.ename, error.evalue, "", {})]
            reports = [evalue for name, evalue, *_ in each if name == "HangError"]
            if not reports:
                raise
            causes = [one for one in each if one[0] not in ("HangError", "KeyboardInterrupt", "Interrupted")]
            if causes and not streamed:
                print("\n".join(CompositeError("", causes).render_traceback()))
            raise Hang(reports[0]) from None


def leaves_names(cell: str) -> bool:
    """Tell whether a cell defines or imports something that later cells may need."""
    try:
        body = ast.parse(cell).body
    except SyntaxError:
        return True
    kinds = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef, ast.Assign, ast.AnnAssign, ast.With)
    return any(isinstance(node, kinds) for node in body)


def activate(ranks: Ranks) -> None:
    """Register `%px` and `%%px` for all ranks in the notebook, if this is one; say which cells to re-run."""
    shell = get_ipython()
    if shell is None:
        return
    view = ranks.client.direct_view("all")
    view.block = True
    old = shell.magics_manager.registry.get("RankMagics")
    magics = RankMagics(shell, view)
    magics.ranks = ranks
    magics.setup = {}
    if old is not None:
        if old.ranks.pids == ranks.pids:
            magics.setup = old.setup
        elif old.setup:
            print(f"The ranks are new. Run {cells(list(old.setup))} again, whose names the old ones had.")
    shell.magics_manager.register(magics)


def cells(numbers: list[int]) -> str:
    """Return the cells' numbers in words: `the %%px cells [3], [5] to [8]`."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    words = [f"[{run[0]}]" if len(run) == 1 else f"[{run[0]}] to [{run[-1]}]" for run in runs]
    return f"the %%px cell{'s' * (len(numbers) > 1)} {', '.join(words)}"


def last_hang() -> Report | None:
    """Return the report of the last hang; None if there was none, or its ranks are gone."""
    shell = get_ipython()
    magics = shell.magics_manager.registry.get("RankMagics") if shell is not None else None
    recorder = magics.ranks.recorder if magics is not None else None
    return recorder.last_report() if recorder is not None else None
