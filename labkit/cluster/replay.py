"""`%%replay`: run a cell as `%%px` does, and show below it what its ranks did (labkit.replay)."""

from __future__ import annotations

import contextlib
import os
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, BinaryIO

from ipyparallel.error import NoEnginesRegistered
from IPython.display import display

from labkit.cluster.adapter.client import futures
from labkit.cluster.engine_setup import begin_recording, case_notes, cell_texts, end_recording
from labkit.cluster.failures import failures
from labkit.cluster.interrupts import deferred_interrupts
from labkit.cluster.ranks import Ranks
from mpiwatch.trace import RankLog, merge, read, read_file

if TYPE_CHECKING:  # a kernel loads it, and NumPy, with the first replay
    from labkit.replay.page import Replay

START_S = 10.0  # for idle ranks to begin a recording, which takes milliseconds
END_S = 10.0  # for them to send it
NOTES_S = 2.0  # for them to say what the case was


replays: deque[Replay] = deque(maxlen=1)  # the last one of this notebook


def last_replay() -> Replay | None:
    """Return the replay that the last `%%replay` cell has shown; None if there was none."""
    return replays[-1] if replays else None


class Recording:
    """A recording of the ranks' next cell, from `start` until `finish`."""

    def __init__(self, ranks: Ranks) -> None:
        self.ranks = ranks
        self.paths: list[str] = []  # by rank, on the ranks' machines
        self.files: dict[int, BinaryIO] = {}  # of this machine's ranks: that of a dead one is soon removed

    def start(self) -> None:
        """Let all ranks record their next cell. Raise RuntimeError, and record nothing, if a rank cannot."""
        asked = self.ranks.client[:].apply_async(begin_recording)
        is_done = asked.wait(START_S)
        failed = failures(asked)
        if not is_done or failed:
            self.cancel(END_S if is_done else 0)
            why = f"{failed[0].name}: {failed[0].message}" if failed else "a rank did not respond"
            raise RuntimeError(f"the ranks cannot be recorded: {why}. Run the cell with %%px instead.")
        self.paths = asked.get()
        for rank, path in enumerate(self.paths):
            with contextlib.suppress(OSError):
                self.files[rank] = open(path, "rb")  # noqa: SIM115  (closed by `finish`)

    def cancel(self, seconds: float) -> None:
        """End the recording on all ranks, and wait that long: a busy rank ends it when it has begun."""
        with contextlib.suppress(Exception):
            self.ranks.client[:].apply_async(end_recording).wait(seconds)

    def finish(self) -> list[RankLog]:
        """Return the recordings of all ranks that have one, also of ranks that were killed."""
        contents: dict[int, bytes] = {}
        with contextlib.suppress(Exception):  # the engines have ended, or do not respond
            asked = self.ranks.client[:].apply_async(end_recording)
            asked.wait(END_S)
            for rank, future in futures(asked).items():
                if future.done() and isinstance(future.result(), bytes):
                    contents[rank] = future.result()
        logs = []
        for rank, path in enumerate(self.paths):
            with contextlib.suppress(OSError, ValueError):
                if rank in contents:
                    logs.append(read(contents[rank]))
                elif rank in self.files:
                    logs.append(read_file(f"/dev/fd/{self.files[rank].fileno()}"))
            with contextlib.suppress(OSError):
                os.unlink(path)  # of a rank that was killed on this machine
        for file in self.files.values():
            file.close()
        return logs

    def ask(self, function: Callable[..., dict[str, Any]], *arguments: Any) -> dict[int, dict[str, Any]]:
        """Return what a function returns on each rank that responds in time."""
        answers: dict[int, dict[str, Any]] = {}
        with contextlib.suppress(Exception):  # as above
            asked = self.ranks.client[:].apply_async(function, *arguments)
            asked.wait(NOTES_S)
            for rank, future in futures(asked).items():
                if future.done() and isinstance(future.result(), dict):
                    answers[rank] = future.result()
        return answers


def run_recorded(ranks: Ranks, run_cell: Any, source: str) -> Any:
    """Call `run_cell`, which runs a cell on the ranks, and show what they did; `source`: the cell as typed.

    If the cell fails, the picture comes before its error.
    """
    ranks.before_use()
    with ranks.before_use.done():  # `run` and the recording use the engines, too
        return _run_recorded(ranks, run_cell, source)


def _run_recorded(ranks: Ranks, run_cell: Any, source: str) -> Any:
    recording = Recording(ranks)
    try:
        recording.start()
    except KeyboardInterrupt:
        recording.cancel(0)
        raise
    report = ""
    try:
        result = run_cell()
    except (KeyboardInterrupt, NoEnginesRegistered, Exception) as error:
        report = str(error)
        raise
    finally:
        # A user may press the stop button twice: what the cell has raised counts.
        with deferred_interrupts() as interrupts:
            try:
                _show_replay(recording, source, report)
            except Exception as error:  # what the cell has raised counts here, too
                recording.cancel(0)
                print(f"There is no replay: {type(error).__name__}: {error}")
    if interrupts:
        raise KeyboardInterrupt
    return result


def _show_replay(recording: Recording, source: str, report: str) -> None:
    """Show what the ranks have done; `report`: the error of the cell, or empty."""
    logs = recording.finish()

    from labkit.replay.case import logs_of_case, notes_of  # noqa: PLC0415  (see above)
    from labkit.replay.page import Replay  # noqa: PLC0415
    from labkit.replay.sources import cells_named  # noqa: PLC0415

    if logs:
        notes = recording.ask(case_notes)
        case = notes_of(notes)
        trace = merge(logs_of_case(logs, case, notes))
        named = cells_named(event.line for log in trace.logs.values() for event in log.events)
        cells: dict[str, str] = {}
        for of_rank in recording.ask(cell_texts, sorted(named)).values() if named else ():
            cells |= of_rank
        replays.append(Replay(trace, source, report, case, cells))
        display(replays[-1])
    else:
        print("There is no replay: the ranks' recordings are lost.")
