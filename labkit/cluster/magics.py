"""ipyparallel's `%%px` for ranks that may hang, die or be stopped: the cell then ends with one message."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Container, Sequence
from functools import partial
from itertools import takewhile
from typing import Any

from ipyparallel.error import NoEnginesRegistered, RemoteError
from IPython import get_ipython

from labkit import alt_text
from labkit.cluster import live_view, output, post_mortem, reloading, surprises
from labkit.cluster.adapter.client import ask, render_errors_with
from labkit.cluster.adapter.magics import CellMagics, Options, show_with
from labkit.cluster.completion.help_lines import has_code, keep_help_for_ranks, split_help
from labkit.cluster.completion.in_kernel import connect_completion, show_help
from labkit.cluster.completion.service import service
from labkit.cluster.errors import CellFailed, CellHung, ErrorOfCell, RankDied
from labkit.cluster.failures import Failure, error_of, failed_ranks, failures, failures_in
from labkit.cluster.interrupts import deferred_interrupts
from labkit.cluster.ranks import Ranks
from labkit.cluster.replay import run_recorded
from labkit.cluster.tracebacks import lines_of_cells, with_sources
from labkit.guard import Guard, note_in_log
from labkit.text import runs, wrapped
from mpiwatch.report import Report

POLL_S = 0.05  # between two looks at a cell that runs
MAGICS = "%%px", "%%replay"
RUNS_SHOWN = 6  # of consecutive cells; a longer list is hard to read


class RankMagics(CellMagics):
    """The magics, with checks before, during and after each cell."""

    # What a cell does besides running: an error in one of these hides neither a hang nor what others show.
    STEPS = "look_at_ranks", "complete_output", "remove_view", "show_output", "leftover_lines"

    ranks: Ranks
    # The cells that have defined names on the ranks: their numbers as the notebook shows them now, by the
    # cell's id, or by its text where cells have no id.
    setup_cells: dict[str, int]
    hang: Report | None = None  # of the last cell that hung, also on ranks that have ended since
    progress_after_seconds = live_view.AFTER_S

    def text_for_ranks(self, options: str, body: str) -> str:
        return engine_text(self.shell, options, body)

    def error_of(self, result: Any) -> Exception | None:
        return error_of(failures(result))

    def cell_replay(self, line: str = "", cell: str | None = None) -> Any:
        """Run a cell on the ranks as `%%px` does, and show what each rank did, sent and waited for."""
        source = f"%%replay {line}".rstrip() + f"\n{cell or ''}"
        cell_px: Any = self.cell_px
        return run_recorded(self.ranks, partial(cell_px, line, cell), source)

    def run_cell(self, cell: str, options: Options) -> Any:
        code, questions = split_help(cell)
        result = None
        try:
            if not questions or has_code(code):
                result = self.run_on_ranks(code, options)
        except Exception:
            self.hang = self.ranks.last_report() or self.hang
            raise
        finally:
            if defines_names(code):
                service.cell_has_ended()
        for expression, detail in questions:
            show_help(expression, detail)
        return result

    def run_on_ranks(self, cell: str, options: Options) -> Any:
        """Run a text that asks for no help on the ranks; return the result without `block`, else None."""
        self.ranks.before_use()
        number = cell_number(self.shell)
        self.ranks.last_cell = f"cell [{number}]"
        metadata = parent(self.shell).get("metadata") or {}
        key = str(metadata.get("cellId") or cell)
        for gone in (key, *(metadata.get("deletedCells") or [])):
            self.setup_cells.pop(gone, None)
        # Cache the cell under the name that it has on the engines, for reports that quote its lines.
        self.shell.compile.cache(self.shell.transform_cell(cell), 0, raw_code=cell)
        # Interrupts are noted until the output of a cell that blocks is shown. One stops the cell on all
        # ranks, also while it is on its way there; a second press of the stop button changes nothing.
        with deferred_interrupts() as interrupts:
            try:
                with self.ranks.before_use.done():
                    result = self.send(cell, options.save_name)
            except NoEnginesRegistered:
                raise self.ranks.death() or NoEnginesRegistered() from None
            show_with(result, output.display_outputs)
            if options.block:
                self.wait_and_show(result, options, interrupts)

        def remember(ended_result: Any) -> None:
            if ended_result.successful() and defines_names(cell):
                self.setup_cells[key] = number

        if options.block:
            remember(result)
        else:
            result.add_done_callback(remember)
        if interrupts:  # the ranks had ended the cell before, or it goes on without the notebook
            raise KeyboardInterrupt
        if not options.block:
            return result
        guard = Guard("a cell", note_in_log, answers=(RankDied, CellHung))
        leftovers = guard.insist("leftover_lines", self.leftover_lines)
        if leftovers:
            print(leftovers)
        return None

    def wait_and_show(self, result: Any, options: Options, interrupts: Sequence[int]) -> None:
        """Wait for the end of a cell on the ranks, and show its output; raise the error that has ended it.

        `interrupts`: gets an item when the user stops the cell.
        """
        has_view = not live_view.NONINTERACTIVE and live_view.fills_its_cell(self.shell)
        view = live_view.LiveView(self.ranks, result, options.view_after_s if has_view else -1)
        guard = Guard("a cell", note_in_log, answers=(RankDied, CellHung))
        guard.do("start", view.start)
        try:
            try:
                self.wait(result, guard, interrupts)
            finally:
                guard.insist("complete_output", self.complete_output, result)
        finally:
            guard.insist("remove_view", self.remove_view, view, result)
            if not guard.is_done("show_output", self.show_output, result, options.group_by):
                print("The output of the ranks could not be shown completely; `%pxresult` shows it again.")
        error: Exception | None = error_of(failures(result))
        try:
            result.get()
        except (RemoteError, NoEnginesRegistered) as raised:
            # That an engine has ended shows a few milliseconds before or after its last message arrives.
            error = self.ranks.death() or error or raised
        if isinstance(error, CellFailed | CellHung):
            error = explained(error, failures(result), self.shell.user_ns)
        if error is not None:
            if isinstance(error, ErrorOfCell):
                error.failed_ranks = failed_ranks(failures(result))
            raise error from None

    def look_at_ranks(self, result: Any) -> None:
        """End a cell that hangs; raise RankDied or CellHung if ranks have ended."""
        self.ranks.end_if_hung(result)

    def complete_output(self, result: Any) -> None:
        """Wait for the rest of what the ranks have printed."""
        output.wait_until_complete(result)

    def remove_view(self, view: live_view.LiveView, result: Any) -> None:
        """Remove the live view."""
        view.remove(output_follows=bool(output.pieces(result)))

    def show_output(self, result: Any, group_by: str) -> None:
        """Show what the ranks have printed, displayed and returned."""
        output.show(result, group_by)

    def leftover_lines(self) -> str:
        """Return lines about what the cell has left on the ranks."""
        return self.ranks.leftovers()

    def wait(self, result: Any, guard: Guard, interrupts: Sequence[int]) -> None:
        """Wait until all ranks have ended the cell; if it is interrupted, stop it and raise CellStopped."""
        while not interrupts and not result.wait(POLL_S):
            guard.do("look_at_ranks", self.look_at_ranks, result)
        if interrupts and not result.done():
            stopped = self.ranks.stop(result)
            stopped.failed_ranks = failed_ranks(failures(result))
            raise stopped


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
    magics.setup_cells = {}
    magics.magics["cell"]["replay"] = magics.cell_replay
    if old is not None:
        magics.hang = old.hang
        is_new = (old.ranks.pids, old.ranks.hosts) != (ranks.pids, ranks.hosts)
        again = cells_phrase(old.setup_cells.values())
        if not is_new and not cleared:
            magics.setup_cells = old.setup_cells
        elif again:
            print(f"The ranks are {'new' if is_new else 'cleared'}: run {again} again to define their names.")
    shell.magics_manager.register(magics)
    connect_completion(shell, sorted(ranks.pids), partial(ask, ranks.client))
    if not shell.custom_exceptions:  # papermill's are others: see meant_errors
        shell.set_custom_exc((NameError,), explain_name)
    for transform in magic_first, keep_help_for_ranks:
        if transform not in shell.input_transformers_cleanup:
            shell.input_transformers_cleanup.append(transform)
    render_errors_with(partial(text_of_error, ranks))
    post_mortem.register(shell, ranks)
    reloading.register(shell)
    alt_text.register(shell)


def explained(
    error: CellFailed | CellHung, raised: Sequence[Failure], names: Container[str]
) -> CellFailed | CellHung:
    """Return an error with a sentence about what surprises in it; `names`: of the notebook's process."""
    text = surprises.sentence(raised, names)
    return type(error)(f"{error}\n{text}", error.tracebacks) if text else error


