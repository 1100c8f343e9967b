"""Let a class of simulated students work on this Linux server, and measure how long each of them waits.

python tools/class_day.py 30 --minutes 45

Each student has a JupyterLab server, a tab of a browser, a kernel and four ranks, and works through notebooks
as students do: thinks before each cell, gives wrong answers before right ones, makes the ranks wait for one
that never comes, loses a rank, restarts the kernel, closes the tab, runs all cells. Print for each kind of
action how long it took, and what must not happen: hang reports of cells that do not hang, verdicts that are
wrong, checks that failed, lost sessions, processes and files left behind.

With --hub the servers are those of a real JupyterHub with the settings of examples/jupyterhub_config.py.

Ctrl-C ends the day early, and prints what was measured. All that was started ends with this program.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import nbformat
import numpy as np
import psutil
from browser_tab import Hub, HubServer, Reply, Server, SessionLostError, Tab

from labkit.checks.exercise import ORIGINALS, Exercise
from labkit.cli.course import copies
from labkit.exercises import catalogue
from mpiwatch.processes import forgotten_flight_recorders, forgotten_segments

CELL_S = 600.0  # for a cell: then the session counts as lost
ALL_CELLS_S = 1800.0
SETTLE_S = 20.0  # for the end of other jobs
SAMPLE_S = 1.0  # between looks at the free memory
PSS_EVERY_S = 60.0
SHOWN = 400  # characters of what a cell has shown, for each problem
WRONG_FIRST = 0.5  # of the right answers follow a wrong one; half of these another one
EMPTY_CELL = "%px pass"
ENGINES_ENDED = "the engines were ended"  # in a cell's output: the notebook has given the ranks up
HANG = "%%px\nif rank != size - 1:\n    comm.Barrier()"
KILL = "%%px\nimport os, signal\nif rank == size - 1:\n    os.kill(os.getpid(), signal.SIGKILL)\n"
KILL += "comm.Barrier()"
ENDLESS = "%%px\nimport time\nuntil_s = time.monotonic() + {:.0f}\nmatrix = np.ones((300, 300))\n"
ENDLESS += "while time.monotonic() < until_s:\n    matrix @ matrix"
# How often a student does something else than run the next cell.
EVENTS = {"hang": 0.02, "killed rank": 0.01, "restart": 0.01, "closed tab": 0.02, "run all": 0.01}


class Cell(NamedTuple):
    """A code cell: its source, whether it may raise an error, and the exercise that it holds or checks."""

    source: str
    may_fail: bool
    answers: Exercise | None = None
    checks: Exercise | None = None


class Book(NamedTuple):
    """A notebook: its file's name, its code cells as they are handed out, and those with right answers."""

    name: str
    cells: list[Cell]
    solved: list[Cell]
    stubs: dict[str, Any]

    def wrong(self, exercise: Exercise, finding: str) -> str:
        """Return the source of the exercise's cell with a mistake in it."""
        return answered(self.stubs[exercise.name], exercise.name, exercise.mistaken(finding))


def read_book(number: str) -> Book:
    """Return the notebook of this number, such as "05"."""
    (path,) = ORIGINALS.glob(f"{number}_*.ipynb")
    notebook = nbformat.read(path, as_version=4)
    pairs = copies.pairs(notebook)
    answers = {id(pair.stub): catalogue.find(pair.name) for pair in pairs}
    checks = {id(pair.check): catalogue.find(pair.name) for pair in pairs}
    cells, solved = [], []
    for cell in notebook.cells:
        if cell.cell_type == "code":
            may_fail = "raises-exception" in cell.metadata.get("tags", ())
            handed_out = Cell(cell.source, may_fail, answers.get(id(cell)), checks.get(id(cell)))
            exercise = handed_out.answers
            source = answered(cell, exercise.name, exercise.text) if exercise else cell.source
            cells.append(handed_out)
            solved.append(handed_out._replace(source=source))
    return Book(path.name, cells, solved, {pair.name: pair.stub for pair in pairs})


def answered(stub: Any, name: str, text: str) -> str:
    """Return the source of an exercise's cell with this answer in place of the stub."""
    cell = deepcopy(stub)
    copies.write_answer(cell, name, text)
    return str(cell.source)


