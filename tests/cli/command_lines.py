"""Malformed command lines, made from the texts of `--help` alone, as a stranger would mistype them.

`malformed_lines` walks `labkit --help` and `mpiwatch --help`. It pairs each option and argument with what is
wrong with a value of its kind. A path is wrong in many ways: it leads to a device, a pipe, a socket, a link
to itself, a folder that may not be read. `make_scene` makes all of these in a scratch folder.

As a program, it runs each line of JSON that it reads, and prints in JSON how the line ended and what it has
changed: files, processes, /dev/shm. It needs a /dev/shm of its own for the last: `private_shared_memory`.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import psutil

LINE_S = float(os.environ.get("LINE_S", "100"))  # for one line, on a busy machine
END_S = 20.0  # for what a line has started to end with it
MARK = "LABKIT_COMMAND_LINE"  # in the environment of all processes of a line
BIN = Path(sys.executable).parent  # with the commands of this environment
PER_COMMAND = 24  # lines of each command
SHARED_MEMORY = Path("/dev/shm")

# Reading the help

WHOLE, NUMBER, PLACE, CHOICE, TEXT, FLAG = "whole", "number", "place", "choice", "text", "flag"
KINDS = {
    **dict.fromkeys(("INTEGER RANGE", "INTEGER", "N", "RANKS"), WHOLE),
    **dict.fromkeys(("NUMBER", "FLOAT", "S", "MB"), NUMBER),
    **dict.fromkeys(("PATH", "FILE", "RUN", "FOLDER", "NOTEBOOK", "PROGRAM", "program"), PLACE),
}
ANYTHING = {"ARGUMENTS", "ARGS"}  # the program's own, which the command does not read


@dataclass(frozen=True)
class Parameter:
    """An option or an argument, as the help shows it. An argument's only name is its metavar."""

    names: tuple[str, ...]
    kind: str
    choices: tuple[str, ...] = ()
    least: float | None = None
    most: float | None = None
    is_required: bool = False
    unless: tuple[str, ...] = ()  # not required beside these

    @property
    def is_option(self) -> bool:
        """Return whether this is an option."""
        return self.names[0].startswith("-")


@dataclass(frozen=True)
class Command:
    """A command and its parameters; `words` as one types them."""

    words: tuple[str, ...]
    parameters: tuple[Parameter, ...]
    subcommands: tuple[str, ...]
    passes_on: bool  # what follows the first argument is not the command's


def help_text(words: Sequence[str]) -> str:
    """Return what a command prints for `--help`."""
    environment = {**os.environ, "COLUMNS": "80"}
    line = [BIN / words[0], *words[1:], "--help"]
    return subprocess.run(line, capture_output=True, text=True, check=True, env=environment).stdout


@cache  # this starts a process for each command
def read_help(words: tuple[str, ...]) -> list[Command]:
    """Return a command and all below it."""
    text = help_text(words)
    subcommands = []
    if listed := re.search(r"^Commands:\n((?:  .*\n)+)", text, re.MULTILINE):
        subcommands = re.findall(r"^  (\w+)", listed[1], re.MULTILINE)
    usage = re.sub(r"\s+", " ", re.match(r"(?i)usage: ((?:.+\n)+)", text)[1])  # type: ignore[index]
    operands = re.sub(r"\[-[^\]]*\]|\[OPTIONS\]", "", usage).split()[len(words) :]
    parameters = [*options(text)]
    for operand in operands if not subcommands else []:
        name = operand.strip("[].{}")
        if name and name not in ANYTHING:
            choices = tuple(name.split("|")) if "|" in name else ()
            kind = CHOICE if choices else KINDS.get(name, TEXT)
            parameters.append(Parameter((name,), kind, choices, is_required=operand[0] != "["))
    passes_on = (
        operands[-1:] == ["..."] or operands[-1:] == ["[ARGUMENTS]..."] or operands[-1:] == ["PROGRAM..."]
    )
    command = Command(words, tuple(parameters), tuple(subcommands), passes_on)
    return [command, *(found for name in subcommands for found in read_help((*words, name)))]