def explain_name(
    shell: Any, kind: type, error: NameError, traceback: Any, tb_offset: int | None = None
) -> None:
    """Show the error of an undefined name, and that the ranks may know the name."""
    note = (
        "This cell ran in the notebook's own process. If a cell with %%px defines the name, it is on the "
        "ranks: write %%px as the first line of this cell."
    )
    error.add_note(wrapped(note))
    shell.showtraceback((kind, error, traceback), tb_offset=1)


def magic_first(lines: list[str]) -> list[str]:
    """Return a cell's lines with its magic of the lab above the comments before it, as IPython demands."""
    above = list(takewhile(lambda line: not line.strip() or line.lstrip().startswith("#"), lines))
    magic = lines[len(above) : len(above) + 1]
    if not magic or not magic[0].startswith(MAGICS):
        return lines
    return [*magic, *above, *lines[len(above) + 1 :]]


def text_of_error(ranks: Ranks, error: RemoteError) -> list[str] | None:
    """Return the text of an error that a use of the client has raised; None if no rank has raised it.

    `%%px` raises errors of its own. This is for those of the client: of `rc[:]["x"]`, `apply`, `map`, a
    result's `get`. It names the ranks, as that of a cell does, and shows the notebook's line.
    """
    raised = failures_in(error)
    died: RankDied | CellHung | None = None
    if any(failure.name == "EngineError" for failure in raised):
        died = ranks.death()
    if died is not None:
        return died._render_traceback_()
    if any(failure.rank < 0 for failure in raised):
        return None
    shell = get_ipython()
    raised = [failure._replace(frames=with_sources(shell, failure.frames)) for failure in raised]
    cell_error = error_of(raised)
    if isinstance(cell_error, CellFailed):
        cell_error.tracebacks = [*filter(None, [lines_of_cells(shell, error)]), *cell_error.tracebacks]
    return cell_error._render_traceback_() if cell_error is not None else None


