"""Measure what students need of a Linux server: memory, processes, time; for docs/server.md.

python tools/measure_students.py 1 2 4 8

For each number, start so many students at once, each with a JupyterLab server, a kernel and engines of their
own, and measure them idle and busy. Print a table, and the memory of n students as a fitted line.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import secrets
import subprocess
import tempfile
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from jupyter_client.blocking.client import BlockingKernelClient

from labkit import jupyter_server
from labkit.cli import lab
from labkit.exercises import catalogue
from mpiwatch.processes import supervised

DEADLINE_S = 300.0
IDLE_S = 20.0
SETTLE_S = 5.0  # after a start, before a server counts as idle
CONNECT = "from labkit.cluster import connect\nrc = connect({ranks}, timeout=300)"
# Train LeNet-5 on 100 images, as notebook 08 does.
PREPARE = """%%px
from labkit import data, nn
from labkit.exercises import check
from labkit.train import Batches, train
digits = data.load("digits", (1, 32, 32))
part = data.strided(100, rank, size)
def job():
    batches = Batches(comm, digits.x_train[part], digits.y_train[part], 20)
    return train(comm, nn.lenet5(), batches, epochs=20, lr=0.01)[-1].global_loss"""
TRAIN = "%%px\nloss = job()\nif rank == 0:\n    print(f'loss {loss:.4f}')"
TASK = f"%%px\n{catalogue.find('shift_right').text}"
CHECK = "%%px\nshift_right = check(shift_right)"


class Student:
    """A JupyterLab server with a kernel, in a home folder of its own."""

    def __init__(self, home: Path, ranks: int) -> None:
        self.home, self.ranks = home, ranks
        self.said = ""  # by the last cell
        own = {name: str(home / name.lower()) for name in ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR")}
        self.ipython = own["IPYTHONDIR"]
        self.token = secrets.token_hex(24)
        self.env = {**os.environ, **own, "HOME": str(home), "JUPYTER_TOKEN": self.token}
        self.env["LABKIT_PROGRESS"] = f"{home}/progress.json"
        options = [f"--ServerApp.root_dir={home}", "--ServerApp.log_level=ERROR", "--no-browser"]
        options += ["--KernelManager.transport=ipc", "--allow-root"]
        command = [
            *supervised(remove=own["JUPYTER_RUNTIME_DIR"], supervisors_s=lab.ENGINES_S),
            *jupyter_server.command("jupyterlab.labapp"),
            *options,
        ]
        home.mkdir(exist_ok=True)
        with (home / "jupyterlab.log").open("w") as log:
            self.server = subprocess.Popen(command, env=self.env, cwd=home, stdout=log, stderr=log)

    def start(self) -> float:
        """Start the kernel and its engines; return the seconds that `connect()` took."""
        runtime = Path(self.env["JUPYTER_RUNTIME_DIR"])
        url = json.loads(_first_text(runtime, "jpserver-*.json"))["url"]
        _try_until_it_works(lambda: urllib.request.urlopen(f"{url}api/status?token={self.token}"))
        request = urllib.request.Request(f"{url}api/kernels?token={self.token}", b"{}")
        kernel = json.loads(urllib.request.urlopen(request, timeout=DEADLINE_S).read())["id"]
        connection = runtime / f"kernel-{kernel}.json"
        _first_text(runtime, connection.name)
        self.client = BlockingKernelClient(connection_file=str(connection))
        self.client.load_connection_file()
        self.client.start_channels()
        _try_until_it_works(lambda: self.client.execute_interactive("pass", timeout=2))
        seconds = self.run(CONNECT.format(ranks=self.ranks))
        self.run(PREPARE)
        self.run(TASK)
        return seconds

    def run(self, code: str) -> float:
        """Run a cell; return its seconds, keep what it printed. Raise RuntimeError if it fails."""
        said: list[str] = []

        def hook(message: dict[str, Any]) -> None:
            content = message["content"]
            if message["msg_type"] == "stream":
                said.append(content["text"])
            elif message["msg_type"] == "display_data":  # the verdict of a check
                said.append(content["data"].get("text/plain", ""))

        began = time.monotonic()
        reply = self.client.execute_interactive(code, output_hook=hook, timeout=DEADLINE_S)
        self.said = "".join(said)
        if reply["content"]["status"] != "ok":
            raise RuntimeError(f"{self.home.name}: {reply['content'].get('evalue')}\n{self.said}")
        return time.monotonic() - began

    def processes(self) -> list[psutil.Process]:
        """Return all processes that have this student's folder in their environment."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.environ().get("IPYTHONDIR") == self.ipython:
                    found.append(process)
        return found

    def end(self) -> None:
        """End the server, with all that it has started."""
        self.server.terminate()
        with suppress(AttributeError):
            self.client.stop_channels()