def options(text: str) -> Iterator[Parameter]:
    """Yield the options that a help text lists."""
    _, _, listed = text.partition("\n\n")[2].partition(":\n  -")  # below the first heading
    for entry in re.findall(r"^  (-.*\n(?:   +\S.*\n)*)", f"  -{listed}", re.MULTILINE):
        head, _, rest = entry.partition("\n")
        head, _, beside = head.partition("  ")
        told = re.sub(r"\s+", " ", f"{beside} {rest}")
        names = re.findall(r"(?:^|[, /])(--?[\w-]+)", head)
        metavar = re.sub(r"^(?:(?:, | / )?--?[\w-]+)+ ?", "", head).strip()
        if "--help" in names or "--version" in names:
            continue
        choices: tuple[str, ...] = ()
        if re.fullmatch(r"[\[{].*\|.*[\]}]", metavar):
            choices = tuple(metavar.strip("[]{}").split("|"))
        kind = CHOICE if choices else KINDS.get(metavar, TEXT) if metavar else FLAG
        least = re.search(r"([\d.]+)<=?x|x>=?([\d.]+)", told)
        most = re.search(r"x<=?([\d.]+)", told)
        yield Parameter(
            tuple(names),
            kind,
            choices,
            float(least[1] or least[2]) if least else None,
            float(most[1]) if most else None,
            "[required" in told,
            tuple(re.findall(r"--\w+", told.partition("[required, except with")[2])),
        )


# What can be wrong

LONG = "9" * 400
NO_NUMBERS = (
    "",
    " ",
    "x",
    "²",
    "½",
    "nan",
    "-nan",
    "--",
    "1,5",
    "0x10",
    "1 2",
    "٣x",
    "\udcff",
    "a\nb",
    "1e",
    "+-1",
    "None",
)
NO_WHOLE = *NO_NUMBERS, "1.5", "1e3", "inf", LONG, "-1", "1_0_"
NOT_FINITE = *NO_NUMBERS, "inf", "-inf", "1e400", "-1"
NO_WORDS = "", " ", "²", "\udcff", "a\nb", "\x1b[2J", "-", "../x", LONG, "%s%n", "nosuch"
NO_OPTIONS = "--nonsense", "-Z", "--out-", "---", "--=x", "-²", "--help=x", "--no-help", "--\nx"
# Values that most commands accept, so that a line has no other fault.
GOOD = {PLACE: "empty_folder", WHOLE: "2", NUMBER: "1", TEXT: "x"}
GOOD_PLACES = {"PROGRAM": "program.py", "program": "program.py", "NOTEBOOK": "notebook.ipynb", "--out": "new"}
GOOD_HERE = {"empty_folder", "my_ddp.py", "program.py", "notebook.ipynb"}
# A line that a command accepts, because a strange path is one that it can use, does not run for minutes.
SHORT = {
    ("labkit", "train"): ("--iterations", "1"),
    ("labkit", "bench", "collectives"): ("-n", "1", "--sizes", "4B", "--seconds", "0"),
    ("labkit", "bench", "mine"): ("-n", "1", "--batch", "1", "--rounds", "1"),
    ("labkit", "run"): ("-n", "2"),
    ("mpiwatch",): ("-n", "2"),
    ("labkit", "lab"): ("--copy-only",),
}

# Commands that need a course of nbgrader, or options that must be given; their own tests mistype them.
NEED_MORE = {("labkit", "course"), ("labkit", "report")}


@dataclass(frozen=True)
class Line:
    """A command line; `subject` is what its message must name, `flickers` a file that comes and goes."""

    words: tuple[str, ...]
    fault: str
    command: str
    subject: str = ""
    must_fail: bool = True
    of_program: bool = False  # the message is Python's own
    flickers: str = ""
    folder: str = "."  # below the scene, where the line is typed


def malformed_lines(seed: int, most: int = PER_COMMAND) -> list[Line]:
    """Return malformed lines, at most `most` of each command; which ones they are depends on the seed."""
    random, lines = Random(seed), []
    for command in (*read_help(("labkit",)), *read_help(("mpiwatch",))):
        if command.words[:2] in NEED_MORE:
            continue
        of_this = [*of_command(command, random), *of_parameters(command, random)]
        lines += random.sample(of_this, min(most, len(of_this)))
    random.shuffle(lines)
    return lines