def last_hang() -> Report | None:
    """Return the report of this notebook's last hang, for `labkit.plots.hang`; None if no cell hung."""
    shell = get_ipython()
    magics = shell.magics_manager.registry.get("RankMagics") if shell is not None else None
    return (magics.ranks.last_report() or magics.hang) if magics is not None else None


def cells_phrase(numbers: Collection[int]) -> str:
    """Return cells as text: `the %%px cells [3], [5] to [8]`; empty if there are none."""
    groups = runs(numbers)
    if len(groups) > RUNS_SHOWN:
        return f"all %%px cells from [{groups[0][0]}] to [{groups[-1][-1]}], except those that failed,"
    if not groups:
        return ""
    texts = [f"[{group[0]}] to [{group[-1]}]" if len(group) > 1 else f"[{group[0]}]" for group in groups]
    cells = "the %%px cells" if len(numbers) > 1 else "the %%px cell"
    return f"{cells} {', '.join(texts)}"


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


def parent(shell: Any) -> dict[str, Any]:
    """Return the message by which JupyterLab has asked the kernel to run the cell; empty if there is none."""
    return getattr(shell, "get_parent", dict)() or {}


def engine_text(shell: Any, options: str, body: str) -> str:
    """Return what the ranks run for a cell `%%px options` with this body.

    JupyterLab counts the lines of a cell from its first line, which is the one with `%%px`. A comment takes
    the place of that line (IPython would strip an empty one), so that tracebacks, hang reports and the flight
    recorder all count as JupyterLab does.
    """
    comment = f"# cell [{cell_number(shell)}]: %%px {options}".rstrip()
    whole = str((parent(shell).get("content") or {}).get("code", "")).rstrip()
    above = whole.removesuffix(body.rstrip())
    return _below(comment, max(1, above.count("\n")) if above != whole else 1, body)


def _below(comment: str, above: int, body: str) -> str:
    """Return a text with as many comment lines on top as there are lines above it in the notebook's cell."""
    if body.lstrip().startswith("%%"):
        # Another cell magic, which must come first. Some count lines from their own; the body of others may
        # not be Python.
        head, _, rest = body.lstrip().partition("\n")
        above += body[: body.index(head)].count("\n")
        is_python = re.match(r"%%(time|timeit|capture|prun)\b", head)
        return f"{head}\n{_below(comment, above + 1, rest)}" if is_python else body
    # IPython dedents an indented cell by the indentation of its first line.
    indent = re.match(r"(?:[ \t]*\n)*([ \t]*)", body)[1]  # type: ignore[index]
    return "\n".join([indent + comment, *[f"{indent}#"] * (above - 1), body])


def cell_number(shell: Any) -> int:
    """Return the number that the notebook shows for the cell that runs."""
    return len(shell.user_ns.get("In", ())) - 1
