"""Answers requests in the notebook's kernel: asks a rank, and after a deadline the mirror.

One thread does it, so that requests are answered while a cell runs.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol

from labkit.cluster.completion import answers
from labkit.cluster.completion.cells import OPTIONS, CellOnRanks
from labkit.cluster.completion.mirror import Mirror, Preparation
from labkit.cluster.completion.on_ranks import ANSWER
from labkit.guard import Guard, note_in_log

RANK_S = 0.08  # for a rank to answer; it takes a few milliseconds
PREPARATION_S = 0.1  # for the mirror, at the first request
SILENT_S = 2.0  # for which a rank that has not answered is not asked again
MIRROR_S = 5.0  # for a rank to describe its names
REST_S = 0.2  # from the end of a cell until the mirror is renewed
APART_S = 1.0  # between two renewals of the mirror, at least


class Asked(Protocol):
    """An answer that is on its way."""

    def wait(self, timeout: float | None = None) -> bool: ...
    def result(self) -> Any: ...
    def done(self) -> bool: ...


Ask = Callable[[int, str, dict[str, Any]], Asked | None]


class Service:
    """Answers requests for completion and help in cells of the ranks.

    `ranks` are the ids of the ranks, and `ask` sends a question to one of them; without `connect()` there are
    none.
    """

    def __init__(self) -> None:
        self.mirror = Mirror()
        self.preparation = Preparation()
        self.ranks: list[int] = []
        self.ask: Ask | None = None
        self.silent: dict[int, tuple[float, Asked]] = {}  # ranks that have not answered: since when
        self.executor = ThreadPoolExecutor(1, "labkit-completion")
        self.guard = Guard("completion", note_in_log)
        self.timer: threading.Timer | None = None
        self.renewed = 0.0

    def connect(self, ranks: list[int], ask: Ask) -> None:
        """Ask these ranks from now on."""
        self.ranks = ranks
        self.ask = ask
        self.silent = {}
        self.mirror = Mirror()
        self.cell_has_ended()

    def submit(self, kind: str, cell: CellOnRanks, detail: int = 0) -> Future[dict[str, Any]]:
        """Begin to answer a request; the result is as `answer` returns it."""
        return self.executor.submit(self.answer, kind, cell, detail, time.monotonic())

    def answer(self, kind: str, cell: CellOnRanks, detail: int, began: float) -> dict[str, Any]:
        """Return the answer to a request of a kind: `completions` or `help`."""
        if cell.cursor is None:
            options = [(option, "") for option in OPTIONS if option.startswith(cell.option)]
            return {"matches": options if cell.option.startswith("-") else [], "start": 0, "help": ""}
        question = {"kind": kind, "code": cell.code, "cursor": cell.cursor, "detail": detail}
        reply = self.guard.do("ask_rank", self.ask_rank, question, cell.targets, began + RANK_S)
        if reply is None:
            reply = self.guard.do("ask_mirror", self.ask_mirror, question, began)
        self.preparation.start()  # now, and not before: it stops this process for a moment
        return reply or {"matches": [], "start": cell.cursor, "help": ""}

    def ask_rank(self, question: dict[str, Any], targets: str, deadline: float) -> dict[str, Any] | None:
        """Return the answer of a rank; None if none answers in time."""
        rank = self.rank_to_ask(targets)
        if rank is None or self.ask is None:
            return None
        asked = self.ask(rank, ANSWER, question)
        if asked is None:
            return None
        if not asked.wait(max(0.01, deadline - time.monotonic())):
            self.silent[rank] = time.monotonic(), asked
            return None
        answer: dict[str, Any] = asked.result()["content"]
        return answer if answer.get("status") == "ok" else None

    def rank_to_ask(self, targets: str) -> int | None:
        """Return a rank of a cell's targets that answers, as far as is known."""
        now = time.monotonic()
        for rank, (since, asked) in list(self.silent.items()):
            if asked.done() or now - since > SILENT_S:
                del self.silent[rank]
        chosen = [rank for rank in self.ranks if rank in numbers_in(targets)] or self.ranks
        return next((rank for rank in chosen if rank not in self.silent), None)

    def ask_mirror(self, question: Mapping[str, Any], began: float) -> dict[str, Any]:
        """Return the answer from what the kernel knows."""
        self.preparation.wait(began + PREPARATION_S - time.monotonic())
        self.mirror.of_mpi = self.mirror.of_mpi or self.preparation.of_mpi
        names = self.mirror.names()
        if question["kind"] == "help":
            text = answers.help_at(question["code"], question["cursor"], question["detail"], names)
            return {"help": text}
        return answers.completions(question["code"], question["cursor"], names)

    def cell_has_ended(self) -> None:
        """Renew the mirror soon; not after every cell if one follows the other."""
        if self.timer is not None and self.timer.is_alive():
            return
        wait = max(REST_S, self.renewed + APART_S - time.monotonic())
        self.timer = threading.Timer(wait, self.renew)
        self.timer.daemon = True
        self.timer.start()

    def renew(self) -> None:
        self.guard.do("renew_mirror", self.renew_mirror)

    def renew_mirror(self) -> None:
        """Ask a rank for its names and types."""
        self.renewed = time.monotonic()
        rank = self.rank_to_ask("")
        if rank is None or self.ask is None:
            return
        mirror = self.mirror
        asked = self.ask(rank, ANSWER, {"kind": "mirror", "with_mpi": not mirror.of_mpi})
        if asked is not None and asked.wait(MIRROR_S):
            answer = asked.result()["content"]
            if answer.get("status") == "ok":
                mirror.update(answer)


def numbers_in(targets: str) -> set[int]:
    """Return the ranks that a value of `--targets` names: `2`, `0,3`, `1:3`; empty for others."""
    ranks: set[int] = set()
    for part in targets.strip("[]()'\"").split(","):
        bounds = re.fullmatch(r"\s*(\d*):(\d*)\s*", part)
        if part.strip().isdigit():
            ranks.add(int(part))
        elif bounds is not None:
            ranks.update(range(int(bounds[1] or 0), int(bounds[2] or 1 << 12)))
    return ranks


service = Service()  # of this kernel