@dataclass
class Day:
    """What has been measured: seconds by the kind of action, and problems by their kind."""

    seconds: dict[str, list[float]] = field(default_factory=dict)
    problems: dict[str, list[str]] = field(default_factory=dict)
    is_over: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def note(self, kind: str, seconds: float) -> None:
        with self.lock:
            self.seconds.setdefault(kind, []).append(seconds)

    def problem(self, kind: str, student: int, text: str) -> None:
        with self.lock:
            self.problems.setdefault(kind, []).append(f"student {student}: {text}")
        print(f"{time.strftime('%H:%M:%S')} {kind}, student {student}: {text}", file=sys.stderr, flush=True)

    @contextmanager
    def timed(self, kind: str) -> Iterator[None]:
        """Note how long the block took, unless it raises an error."""
        began = time.monotonic()
        yield
        self.note(kind, time.monotonic() - began)


def new_folder(prefix: str) -> Path:
    """Return a new folder. Kernels keep sockets in it: a longer path than one below /tmp would not do."""
    return Path(tempfile.mkdtemp(prefix=prefix, dir="/tmp"))


class Student(threading.Thread):
    """A student, who works through the notebooks one after the other until the day is over."""

    def __init__(
        self, number: int, day: Day, books: Sequence[Book], options: argparse.Namespace, hub: Hub | None
    ) -> None:
        super().__init__(name=f"student {number}", daemon=True)
        self.number, self.day, self.options = number, day, options
        self.books = [books[(number + turn) % len(books)] for turn in range(len(books))]
        self.random = random.Random(f"{options.seed} {number}")
        self.hub = hub
        self.home = new_folder(f"class-{number}-") if hub is None else hub.home / f"s{number}"
        self.server: Server | HubServer | None = None
        self.cells_left = options.cells or float("inf")
        self.due_events = [*options.once]
        self.is_ready = False

    def run(self) -> None:
        """Come in, and work. A lost session is noted, and the student begins again."""
        arrival_s = self.options.arrive * self.number / self.options.students
        if self.day.is_over.wait(arrival_s):
            return
        while not self.day.is_over.is_set() and self.cells_left > 0:
            try:
                self.work()
                if self.options.cells:
                    return
            except SessionLostError as error:
                self.problem("lost session", str(error))
            except Exception as error:  # the others go on
                self.problem("fault of this program", f"{type(error).__name__}: {error}")
                self.day.is_over.wait(10)

    def problem(self, kind: str, text: str) -> None:
        """Note a problem, unless it comes from the end of the day, which stops all cells."""
        if not self.day.is_over.is_set():
            self.day.problem(kind, self.number, text)

    def work(self) -> None:
        """Start a server if there is none, and go through all notebooks."""
        if self.server is None:
            with self.day.timed("start of a server"):
                self.server = Server(self.home) if self.hub is None else HubServer(self.home, self.hub)
                self.server.wait_until_it_answers()
        for book in self.books:
            with self.day.timed("start of a kernel"):
                tab = Tab(self.server, book.name)
            try:
                Reader(self, tab, book).read()
            finally:
                with suppress(SessionLostError, OSError):
                    tab.shut_down()
            if self.day.is_over.is_set() or self.cells_left <= 0:
                return

    def thinking_s(self) -> float:
        """Return how long the student thinks before the next cell."""
        mean_s = self.options.think
        return self.random.expovariate(1 / mean_s) if mean_s else 0.0

    def next_event(self) -> str:
        """Return what the student does besides running the next cell; empty for nothing."""
        if self.options.once:
            return self.due_events.pop(0) if self.due_events else ""
        names = [*EVENTS, ""]
        shares = [*EVENTS.values(), 1 - sum(EVENTS.values())]
        return self.random.choices(names, shares)[0]