def _first_text(folder: Path, pattern: str) -> str:
    """Return the text of the first complete JSON file of this name."""
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        for path in folder.glob(pattern):
            with suppress(OSError, ValueError):
                text = path.read_text()
                json.loads(text)
                return text
        time.sleep(0.05)
    raise TimeoutError(f"no {pattern} in {folder}: see jupyterlab.log there")


def _try_until_it_works(call: Callable[[], object]) -> None:
    """Call again until the server or the kernel answers."""
    deadline = time.monotonic() + DEADLINE_S
    while True:
        try:
            call()
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def needs(students: Sequence[Student]) -> dict[str, Counter[str]]:
    """Return what all students' processes use, by the kind of process. Memory is in bytes.

    PSS divides pages that several processes share among them, so that the sum is what they use together.
    """
    listening = Counter(
        net_connection.pid
        for net_connection in psutil.net_connections("tcp")
        if net_connection.status == psutil.CONN_LISTEN
    )
    found: dict[str, Counter[str]] = {}
    for process in [process for student in students for process in student.processes()]:
        with suppress(psutil.Error, OSError):
            rollup = Path(f"/proc/{process.pid}/smaps_rollup").read_text()
            sizes = re.findall(r"^(Pss|Rss): +(\d+)", rollup, re.MULTILINE)
            need = Counter({name: int(kilobytes) << 10 for name, kilobytes in sizes})
            need.update(processes=1, threads=process.num_threads(), files=process.num_fds())
            need.update(ports=listening[process.pid])
            found.setdefault(kind(process), Counter()).update(need)
    return found


def total(need: dict[str, Counter[str]]) -> Counter[str]:
    """Return the sum over the kinds of processes."""
    return sum(need.values(), Counter())


def kind(process: psutil.Process) -> str:
    """Return which part of a student's processes one is."""
    words = process.cmdline()
    # One process forks the engines: all have one command line.
    engine = "labkit.cluster.adapter.engine"
    if words[2:4] == ["-m", engine]:
        above = process.parents()[0].cmdline()
        return "engines" if above[2:4] == ["-m", engine] else "process that forks"
    names = {"supervisor.py": "supervisors", "jupyterlab": "JupyterLab server", "ipykernel": "kernel"}
    names |= {"adapter.controller": "controller", "mpiexec": "mpiexec", "hydra": "mpiexec", "prte": "mpiexec"}
    names["forking.py"] = "stand-ins"  # after mpiexec, which has it in its command line
    line = " ".join(words)
    return next((name for word, name in names.items() if word in line), line[:60])


def cpu_percent(students: Sequence[Student], seconds: float) -> dict[str, float]:
    """Return how much of one core each kind of process takes, in percent."""
    before: dict[psutil.Process, float] = {}
    for process in [process for student in students for process in student.processes()]:
        with suppress(psutil.Error):
            before[process] = sum(process.cpu_times()[:2])
    began = time.monotonic()
    time.sleep(seconds)
    used: dict[str, float] = {}
    for process, already in before.items():
        with suppress(psutil.Error):
            name = kind(process)
            spent = sum(process.cpu_times()[:2]) - already
            used[name] = used.get(name, 0) + 100 * spent / (time.monotonic() - began)
    return used


