"""What the ranks of a cell raised, as one error: which ranks failed and why, then each traceback once."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import ipyparallel as ipp
from ipyparallel.error import RemoteError, TaskAborted

from labkit.cluster.adapter import client
from labkit.cluster.errors import CellFailed, CellHung
from labkit.text import ranks_phrase
from mpiwatch.sessions import one_line

CONSEQUENCES = (
    "HangError",
    "KeyboardInterrupt",
    "Interrupted",
    "EngineError",
)  # what the other ranks raise after a hang or a stop
SKIPPED = "skipped, because the previous cell had just failed on this rank; run this cell again"
TRACEBACKS_SHOWN, MESSAGES_SHOWN, REQUESTS_SHOWN = 4, 8, 3
_IN_CYTHON = re.compile(r"^File .*\.(pyx|pxi):\d+", re.MULTILINE)  # whose source is not installed
_FIRST_LINE = re.compile(r"# cell \[\d+\]: (%%px)")  # what the ranks run in place of it: magics.engine_text
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


class Failure(NamedTuple):
    """What a rank raised: the error's name and message, and the traceback without them."""

    rank: int
    name: str
    message: str
    frames: str


def failures(result: ipp.AsyncResult) -> list[Failure]:
    """Return what the ranks that have ended the cell raised, by rank."""
    raised = []
    for rank, future in client.futures(result).items():
        if future.done():
            with contextlib.suppress(Exception):  # a cancelled future has no result
                error = future.result()  # ipyparallel returns a rank's exception as a result
                if isinstance(error, RemoteError):
                    (part,) = client.errors_in(error)
                    raised.append(Failure(rank, part.name, *split(part.name, part.message, part.traceback)))
                elif isinstance(error, TaskAborted):
                    raised.append(Failure(rank, "CellSkipped", SKIPPED, ""))
    return sorted(raised)


def failed_ranks(raised: Iterable[Failure]) -> list[int]:
    """Return the ranks that raised an error: first those that failed by themselves."""
    of_ranks = [failure for failure in raised if failure.name not in ("EngineError", "CellSkipped")]
    of_ranks.sort(key=lambda failure: (failure.name in CONSEQUENCES, failure.rank))
    return [failure.rank for failure in of_ranks]


def failures_in(error: RemoteError) -> list[Failure]:
    """Return what each rank raised, from the one error that ipyparallel makes of these."""
    return sorted(
        Failure(part.engine, part.name, *split(part.name, part.message, part.traceback))
        for part in client.errors_in(error)
    )


def split(name: str, message: str, traceback: str) -> tuple[str, str]:
    """Return an error's message and its frames, from IPython's traceback: header, frames, `name: message`.

    Of an error of MPI's, the message is only the line that says why, which is the same on all ranks.
    """
    message, frames = _split(name, message, traceback)
    lines = message.splitlines()
    if lines and ", error stack:" in lines[0]:
        message = one_line(lines)
    return message, frames


def _split(name: str, message: str, traceback: str) -> tuple[str, str]:
    traceback = _FIRST_LINE.sub(r"\1", traceback)
    lines = traceback.splitlines()
    if not lines:
        return message, ""
    plain = _COLOURS.sub("", traceback).splitlines()
    last = [number for number, line in enumerate(plain) if line == name or line.startswith(f"{name}:")]
    if not last:  # the error has a form of its own
        return message, "" if message in "\n".join(plain) else traceback
    expected = f"{name}: {message}".splitlines()
    end = len(plain) - len(expected) if plain[-len(expected) :] == expected else last[-1]
    first = 2 if plain[0] and not plain[0].strip("-") else 0
    shown = "\n".join(plain[end:])[len(name) :].removeprefix(":").strip()
    # IPython shows notes, too, and not the temporary file that a SyntaxError's own message names.
    if shown.startswith(message) or re.fullmatch(re.escape(shown) + r" \(.*line \d+\)", message):
        message = shown
    frames = "\n".join(lines[first:end]).strip("\n").split("\n\n")
    return message, "\n\n".join(frame for frame in frames if not _IN_CYTHON.search(_COLOURS.sub("", frame)))


def leftover_lines(leftovers: Sequence[tuple[list[Any], list[Any], list[Any]]]) -> str:
    """Return lines about what a cell has left on the ranks; empty if there is nothing.

    `leftovers`: see mpiwatch.sessions.leftovers, by rank.
    """
    lines = [_unreceived_line(leftovers), *_request_lines([requests for _, _, requests in leftovers])]
    return "\n".join(filter(None, lines))