class Reader:
    """A student who reads one notebook in a tab."""

    def __init__(self, student: Student, tab: Tab, book: Book) -> None:
        self.student, self.tab, self.book, self.day = student, tab, book, student.day
        self.position = 0  # in the cells
        self.events: dict[str, Callable[[], None]] = {
            "hang": self.hang,
            "killed rank": self.lose_a_rank,
            "restart": self.restart,
            "closed tab": self.close_the_tab,
            "run all": self.run_all,
        }

    def think(self) -> None:
        """Wait as long as a student thinks, with the tab open."""
        self.tab.listen(self.student.thinking_s(), self.day.is_over)

    def read(self) -> None:
        """Run the cells one after the other, with what happens between them."""
        for position, cell in enumerate(self.book.solved):
            self.position = position
            if self.day.is_over.is_set() or self.student.cells_left <= 0:
                return
            self.student.cells_left -= 1
            self.think()
            if cell.checks is not None:
                self.check(cell.checks, cell)
            elif cell.answers is None:
                self.run_cell(cell)
            else:
                self.answer(cell.answers, cell)
            if self.position == 0:
                self.come_in()
            elif self.position > 1:
                self.do(self.student.next_event())

    def come_in(self) -> None:
        """Be ready; a student who computes without end does so from now on."""
        self.student.is_ready = True
        options = self.student.options
        while self.student.number < options.endless and not self.day.is_over.is_set():
            self.run("cell of a student who computes without end", ENDLESS.format(60.0))

    def do(self, event: str) -> None:
        """Do what an event's name says, then run an empty cell, as a probe of the session."""
        if event:
            self.think()
            self.events[event]()
            self.run("empty cell", EMPTY_CELL)

    def run(self, kind: str, code: str, *, may_fail: bool = False) -> Reply:
        """Run a cell, and note how long it took. Note an error in one that must not fail."""
        reply = self.tab.run(code, CELL_S, stop_on_error=not may_fail)
        self.day.note(kind, reply.seconds)
        self.note_problems(reply, code, may_fail)
        if ENGINES_ENDED in reply.text:
            self.student.problem("lost engines", f"{code[:80]!r}: {shortened(reply.text)}")
            self.run_again()
        return reply

    def note_problems(self, reply: Reply, code: str, may_fail: bool) -> None:
        if "NOT CHECKED" in reply.text:
            self.student.problem("NOT CHECKED", shortened(reply.text))
        if reply.status == "ok" or may_fail:
            return
        is_hang = "HangError" in (reply.error, *re.findall(r"\w+Error", reply.text))
        kind = "false hang report" if is_hang else "failed cell"
        self.student.problem(kind, f"{code[:80]!r}: {shortened(reply.text)}")

    def run_cell(self, cell: Cell) -> None:
        """Run a cell of the notebook that is no exercise."""
        if "connect(" in cell.source and self.position == 0:
            kind = "connect()"
        elif cell.may_fail:
            kind = "cell of the notebook that shows a hang"
        else:
            kind = "cell of the notebook"
        self.run(kind, cell.source, may_fail=cell.may_fail)

    def answer(self, exercise: Exercise, cell: Cell) -> None:
        """Write an answer: often wrong ones first, each of which is checked."""
        check = next(other for other in self.book.solved if other.checks is exercise)
        findings = [*exercise.mistakes]
        while findings and self.student.random.random() < WRONG_FIRST:
            finding = findings.pop(self.student.random.randrange(len(findings)))
            self.run("cell of the notebook", self.book.wrong(exercise, finding), may_fail=True)
            kind = "check of a wrong answer that hangs" if "hang" in finding else "check of a wrong answer"
            reply = self.run(kind, check.source, may_fail=True)
            if f"{exercise.name}: correct" in reply.text:
                self.student.problem("wrong answer accepted", f"{exercise.name}, {finding!r}")
            self.think()
        self.run("cell of the notebook", cell.source)

    def check(self, exercise: Exercise, cell: Cell) -> None:
        """Check a right answer."""
        reply = self.run("check of a right answer", cell.source)
        if f"{exercise.name}: correct" not in reply.text:
            self.student.problem("right answer refused", f"{exercise.name}: {shortened(reply.text)}")

    # What happens besides

    def hang(self) -> None:
        """Let the last rank leave out a collective."""
        reply = self.run("report of a hang", HANG, may_fail=True)
        if "never called" not in reply.text and "HangError" not in reply.text:
            self.student.problem("no report of a hang", shortened(reply.text))

    def lose_a_rank(self) -> None:
        """Kill a rank, and start again where the student was."""
        reply = self.run("report of a killed rank", KILL, may_fail=True)
        if "RankDied" not in reply.text:
            self.student.problem("no report of a killed rank", shortened(reply.text))
        self.run_again()

    def restart(self) -> None:
        """Restart the kernel, and run the cells again."""
        with self.day.timed("restart of the kernel"):
            self.tab.restart()
        self.run_again()

    def run_again(self) -> None:
        """Run all cells above, without those that check; the first connects."""
        above = [cell for cell in self.book.solved[: self.position + 1] if not cell.checks]
        self.run("connect() again", above[0].source)
        with self.day.timed("all cells above"):
            for cell in above[1:]:
                reply = self.tab.run(cell.source, CELL_S)
                self.note_problems(reply, cell.source, cell.may_fail)

    def close_the_tab(self) -> None:
        """Close the tab, and open it again after a while."""
        self.tab.close()
        self.day.is_over.wait(self.student.thinking_s())
        with self.day.timed("tab opened again"):
            self.tab.open()

    def run_all(self) -> None:
        """Run all cells of the notebook at once, with the answers given so far, and again those above.

        The cells below may have changed variables of those above.
        """
        done = self.position + 1
        cells = [*self.book.solved[:done], *self.book.cells[done:]]
        stops = [not cell.may_fail for cell in cells]
        with self.day.timed(f"Run All of notebook {self.book.name[:2]}"):
            replies = self.tab.run_all([cell.source for cell in cells], ALL_CELLS_S, stops)
        for cell, reply in zip(cells, replies, strict=True):
            if reply.status != "aborted":  # the cell before it has been noted
                self.note_problems(reply, cell.source, cell.may_fail)
        self.run_again()


