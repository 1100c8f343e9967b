"""`%%px` and its relatives: ipyparallel's options and their meaning, but a way of our own for each cell.

`ParallelMagics` and its methods are not documented for use as a base class.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, wraps
from typing import Any, NamedTuple

import ipyparallel as ipp
from ipyparallel.client.magics import ParallelMagics
from ipyparallel.error import RemoteError


class Options(NamedTuple):
    """What the user wants of a cell.

    `block`: wait for its end. `group_by`: the order of the output, as `%%px --group-outputs` names it.
    `save_name`: the name for the result, None without one. `view_after_s`: when a live view appears; never if
    it is negative.
    """

    block: bool
    group_by: str
    save_name: str | None
    view_after_s: float


class CellMagics(ParallelMagics):
    """Magics whose cells a subclass runs.

    The output of a cell is shown when all ranks have ended it: `--stream` and `--no-stream` change nothing.
    `--progress-after` is the number of seconds after which a live view appears; -1 for never.
    """

    def text_for_ranks(self, options: str, body: str) -> str:
        """Return what the ranks run for a cell `%%px options` with this body."""
        raise NotImplementedError

    def run_cell(self, cell: str, options: Options) -> Any:
        """Run a text on the ranks; return the result without `block`, else None."""
        raise NotImplementedError

    def error_of(self, result: ipp.AsyncResult) -> Exception | None:
        """Return the error to raise for a cell that has ended; None if no rank raised one."""
        raise NotImplementedError

    def send(self, cell: str, save_name: str | None) -> ipp.AsyncResult:
        """Send a text to the ranks, without waiting for them; return the result."""
        return super().parallel_execute(cell, block=False, save_name=save_name)

    @wraps(ParallelMagics.cell_px)  # which keeps its parser of options
    def cell_px(self, line: str = "", cell: str | None = None) -> Any:
        try:
            return super().cell_px(line, self.text_for_ranks(line, cell or ""))
        except RemoteError as error:  # of `--local`, which waits here
            raise self.error_of(self.last_result) or error from None

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
        options = Options(
            self.view.block if block is None else block,
            groupby,
            save_name,
            self.progress_after_seconds if progress_after is None else progress_after,
        )
        return self.run_cell(cell, options)


def show_with(result: ipp.AsyncResult, display: Callable[..., None]) -> None:
    """Let `%pxresult` show a result by this function of the result and of the order of its output."""
    result.display_outputs = partial(display, result)
