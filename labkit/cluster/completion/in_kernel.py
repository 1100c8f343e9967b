"""Completion and help in a notebook's kernel, and in a terminal's IPython."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from IPython.core import page
from IPython.core.completer import SimpleCompletion, context_matcher

from labkit.cluster.adapter.requests import PendingAnswer, answer_beside_cells
from labkit.cluster.completion.cells import CellOnRanks, find_cell
from labkit.cluster.completion.service import Ask, service

TERMINAL_S = 1.0  # at most, for an answer in a terminal, which loads much at its first completion
LATEST_S = 0.13  # from a request until something is answered, be it nothing


def answer_in_kernel(shell: Any) -> None:
    """Let a kernel that starts answer requests for cells of the ranks, also while a cell runs."""
    kernel = getattr(shell, "kernel", None)
    if kernel is not None:
        answer_beside_cells(kernel, {"complete_request": complete, "inspect_request": inspect})


def complete(content: dict[str, Any]) -> PendingAnswer | None:
    """Begin to answer a `complete_request`."""
    code, position = content["code"], content["cursor_pos"]
    position = len(code) if position is None else position
    cell = find_cell(code, position)
    if cell is None:
        return None
    nothing: dict[str, Any] = {"matches": [], "start": position - cell.start, "help": ""}
    future = service.submit("completions", cell)
    reply = changed(future, lambda answer: complete_reply(cell, position, answer))
    return PendingAnswer(reply, LATEST_S, complete_reply(cell, position, nothing))


def inspect(content: dict[str, Any]) -> PendingAnswer | None:
    """Begin to answer an `inspect_request`."""
    cell = find_cell(content["code"], content["cursor_pos"])
    if cell is None:
        return None
    future = service.submit("help", cell, content.get("detail_level", 0))
    return PendingAnswer(changed(future, inspect_reply), LATEST_S, inspect_reply({"help": ""}))


def complete_reply(cell: CellOnRanks, position: int, answer: Mapping[str, Any]) -> dict[str, Any]:
    """Return a `complete_reply` of Jupyter's protocol."""
    start = cell.start + answer["start"]
    rows = [
        {"start": start, "end": position, "text": text, "type": kind, "signature": ""}
        for text, kind in answer["matches"]
    ]
    return {
        "status": "ok",
        "matches": [row["text"] for row in rows],
        "cursor_start": start,
        "cursor_end": position,
        "metadata": {"_jupyter_types_experimental": rows},
    }


def inspect_reply(answer: Mapping[str, Any]) -> dict[str, Any]:
    """Return an `inspect_reply` of Jupyter's protocol."""
    text = answer["help"]
    data = {"text/plain": text} if text else {}
    return {"status": "ok", "found": bool(text), "data": data, "metadata": {}}


def changed(first: Future[Any], change: Callable[[Any], dict[str, Any]]) -> Future[dict[str, Any]]:
    """Return a future of the changed result of another."""
    second: Future[dict[str, Any]] = Future()

    def finish(done: Future[Any]) -> None:
        try:
            second.set_result(change(done.result()))
        except Exception as error:
            second.set_exception(error)

    first.add_done_callback(finish)
    return second


def connect_completion(shell: Any, ranks: list[int], ask: Ask) -> None:
    """Ask these ranks from now on. In a terminal, add their names to IPython's own completion."""
    service.connect(ranks, ask)
    if getattr(shell, "kernel", None) is None and match_names not in shell.Completer.custom_matchers:
        shell.Completer.custom_matchers.append(match_names)


@context_matcher()
def match_names(context: Any) -> dict[str, Any]:
    """Return what IPython's completer shows for a line of a `%%px` cell, in place of all else."""
    lines = context.full_text.split("\n")
    above: Sequence[str] = lines[: context.cursor_line]
    position = sum(len(line) + 1 for line in above) + context.cursor_position
    answer = complete({"code": context.full_text, "cursor_pos": position})
    if answer is None:
        return {"completions": [], "suppress": False}
    try:
        reply = answer.content.result(TERMINAL_S)
    except TimeoutError:
        reply = answer.otherwise
    rows = reply["metadata"]["_jupyter_types_experimental"]
    fragment = context.full_text[reply["cursor_start"] : position]
    completions = [SimpleCompletion(text=row["text"], type=row["type"]) for row in rows]
    return {"completions": completions, "suppress": True, "matched_fragment": fragment}


def show_help(expression: str, detail: int) -> None:
    """Show the page of an expression once, as `name?` and `name??` do outside `%%px`."""
    cell = CellOnRanks(expression, len(expression), 0)
    text = service.submit("help", cell, detail).result()["help"]
    if text:
        page.page({"text/plain": text})
    else:
        print(f"Object `{expression}` not found on the ranks.")