def _unreceived_line(leftovers: Sequence[tuple[list[Any], list[Any], list[Any]]]) -> str:
    arrived = [tuple(message) for here, _, _ in leftovers for *message, _ in here]
    lines = {tuple(message): line for _, sent, _ in leftovers for *message, line in sent}
    if not arrived:
        return ""
    _, source, dest, tag = arrived[0]
    parts = [f"rank {dest} has not received a message from rank {source}, tag {tag}"]
    line = lines.get(arrived[0])
    if line:
        parts.append(f", sent at {line}")
    if len(arrived) > 1:
        parts.append(" (there are more)")
    return "".join([*parts, "; a later cell can receive it."])


def _request_lines(requests: Sequence[list[tuple[str, int, str, bool]]]) -> list[str]:
    """Return a line for each call whose requests are open, with its ranks."""
    ranks: dict[tuple[str, str, bool], set[int]] = {}
    for rank, calls in enumerate(requests):
        for operation, _, line, is_dropped in calls:
            ranks.setdefault((operation, line, is_dropped), set()).add(rank)
    texts = []
    for (operation, line, is_dropped), those in list(ranks.items())[:REQUESTS_SHOWN]:
        state = "was dropped without a wait" if is_dropped else "is not complete"
        if "recv" in operation.lower():
            effect = "it takes the next message that fits"
        else:
            effect = "keep the request and wait for it" if is_dropped else "wait for it"
        texts.append(f"{ranks_phrase(those)}: the request of {operation} at {line} {state}; {effect}.")
    if len(ranks) > REQUESTS_SHOWN:
        texts.append(f"({len(ranks) - REQUESTS_SHOWN} more calls have left requests.)")
    return texts


def hang_report(raised: Iterable[Failure]) -> str | None:
    """Return the message of a HangError that a rank has raised; None if no rank has."""
    return next((failure.message for failure in raised if failure.name == "HangError"), None)


def tracebacks(raised: Iterable[Failure], with_message: bool = True) -> list[str]:
    """Return the distinct tracebacks of the ranks that failed by themselves, each under its heading.

    Tracebacks are equal if their frames are; their messages may differ from rank to rank.
    """
    groups: dict[tuple[str, str], list[Failure]] = {}
    for failure in raised:
        if failure.name not in CONSEQUENCES:
            groups.setdefault((failure.name, failure.frames), []).append(failure)
    shown, hidden = list(groups.values())[:TRACEBACKS_SHOWN], list(groups.values())[TRACEBACKS_SHOWN:]
    texts = []
    for group in shown:
        heading = headings(group) if with_message else [f"{group[0].name} on {ranks_of(group)}:"]
        texts.append("\n".join(filter(None, [*heading, group[0].frames])))
    if hidden:
        ranks = ranks_of(failure for group in hidden for failure in group)
        texts.append(f"The tracebacks of {ranks} differ from these and are not shown.")
    return texts


def headings(raised: Iterable[Failure]) -> list[str]:
    """Return a line for each distinct error: `ValueError on ranks 0–3: message`."""
    groups: dict[tuple[str, str], list[Failure]] = {}
    for failure in raised:
        groups.setdefault((failure.name, failure.message), []).append(failure)
    lines = [
        f"{name} on {ranks_of(group)}" + (f": {message}" if message else "")
        for (name, message), group in groups.items()
    ]
    hidden = len(lines) - MESSAGES_SHOWN
    return lines if hidden <= 1 else [*lines[:MESSAGES_SHOWN], f"… and {hidden} more messages"]


def ranks_of(raised: Iterable[Failure]) -> str:
    return ranks_phrase([failure.rank for failure in raised])


def error_of(raised: Sequence[Failure]) -> CellHung | CellFailed | None:
    """Return the error to raise for a cell that has ended on all ranks; None if no rank raised one."""
    report = hang_report(raised)
    if report is not None:
        return CellHung(report, tracebacks(raised))
    if not raised:
        return None
    if len({(failure.name, failure.frames) for failure in raised}) == 1:
        return CellFailed("\n".join(headings(raised)), [*filter(None, [raised[0].frames])])
    return CellFailed("\n".join(headings(raised)), tracebacks(raised, with_message=False))
