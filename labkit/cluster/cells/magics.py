"""ipyparallel's `%%px` for ranks that may hang, die or be stopped: the cell then ends with one message."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator, Sequence
from functools import partial, wraps
from typing import Any

from ipyparallel.client.magics import ParallelMagics
from ipyparallel.error import NoEnginesRegistered, RemoteError
from IPython import get_ipython

from labkit.cluster import ipyparallel_private as private
from labkit.cluster.cells import live_view, output
from labkit.cluster.cells.cell import POLL_S, Ranks
from labkit.cluster.cells.failures import error_of, failures, failures_in, hang_report
from labkit.cluster.cells.rerun import SetupCells, identity
from labkit.cluster.cells.text import cell_number, engine_text
from mpiwatch.flight_recorder.report import Report


class RankMagics(ParallelMagics):
    """ipyparallel's magics, with checks before, during and after each cell.

    The output of a cell is shown when all ranks have ended it: `--stream` and `--no-stream` change nothing.
    `--progress-after` is the number of seconds after which a live view appears; -1 for never.
    """

    ranks: Ranks
    setup_cells: SetupCells
    progress_after_seconds = live_view.AFTER_S

    @wraps(ParallelMagics.cell_px)  # which keeps its parser of options
    def cell_px(self, line: str = "", cell: str | None = None) -> Any:
        try:
            return super().cell_px(line, engine_text(self.shell, line, cell or ""))
        except RemoteError as error:  # of `--local`, which waits here
            raise error_of(failures(self.last_result)) or error from None

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
        after_s = self.progress_after_seconds if progress_after is None else progress_after
        self.ranks.check()
        self.ranks.reports.begin_cell()
        number, (key, deleted) = cell_number(self.shell), identity(self.shell, cell)
        self.setup_cells.started(key, deleted)
        # Cache the cell under the name that it has on the engines, for reports that quote its lines.
        self.shell.compile.cache(self.shell.transform_cell(cell), 0, raw_code=cell)
        self.ranks.renew_if_due()
        # An interrupt while the cell is on its way to the ranks stops it on all of them, like a later one.
        with deferred_interrupts() as interrupts:
            try:
                result = super().parallel_execute(cell, block=False, save_name=save_name)
            except NoEnginesRegistered:
                raise self.ranks.death() or NoEnginesRegistered() from None
        result.display_outputs = partial(output.display_outputs, result)  # `%pxresult` calls it

        def remember(done: Any) -> None:
            if done.successful():
                self.setup_cells.succeeded(key, number, cell)

        if not block:
            result.add_done_callback(remember)
            return result
        has_view = not live_view.NONINTERACTIVE and live_view.fills_its_cell(self.shell)
        view = live_view.LiveView(self.ranks, result, after_s if has_view else -1)
        try:
            try:
                self.wait(result, view, interrupts)
            finally:
                output.wait_until_complete(result)
        finally:
            view.remove(output_follows=bool(output.pieces(result)))
            output.show(result, groupby)
        self.raise_errors(result)
        remember(result)
        if left := self.ranks.unreceived():
            print(left)
        return None

    def wait(self, result: Any, view: live_view.LiveView, interrupts: Sequence[int] = ()) -> None:
        """Wait until all ranks have ended the cell, unless it was interrupted; keep the view up to date."""
        try:
            if interrupts:
                raise KeyboardInterrupt
            while not result.wait(POLL_S):
                self.ranks.end_if_hung(result)
                view.update()
        except KeyboardInterrupt:
            raise self.ranks.stop(result) from None

    def raise_errors(self, result: Any) -> None:
        """Raise one error for what the ranks raised."""
        error: Exception | None = error_of(failures(result))
        try:
            result.get()
        except (RemoteError, NoEnginesRegistered) as raised:
            # The end of an engine is known here some milliseconds before or after its last message.
            error = self.ranks.death() or error or raised
        if error is not None:
            raise error from None


@contextlib.contextmanager
def deferred_interrupts() -> Iterator[list[int]]:
    """Put interrupts off: yield the list that they are added to."""
    found: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield found
        return
    before = signal.signal(signal.SIGINT, lambda number, frame: found.append(number))
    try:
        yield found
    finally:
        signal.signal(signal.SIGINT, before)


def activate(ranks: Ranks, *, cleared: bool) -> None:
    """Register `%px` and `%%px` for all ranks if this is a notebook; print which cells to run again.

    If the ranks are new or their variables were deleted, list every cell that had defined names.
    """
    shell = get_ipython()
    if shell is None:
        return
    view = ranks.client.direct_view("all")
    view.block = True
    old = shell.magics_manager.registry.get("RankMagics")
    magics = RankMagics(shell, view)
    magics.ranks = ranks
    magics.setup_cells = SetupCells()
    if old is not None:
        is_new = old.ranks.pids != ranks.pids
        if not is_new and not cleared:
            magics.setup_cells = old.setup_cells
        elif again := old.setup_cells.phrase():
            print(f"The ranks are {'new' if is_new else 'cleared'}: run {again} again to define their names.")
    shell.magics_manager.register(magics)
    private.render_errors_with(partial(text_of_error, ranks))


def text_of_error(ranks: Ranks, error: RemoteError) -> list[str] | None:
    """Return the text that shows a hang or a death once for all ranks; None for any other error.

    `%%px` raises errors of its own. This is for those of the client: of `apply`, `map`, a result's `get`.
    """
    found = failures_in(error)
    died = ranks.death() if any(failure.name == "EngineError" for failure in found) else None
    shown = died or (error_of(found) if hang_report(found) is not None else None)
    return shown._render_traceback_() if shown is not None else None


def last_hang() -> Report | None:
    """Return the report of the last hang; None if no cell hung, or if its ranks are gone."""
    shell = get_ipython()
    magics = shell.magics_manager.registry.get("RankMagics") if shell is not None else None
    if magics is None:
        return None
    recorder = magics.ranks.recorder
    return recorder.last_report() if recorder is not None else magics.ranks.reports.last()