def shortened(text: str) -> str:
    """Return the end of what a cell has shown, without colours, in one line."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
    return " ".join(plain.split())[:SHOWN]


class Machine(threading.Thread):
    """What the class takes of the machine: memory, processor time, processes."""

    def __init__(self, day: Day) -> None:
        super().__init__(name="machine", daemon=True)
        self.day = day
        self.free_before = self.least_free = psutil.virtual_memory().available
        self.began, self.cpu_before = time.monotonic(), busy_s()
        self.largest: Counter[str] = Counter()

    def run(self) -> None:
        """Look until the day is over."""
        next_pss = time.monotonic() + PSS_EVERY_S
        while not self.day.is_over.wait(SAMPLE_S):
            self.least_free = min(self.least_free, psutil.virtual_memory().available)
            if time.monotonic() > next_pss:
                self.look()
                next_pss = time.monotonic() + PSS_EVERY_S

    def look(self) -> None:
        """Note what all processes of the class use now, if it is more than before."""
        now = usage()
        self.largest = Counter({name: max(now[name], self.largest[name]) for name in now})

    def lines(self) -> Iterator[str]:
        """Yield what the class has taken."""
        elapsed_s = time.monotonic() - self.began
        cores = (busy_s() - self.cpu_before) / elapsed_s
        largest = self.largest
        less = (self.free_before - self.least_free) / 1e9
        yield f"Memory: {largest['pss'] / 1e9:.2f} GB (PSS, the largest of looks a minute apart)"
        yield f"Memory: at the lowest, the machine had {less:.2f} GB less available than before"
        yield f"Processes: {largest['processes']}, threads {largest['threads']}, files {largest['files']}"
        yield f"Processor: {cores:.2f} cores of {psutil.cpu_count()} busy on average, in {elapsed_s:.0f} s"


def usage() -> Counter[str]:
    """Return what all processes that this one has started use. PSS is in bytes."""
    need: Counter[str] = Counter()
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error, OSError):
            pss = psutil.Process(process.pid).memory_full_info().pss
            need.update(pss=pss, processes=1, threads=process.num_threads(), files=process.num_fds())
    return need


def busy_s() -> float:
    """Return for how many seconds the machine's cores have been busy since it started."""
    times = psutil.cpu_times()
    return float(sum(times) - times.idle - getattr(times, "iowait", 0.0))


def print_table(day: Day) -> None:
    """Print how long each kind of action took."""
    print("\n| Action | times | median, s | 95th percentile, s | longest, s |\n|---|---|---|---|---|")
    for kind, seconds in sorted(day.seconds.items()):
        middle, high = np.percentile(seconds, [50, 95])
        print(f"| {kind} | {len(seconds)} | {middle:.2f} | {high:.2f} | {max(seconds):.2f} |")


MUST_NOT = (
    *("false hang report", "NOT CHECKED", "lost session", "lost engines"),
    *(
        "right answer refused",
        "wrong answer accepted",
        "failed cell",
        "no report of a hang",
        "no report of a killed rank",
        "fault of this program",
    ),
)


def print_problems(day: Day, left: Sequence[str]) -> None:
    """Print how often each problem came, and what is left behind."""
    print()
    for kind in MUST_NOT:
        print(f"{kind}: {len(day.problems.get(kind, []))}")
    print(f"left behind: {', '.join(left) or 'nothing'}")