def complete(command: Command, without: Parameter | None = None) -> tuple[list[str], list[str]]:
    """Return the options and arguments that a command needs, without one of its parameters."""
    chosen, arguments = list(SHORT.get(command.words, ())), []
    for parameter in command.parameters:
        if parameter == without or not parameter.is_required:
            continue
        if without and {*without.names} & {*parameter.unless}:
            continue
        name = parameter.names[-1]
        value = GOOD_PLACES.get(name) or (parameter.choices or (GOOD.get(parameter.kind, "x"),))[0]
        if name == "PROGRAM" and "bench" in command.words:
            value = "my_ddp.py"
        if parameter.is_option:
            chosen += [name, value]
        else:
            arguments.append(value)
    return chosen, arguments


def of_command(command: Command, random: Random) -> Iterator[Line]:
    """Yield the lines whose fault is not a value."""
    name, (chosen, arguments) = " ".join(command.words), complete(command)
    first = command.words

    def line(fault: str, *words: str, subject: str = "") -> Line:
        return Line((*first, *words), fault, name, subject)

    for option in random.sample(NO_OPTIONS, 3):
        if name != "labkit hosts run":  # it passes them on
            yield line("unknown option", option, *chosen, *arguments, subject=option.partition("=")[0])
    if command.subcommands:
        for word in random.sample(NO_WORDS, 3):
            yield line("unknown command", word, subject=word)
        yield line("missing command", "--")
        return
    if not command.passes_on:
        extra = random.choice(("surplus", "x\ny", "\udcff", ""))
        yield line("surplus argument", *chosen, *arguments, extra, subject=extra)
        yield line("option after --", *chosen, "--", *arguments, "--json", subject="--json")
    if any(parameter.kind == PLACE for parameter in command.parameters) and "bench" not in first:
        there = [f"../{word}" if word in GOOD_HERE else word for word in (*chosen, *arguments)]
        read_only = (*first, *there)
        yield Line(read_only, "in a read-only folder", name, must_fail=False, folder="read_only")
    for parameter in command.parameters:
        if parameter.is_required:
            some, others = complete(command, without=parameter)
            yield line("missing parameter", *some, *others, subject=parameter.names[-1].strip("-"))


def of_parameters(command: Command, random: Random) -> Iterator[Line]:
    """Yield the lines in which the value of an option or argument is wrong."""
    name = " ".join(command.words)
    for parameter in command.parameters:
        chosen, arguments = complete(command, without=parameter)
        option = random.choice(parameter.names)

        def line(fault: str, *words: str, end: tuple[str, ...] = (), **more: Any) -> Line:
            return Line((*command.words, *chosen, *words, *arguments, *end), fault, name, **more)  # noqa: B023

        if parameter.kind == FLAG:
            if option.startswith("--"):
                yield line("a flag with a value", f"{option}=1", subject=option)
            continue
        if parameter.is_option:
            last = (*command.words, *chosen, *arguments, option)
            if not arguments or not command.passes_on:
                yield Line(last, "missing value", name, option)
            if parameter.kind in (WHOLE, CHOICE, NUMBER):
                good = parameter.choices[0] if parameter.choices else f"{parameter.least or 1:g}"
                bad = random.choice(NO_WORDS[1:5])
                yield line("repeated", option, good, option, bad, subject=bad)
        before = [option] if parameter.is_option else []
        if parameter.kind == PLACE:
            yield from places(command, parameter, before, line)
            continue
        values = {WHOLE: NO_WHOLE, NUMBER: NOT_FINITE}.get(parameter.kind, NO_WORDS)
        wrong = random.sample(values, min(4, len(values)))
        if parameter.kind in (WHOLE, NUMBER):
            if parameter.least is not None:
                wrong.append(f"{parameter.least - 1:g}")
            if parameter.most is not None:
                wrong.append(f"{parameter.most + 1:.0f}")
        for value in wrong:
            joined = random.random() < 0.5 and before and before[0].startswith("--")
            words = [f"{option}={value}"] if joined else [*before, value]
            yield line(f"not a {parameter.kind}", *words, subject=value)