@contextmanager
def started(count: int, ranks: int) -> Iterator[tuple[list[Student], list[float], float]]:
    """Start students at once; yield them, the seconds of each `connect()`, and those until all were ready."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="students-")))
        threads = stack.enter_context(ThreadPoolExecutor(count))
        began = time.monotonic()
        students = []
        stack.callback(lambda: end(students))
        for number in range(count):
            students.append(Student(folder / f"student-{number}", ranks))
        seconds = list(threads.map(Student.start, students))
        yield students, seconds, time.monotonic() - began


def end(students: Sequence[Student]) -> None:
    """End all, and wait until nothing of theirs is left; raise RuntimeError if something is."""
    for student in students:
        student.end()
    deadline = time.monotonic() + DEADLINE_S
    while True:
        left = [process for student in students for process in student.processes()]
        if not left:
            return
        if time.monotonic() > deadline:
            raise RuntimeError(f"left behind: {left}")
        time.sleep(0.1)


@contextmanager
def busy(students: Sequence[Student]) -> Iterator[None]:
    """Let students train again and again while the block runs."""
    is_over = threading.Event()

    def train(student: Student) -> None:
        while not is_over.is_set():
            student.run(TRAIN)

    with ThreadPoolExecutor(max(1, len(students))) as threads:
        running = [threads.submit(train, student) for student in students]
        try:
            yield
        finally:
            is_over.set()
        for each in running:
            each.result()


def loss_of(student: Student) -> list[str]:
    """Return what a student's training has printed, without the view of a cell that takes seconds."""
    return re.findall(r"loss [\d.]+", student.said)


def median_of_three(run: Callable[[], float]) -> float:
    """Return the median of three times."""
    return sorted(run() for _ in range(3))[1]


def measure(count: int, ranks: int, idle_s: float) -> dict[str, float]:
    """Return what so many students use together, `idle_s` seconds idle, and how long their cells take."""
    free = psutil.virtual_memory().available
    with started(count, ranks) as (students, connects, ready):
        time.sleep(SETTLE_S)
        cpu = cpu_percent(students, idle_s)
        need = needs(students)
        if count == 1:
            print_parts(need, cpu)
        used = total(need)
        row = {"Students": count, "all ready, s": ready, "slowest `connect()`, s": max(connects)}
        row |= {"processes": used["processes"], "memory (PSS), GB": used["Pss"] / 1e9}
        row["less available, GB"] = (free - psutil.virtual_memory().available) / 1e9
        row["CPU idle, cores"] = sum(cpu.values()) / 100
        one = students[0]
        row["cell, others idle, s"] = median_of_three(lambda: one.run(TRAIN))
        loss = loss_of(one)
        with ThreadPoolExecutor(count) as threads:
            row["cell, all at once, s"] = median_of_three(
                lambda: max(threads.map(lambda each: each.run(TRAIN), students))
            )
        others = [student for student in students if loss_of(student) != loss]
        if others:
            raise RuntimeError(f"expected {loss}, got {others[0].said!r}")
        row["check, others idle, s"] = median_of_three(lambda: one.run(CHECK))
        with busy(students[1:]):
            row["check, others busy, s"] = one.run(CHECK)
        if ": correct" not in one.said:
            raise RuntimeError(one.said)
    return row


def print_parts(need: dict[str, Counter[str]], cpu: dict[str, float]) -> None:
    """Print what the parts of one idle student use, as a Markdown table."""
    print("| One student | processes | memory (PSS), MB | RSS, MB | threads | files | ports | CPU idle, % |")
    print("|---|---|---|---|---|---|---|---|")
    for name, each in {**need, "all": total(need)}.items():
        counts = " | ".join(str(each[what]) for what in ("threads", "files", "ports"))
        memory = f"{each['Pss'] / 1e6:.0f} | {each['Rss'] / 1e6:.0f}"
        share = cpu.get(name, sum(cpu.values()))
        print(f"| {name} | {each['processes']} | {memory} | {counts} | {share:.1f} |", flush=True)
    print()


def main() -> None:
    """Measure, and print a table with a row for each number of students."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("students", type=int, nargs="+", help="numbers of students to start at once")
    parser.add_argument("-n", type=int, default=4, dest="ranks", help="ranks of each student (default 4)")
    parser.add_argument(
        "--idle",
        type=float,
        default=IDLE_S,
        metavar="S",
        help="seconds for which the share of a core of idle students is measured (default 20)",
    )
    arguments = parser.parse_args()
    rows: list[dict[str, float]] = []
    for count in arguments.students:
        rows.append(measure(count, arguments.ranks, arguments.idle))
        if len(rows) == 1:
            print(f"| {' | '.join(rows[0])} |\n|{'---|' * len(rows[0])}")
        print(f"| {' | '.join(f'{value:.3g}' for value in rows[-1].values())} |", flush=True)
    if len({row["Students"] for row in rows}) > 1:
        slope, first = np.polyfit(
            *([row[key] for row in rows] for key in ("Students", "memory (PSS), GB")), 1
        )
        print(f"\nMemory of n students: {first:.2f} GB + {slope:.3f} GB * n")


if __name__ == "__main__":
    main()