def spend(day: Day, students: Sequence[Student], minutes: float) -> None:
    """Wait until the day is over, or all students are through their cells."""
    began = time.monotonic()
    for student in students:
        student.start()
    all_ready_s = 0.0
    while any(student.is_alive() for student in students) and time.monotonic() - began < 60 * minutes:
        time.sleep(SAMPLE_S)
        if not all_ready_s and all(student.is_ready for student in students):
            all_ready_s = time.monotonic() - began
            print(f"All students were ready {all_ready_s:.0f} s after the first came.", flush=True)


def start_hub() -> Hub:
    """Start a JupyterHub, and wait until it answers."""
    hub = Hub(new_folder("hub-"))
    try:
        began = time.monotonic()
        hub.wait_until_it_answers()
        print(f"JupyterHub was ready after {time.monotonic() - began:.0f} s.", flush=True)
        return hub
    except BaseException:
        hub.end()
        hub.wait_for_the_end()
        remove_folder(hub.home)
        raise


def end_all(students: Sequence[Student], hub: Hub | None) -> list[str]:
    """End all servers with what they have started, and the hub; return what is left behind."""
    servers = [student.server for student in students if student.server is not None]
    for server in servers:
        server.end()
    left = [thing for server in servers for thing in server.wait_for_the_end()]
    if hub is not None:
        hub.end()
        left += hub.wait_for_the_end()
        remove_folder(hub.home)
    for student in students:
        remove_folder(student.home)
    return left


def segments_left(before: set[str]) -> list[str]:
    """Return the segments of shared memory that no process uses and that were not there before.

    Other jobs on this machine are ending, too, so a segment counts only if it is still there after SETTLE_S.
    """
    deadline = time.monotonic() + SETTLE_S
    left = {*forgotten_segments(), *forgotten_flight_recorders()} - before
    while left and time.monotonic() < deadline:
        time.sleep(SAMPLE_S)
        left &= {*forgotten_segments(), *forgotten_flight_recorders()}
    return sorted(left)


def remove_folder(folder: Path) -> None:
    for path in sorted(folder.rglob("*"), reverse=True):
        with suppress(OSError):
            if path.is_dir() and not path.is_symlink():
                path.rmdir()
            else:
                path.unlink()
    with suppress(OSError):
        folder.rmdir()


def parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("students", type=int, help="number of students")
    parser.add_argument("--minutes", type=float, default=45.0, help="length of the day (default 45)")
    parser.add_argument("--arrive", type=float, default=300.0, help="seconds over which they come (300)")
    parser.add_argument("--think", type=float, default=20.0, help="mean seconds before each cell (20)")
    parser.add_argument("--notebooks", nargs="+", default=["00", "01", "05"], help="numbers (00 01 05)")
    parser.add_argument("--endless", type=int, default=0, help="students who compute without end (0)")
    parser.add_argument("--cells", type=int, default=0, help="stop each student after so many cells")
    parser.add_argument(
        "--once", nargs="+", choices=EVENTS, default=[], help="let these happen once, and no others"
    )
    parser.add_argument("--hub", action="store_true", help="on a real JupyterHub instead of plain servers")
    parser.add_argument("--seed", type=int, default=0, help="of all that is drawn (0)")
    parser.add_argument("--json", type=Path, help="write the seconds of all actions to this file, too")
    return parser.parse_args(words)


def main() -> int:
    """Spend a day, and print what was measured; return 1 if something happened that must not."""
    options = parse()
    signal.signal(signal.SIGTERM, lambda signum, frame: sys.exit(128 + signum))
    books = [read_book(number) for number in options.notebooks]
    segments = {*forgotten_segments(), *forgotten_flight_recorders()}
    day = Day()
    machine = Machine(day)
    hub = start_hub() if options.hub else None
    students = [Student(number, day, books, options, hub) for number in range(options.students)]
    try:
        machine.start()
        spend(day, students, options.minutes)
    except KeyboardInterrupt:
        print("Stopping …", flush=True)
    finally:
        machine.look()
        day.is_over.set()
        left = end_all(students, hub)
    left += segments_left(segments)
    print_table(day)
    print()
    print("\n".join(machine.lines()))
    print_problems(day, left)
    if options.json:
        options.json.write_text(json.dumps({"seconds": day.seconds, "problems": day.problems}, indent=1))
    return 1 if day.problems or left else 0


if __name__ == "__main__":
    sys.exit(main())