FORBIDDEN = {"no_entry", "no_entry/x", "unreadable", "read_only", "read_only/x"}
# Of each path: whether it can serve as an input or an output for some command, so that the line may succeed.
PLACES = {
    **dict.fromkeys(("", "file.txt/x", "null/x", "x" * 300, "x/" * 3000 + "x", "loop/x"), False),
    **dict.fromkeys(("fifo", "socket", "loop", "folder_of_fifos", "no_entry", "no_entry/x"), True),
    **dict.fromkeys(("null", "full", "zero", "stdout", "link_to_null", "dangling", "link_to_file"), True),
    **dict.fromkeys(("empty_folder", "full_folder", "read_only", "read_only/x", "unreadable"), True),
    **dict.fromkeys(("binary", "empty", "file.txt", "line\nbreak", "new\nname", "größe", "\udcff"), True),
    **dict.fromkeys(("syntax.py", "nul.py", "coding.py", "vanishing", "link_to_fifo", "hard_link"), True),
    **dict.fromkeys(("-dash", ".", "absent/x"), True),
}  # fmt: skip


def places(command: Command, parameter: Parameter, before: list[str], line: Any) -> Iterator[Line]:
    """Yield a line for each path that is wrong or strange."""
    of_program = parameter.names[-1] in ("PROGRAM", "program") and command.words[-1] in ("run", "mpiwatch")
    for place, may_serve in PLACES.items():
        yield line(
            "a strange path",
            *before,
            place,
            subject=place,
            must_fail=not may_serve,
            of_program=of_program,
            flickers="vanishing" if place == "vanishing" else "",
        )


# Running them

NOTEBOOK = {
    "cells": [
        {"cell_type": "code", "id": "b", "metadata": {}, "source": "%%px\nprint(rank)", "outputs": [],
         "execution_count": None},
    ],
    "metadata": {}, "nbformat": 4, "nbformat_minor": 5,
}  # fmt: skip
DEVICES = {"null": (1, 3), "full": (1, 7), "zero": (1, 5)}


def make_scene(folder: Path) -> None:
    """Make the files, folders and devices that lines name."""
    folder.mkdir()
    for name in ("empty_folder", "full_folder", "read_only", "no_entry", "folder_of_fifos"):
        (folder / name).mkdir()
    (folder / "full_folder/thesis.tex").write_text("written for a year")
    for name in ("a.py", "a.json", "run.json", "checkpoint.npz", "my_ddp.py", "digits.npz", ".lock"):
        os.mkfifo(folder / "folder_of_fifos" / name)
    for name in ("my_ddp.py", "digits.npz"):
        shutil.copy(folder.parents[1] / name, folder)
    (folder / "file.txt").write_text("a line\n")
    (folder / "program.py").write_text("print('ran')\n")
    (folder / "notebook.ipynb").write_text(json.dumps(NOTEBOOK))
    (folder / "binary").write_bytes(Random(0).randbytes(500))
    (folder / "syntax.py").write_text("def f(:\n")
    (folder / "nul.py").write_bytes(b"x = 1\0\n")
    (folder / "coding.py").write_text("# coding: nosuch\n")
    for name in ("empty", "unreadable", "line\nbreak", "größe", "-dash"):
        (folder / name).touch()
    os.link(folder / "file.txt", folder / "hard_link")
    os.mkfifo(folder / "fifo")
    with socket.socket(socket.AF_UNIX) as listener:
        here = Path.cwd()
        os.chdir(folder)  # a socket's path has at most 107 bytes
        listener.bind("socket")
        os.chdir(here)
    for name, (major, minor) in DEVICES.items():
        try:
            os.mknod(folder / name, 0o666 | stat.S_IFCHR, os.makedev(major, minor))
        except OSError:  # not root: then nobody can remove the real one
            (folder / name).symlink_to(f"/dev/{name}")
    links = {"link_to_null": "null", "link_to_file": "file.txt", "link_to_fifo": "fifo", "loop": "loop"}
    for name, target in {**links, "dangling": "missing", "stdout": "/proc/self/fd/1"}.items():
        (folder / name).symlink_to(target)
    (folder / "unreadable").chmod(0)
    (folder / "read_only").chmod(0o555)
    (folder / "no_entry").chmod(0)


def inspect(folder: Path) -> dict[str, str]:
    """Return what stands at each path below a folder: its kind, number and content."""
    there = {}
    for place in sorted(folder.rglob("*")):
        about = place.lstat()
        content = f"{stat.filemode(about.st_mode)} {about.st_rdev} "
        if stat.S_ISREG(about.st_mode):
            content += hashlib.sha256(place.read_bytes()).hexdigest()[:12]
        elif place.is_symlink():
            content += f"to {os.readlink(place)}"
        else:
            content += str(about.st_ino)
        there[os.fsdecode(os.fsencode(place.relative_to(folder)))] = content
    return there


def processes(mark: str) -> list[psutil.Process]:
    """Return the processes that have a line's mark in their environment."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get(MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


@dataclass
class Ending:
    """How a line ended."""

    code: int | None  # None: it did not end
    output: str
    errors: str
    changed: dict[str, list[str]]  # what stood at a path before and after
    left: list[str]  # processes, files in /dev/shm and in the folder for temporary files
    seconds: float = 0.0


def obeying(words: Sequence[str]) -> list[str]:
    """Return the first words of a line by which root, too, may not read what permissions forbid."""
    if os.geteuid() or not shutil.which("setpriv") or not FORBIDDEN & {*words} or "contest" in words:
        return []  # the sandbox of a contest needs all that root may do
    return ["setpriv", "--bounding-set=-dac_override,-dac_read_search"]


def ending(line: Line, place: Path, watches_memory: bool) -> Ending:
    """Run a line in a new scene."""
    scene, temporary = place / "scene", place / "tmp"
    for folder in (temporary, place / "home"):
        folder.mkdir(parents=True)
    make_scene(scene)
    before = inspect(scene)
    shared = set(os.listdir(SHARED_MEMORY)) if watches_memory else set()
    start = time.monotonic()
    with coming_and_going(scene / line.flickers if line.flickers else None):
        code, output, errors = run_line(line, place)
    seconds = time.monotonic() - start

    def left_behind() -> list[str]:
        left = [f"process {process.pid}" for process in processes(str(place))]
        if watches_memory:
            left += [f"/dev/shm/{name}" for name in set(os.listdir(SHARED_MEMORY)) - shared]
        # Open MPI has one folder for all jobs of a user, which stays.
        names = [name for name in os.listdir(temporary) if not name.startswith("ompi.")]
        return left + [f"temporary {name}" for name in names]

    deadline = time.monotonic() + END_S
    while (left := left_behind()) and time.monotonic() < deadline:
        time.sleep(0.1)
    kill_all(str(place))
    after = inspect(scene)
    changed = {
        name: [before.get(name, "nothing"), after.get(name, "nothing")]
        for name in sorted(before.keys() | after.keys())
        if before.get(name) != after.get(name)
    }
    for folder in (scene / "read_only", scene / "no_entry"):
        if folder.is_dir():
            folder.chmod(0o755)
    shutil.rmtree(place, ignore_errors=True)
    output, errors = (text.replace(str(scene), "SCENE") for text in (output, errors))
    return Ending(code, output, errors, changed, left, seconds)


def run_line(line: Line, place: Path) -> tuple[int | None, str, str]:
    """Return the exit status of a line, None if it had to be ended; and its output and its error output."""
    home = str(place / "home")
    environment = {
        **os.environ,
        **dict.fromkeys(("HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME"), home),
        MARK: str(place),
        "TMPDIR": str(place / "tmp"),
        "LABKIT_HOSTS": f"{home}/hosts",
        "LABKIT_PROGRESS": f"{home}/progress.json",
        "IPYTHONDIR": os.environ.get("IPYTHONDIR", home),
        "MPLCONFIGDIR": str(place.parent),  # one for all lines, with the cache of fonts
        "COLUMNS": "200",
    }
    words = [*obeying((*line.words, line.folder)), str(BIN / line.words[0]), *line.words[1:]]
    job = subprocess.Popen(
        [word.encode(errors="surrogateescape") for word in words],
        cwd=place / "scene" / line.folder, env=environment, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
        encoding="utf-8", errors="backslashreplace",
    )  # fmt: skip
    try:
        output, errors = job.communicate(timeout=LINE_S)
        return job.returncode, output, errors
    except subprocess.TimeoutExpired:
        with suppress(ProcessLookupError):
            os.killpg(job.pid, signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            job.communicate(timeout=END_S)
        kill_all(str(place))
        output, errors = job.communicate()
        return None, output, errors


def kill_all(mark: str) -> None:
    """Kill the processes of a line."""
    for process in processes(mark):
        with suppress(psutil.Error):
            process.kill()


@contextmanager
def coming_and_going(file: Path | None) -> Iterator[None]:
    """Inside the block, make a file and remove it, again and again."""
    if file is None:
        yield
        return
    stop = threading.Event()
    thread = threading.Thread(target=come_and_go, args=(file, stop))
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        file.unlink(missing_ok=True)


def come_and_go(file: Path, stop: threading.Event) -> None:
    """Make a file and remove it, again and again."""
    while not stop.is_set():
        file.write_text("x = 1\n")
        stop.wait(0.003)
        file.unlink(missing_ok=True)
        stop.wait(0.003)


def message(errors: str) -> list[str]:
    """Return the lines of a message, without the usage above it."""
    text = re.sub(r"^usage:.*\n(?: +.*\n)*|^Usage:.*\n(?:Try .*\n)?", "", errors, flags=re.MULTILINE)
    return [line for line in text.splitlines() if line.strip()]


def violations(line: Line, end: Ending) -> list[str]:
    """Return what is wrong with how a line ended; nothing if it kept the contract."""
    found, said = [], message(end.errors)
    if end.code is None:
        found.append("waited for ever")
    elif end.code not in (1, 2) and (end.code or line.must_fail):
        found.append(f"exit status {end.code}")
    if "Traceback" in end.errors and not line.of_program:
        found.append("a traceback")
    if line.of_program and ("mpiwatch/" in end.errors or "runpy" in end.errors):
        found.append("a traceback of mpiwatch")
    if end.code:
        most = 5 if line.of_program else 2  # Python's own message has up to five
        if not said or len(said) > most:
            found.append(f"{len(said)} lines of message")
        elif line.subject and not line.of_program and not is_named(line.subject, " ".join(said)):
            found.append("does not name the value")
    for name, (before, after) in end.changed.items():
        if not may_change(name, before, after, line, end.code):
            found.append(f"{name!r}: {before} → {after}")
    return found + [f"left behind: {what}" for what in end.left]


# Where output to one of these ends up.
SAME_FILE = {"link_to_file": "file.txt", "vanishing": "vanishing"}


def may_change(name: str, before: str, after: str, line: Line, code: int | None) -> bool:
    """Return whether a line may have changed what stands at a path: it has succeeded, and writes there.

    Also then, a plain file is the only thing that a plain file may replace.
    """
    if code != 0:
        return False
    is_output = name in line.words or name in {SAME_FILE.get(word) for word in line.words}
    return before == "nothing" or (is_output and before[0] == after[0] == "-")


def is_named(subject: str, text: str) -> bool:
    """Return whether a message names a value: as it is, quoted, or its beginning."""
    if not subject.strip():
        return any(word in text for word in ("''", "' '", '""', "empty"))
    if subject.startswith("-") and re.search(
        "expected one argument|No such option|requires an argument", text
    ):
        return True  # it was taken for an option
    shown = subject.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    forms = {shown, repr(subject)[1:-1], repr(shown)[1:-1], shown.replace("\n", " ")}
    if "/" in subject:  # the part of a path that is wrong
        forms.add(subject.partition("/")[0])
    return any(form[:20] in text for form in forms)


def main() -> None:
    """Run the lines on standard input, one object of JSON each."""
    place, watches_memory = Path(sys.argv[1]), sys.argv[2] == "memory"
    place.mkdir(parents=True, exist_ok=True)
    nothing_done = {**os.environ, "LABKIT_PROGRESS": str(place / "progress.json")}
    collect = [BIN / "labkit", "collect", place]
    subprocess.run(collect, env=nothing_done, stdout=subprocess.DEVNULL, check=True)
    for number, text in enumerate(sys.stdin):
        fields = json.loads(text)
        line = Line(**{**fields, "words": tuple(fields["words"])})
        print(json.dumps(asdict(ending(line, place / str(number), watches_memory))), flush=True)


def private_shared_memory() -> list[str]:
    """Return the first words of a command line that give a program its own /dev/shm; none without rights."""
    words = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs none /dev/shm && exec "$@"', "sh"]
    if not shutil.which("unshare"):
        return []
    return words if not subprocess.run([*words, "true"], capture_output=True, check=False).returncode else []


if __name__ == "__main__":
    main()
