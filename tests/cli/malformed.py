"""Malformed inputs of every command, generated from a seed: options, arguments, variables, files.

As a program, it runs `labkit` once for each line of JSON that it reads, [folder, arguments, variables], in a
fork of its own, and prints the exit status of each. So Python starts once for all of them.
"""

from __future__ import annotations

import io
import json
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import numpy as np

LIMIT_S = 300  # for one call, on a busy machine
LONG = "9" * 400
COUNTS = "", " ", "x", "²", "½", "0", "-1", "nan", "inf", "1.5", "1e3", "0x10", "4 4", "4,", LONG, "--n", "٣x"
NUMBERS = "", " ", "x", "²", "-1", "nan", "NaN", "inf", "-inf", "1e400", "1,5", "1..5", LONG, "1s"
WORDS = "", " ", "x", "²", "none", "mnist ", "ring;", "../x", "-", LONG, "\udcff", "a\nb", "{}"
BANDWIDTHS = "", *f"x 1 gbit -1gbit ²gbit 0gbit {LONG}gbit nangbit 1e3mbit 1gbit1".split(), "1gb it"
SIZES = "", *f"x 0 -4B 3B ²KiB {LONG}MiB 1KiB,, 1KiB;2KiB nanB 1e3B 4XB 9999GiB".split()
SLOWED = (
    "",
    *f"x 0 0: 0:x=1 ²:jitter=5ms 0:jitter=x {LONG}:jitter=5ms 0:slow-processor=nan".split(),
    *f"0:slow-processor={LONG} 0:pause=2s@x 0:pause=2s 0:jitter={LONG}s -1:jitter=5ms 0:slow-link=²".split(),
)
LINKS = *BANDWIDTHS[:-2], "1gbit+", "1gbit+x", f"1gbit+{LONG}s", "+", "1gbit+5ms+5ms"
NEW_PLACES = "", "x" * 300, "x/" * 3000 + "x", "file/x", "/dev/null/x"
NO_FOLDERS = *NEW_PLACES, "absent", "empty", "file"
UNKNOWN = "--nonsense", "--ou", "-z", "--out=", "--json=", "---", "--no-lr"
RUN = "--batch", "500", "--optimizer", "adamw", "--checkpoint-every", "1"
RESUME = "train", "--resume", "run", "--epochs", "2"
TRAIN = "train --out out --iterations 1"

# For each command, an option or argument and values that the command must refuse.
OPTIONS: list[tuple[str, Sequence[str]]] = [
    ("lab -n", COUNTS),
    ("lab --copy-only -n", COUNTS),
    ("hosts up --n", COUNTS),
    ("hosts run -n", COUNTS),
    ("run -n", COUNTS),
    *[(f"bench collectives --{name}", values) for name, values in (("ranks", COUNTS), ("seconds", NUMBERS))],
    *[(f"bench mine file --{name}", COUNTS) for name in ("ranks", "batch", "rounds")],
    *[(f"{TRAIN} --{name}", COUNTS) for name in ("samples", "epochs", "batch", "accumulate")],
    *[(f"{TRAIN} --{name}-every", COUNTS) for name in ("log", "checkpoint")],
    *[(f"{TRAIN} --{name}", NUMBERS) for name in ("lr", "momentum", "weight-decay", "bucket-mb")],
    ("run --deadline", NUMBERS),
    *[(f"{TRAIN} --{name}", WORDS) for name in ("model", "data", "shard", "optimizer", "lr-schedule")],
    *[(f"{TRAIN} --{name}", WORDS) for name in ("algorithm", "aggregate", "buffers", "preset")],
    *[(words, WORDS) for words in ("bench mine file --model", "data fetch")],
    *[(words, WORDS) for words in ("bench", "hosts", "data", "train --out out surplus")],
    ("bench collectives --sizes", SIZES),
    ("bench collectives --bandwidth", BANDWIDTHS),
    ("hosts up --slow", [*SLOWED, *(f"{word}=1gbit" for word in COUNTS if word != "0"), *BANDWIDTHS]),
    ("hosts up --bandwidth", BANDWIDTHS),
    (f"{TRAIN} --seed", [word for word in COUNTS if word not in ("0", LONG)]),
    (f"{TRAIN} --bottleneck", SLOWED),
    (f"{TRAIN} --link", LINKS),
    *[(words, NEW_PLACES) for words in ("release", "release --nbgrader", "solutions")],
    ("train --iterations 1 --out", NEW_PLACES),
    *[(words, NO_FOLDERS) for words in ("train --resume", "checklist", "export", "lab --folder")],
    ("lab --copy-only --folder", NO_FOLDERS),
    ("export notebook.ipynb --out", [*NEW_PLACES, "empty", "file", "absent/x"]),
    ("run --json", [*NEW_PLACES, "absent/x", "empty"]),
    ("run --hosts", NO_FOLDERS),
    *[(words, UNKNOWN) for words in ("", "run", "train", "lab", "export", "bench mine", "hosts up")],
]
VARIABLES = [
    *[(name, COUNTS, "run file") for name in ("SLURM_NTASKS", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE")],
    ("SLURM_STEP_NUM_TASKS", COUNTS, "run file"),
    ("LABKIT_RANKS", [word for word in COUNTS if word], "lab --copy-only"),
    ("LABKIT_HOSTS", ["file", "run", "/dev/null/x", "x" * 300, "/"], "hosts status"),
]
NOTEBOOK = {
    "cells": [
        {"cell_type": "markdown", "id": "a", "metadata": {}, "source": ["# A\n"]},
        {"cell_type": "code", "id": "b", "metadata": {"tags": ["check"]}, "source": "%%px\nprint(rank)",
         "outputs": [], "execution_count": None},
    ],
    "metadata": {}, "nbformat": 4, "nbformat_minor": 5,
}  # fmt: skip
HOST = {"name": "lab0", "address": "10.77.0.1", "bandwidth": 10**9, "pid": 2}
STATE = {"token": "x", "holder": 2, "holder_start": "1", "hosts": [HOST]}
PROGRESS = {"average": {"state": "done", "tries": 1}}
VALUES = (
    None, True, -1, 1 << 80, 1e308, float("nan"), "", "²", "\ud800", [], {}, [[]], {"": None}, LONG, ["x", {}]
)  # fmt: skip


@dataclass(frozen=True)
class Case:
    """One call of `labkit`; `codes` are the exit statuses that are documented for it."""

    arguments: tuple[str, ...]
    codes: tuple[int, ...] = (2,)
    variables: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, bytes] = field(default_factory=dict)


def damaged(random: Random, content: Any) -> bytes:
    """Return a file that should hold this JSON or text, with one fault."""
    text = content if isinstance(content, str) else json.dumps(content)
    match random.randrange(6):
        case 0:
            return random.choice(
                [b"", b"\0", b"\xff\xfe", b"[" * 100_000, b'{"a":' * 100_000, b"null", b"[]", b"1"]
            )
        case 1:
            return text[: random.randrange(len(text))].encode()
        case 2:
            place = random.randrange(len(text))
            return text.encode()[:place] + random.randbytes(3) + text.encode()[place + 1 :]
    if isinstance(content, str):
        return text.replace(
            random.choice(text.split(",")), random.choice(["", "²", LONG, "nan", "\n"])
        ).encode()
    changed = json.loads(text)
    node = changed
    while True:  # down to a random node, then another value or none in its place
        keys = list(node if isinstance(node, dict) else range(len(node)))
        key = random.choice(keys)
        if isinstance(node[key], (dict, list)) and node[key] and random.random() < 0.8:
            node = node[key]
            continue
        if random.random() < 0.3:
            del node[key]
        else:
            node[key] = random.choice(VALUES)
        return json.dumps(changed).encode()


def senseless(random: Random, checkpoint: bytes) -> bytes:
    """Return a checkpoint with valid checksums, in which the description or an array makes no sense."""
    with np.load(io.BytesIO(checkpoint)) as stored:
        arrays = dict(stored)
    if random.random() < 0.7:
        about = json.loads(arrays["about"].tobytes())
        text = damaged(random, about)
        while not text.startswith(b"{"):  # another fault of `damaged`
            text = damaged(random, about)
        arrays["about"] = np.frombuffer(text, np.uint8)
    else:
        name = random.choice(sorted(arrays.keys() - {"about"}))
        array = arrays.pop(name)
        changed = [array.astype(np.float64), array[..., None], array.astype(str), np.zeros(3, np.int64)]
        if number := random.randrange(5):
            arrays[name] = changed[number - 1]
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def one(random: Random, run: Mapping[str, str], checkpoint: bytes) -> Case:
    """Return a malformed input. `run` are the files of a run's folder as text, by name."""

    def option() -> Case:
        words, values = random.choice(OPTIONS)
        needs_program = words.startswith(("run ", "hosts run "))
        return Case((*words.split(), random.choice(values), *["file"] * needs_program))

    def variable() -> Case:
        name, values, words = random.choice(VARIABLES)
        return Case(tuple(words.split()), variables={name: random.choice(values)})

    def a_file() -> Case:
        name, content, words, variables = random.choice(
            [
                ("n.ipynb", NOTEBOOK, ("export", "n.ipynb"), {}),
                ("hosts/state.json", STATE, ("hosts", "status"), {"LABKIT_HOSTS": "hosts"}),
                ("hosts/state.json", STATE, ("hosts", "run", "true"), {"LABKIT_HOSTS": "hosts"}),
                ("p.json", PROGRESS, ("progress",), {"LABKIT_PROGRESS": "p.json"}),
                ("run/run.json", json.loads(run["run.json"]), ("checklist", "run"), {}),
                ("run/iterations.csv", run["iterations.csv"], ("checklist", "run"), {}),
            ]
        )
        return Case(words, (0, 1, 2), variables, {name: damaged(random, content)})

    def a_checkpoint() -> Case:
        return Case(RESUME, (0, 2), {}, {"run/checkpoint.npz": senseless(random, checkpoint)})

    return random.choice([*[option] * 6, variable, *[a_file] * 3, a_checkpoint])()


def main() -> None:
    """Run the calls on standard input; the output of each is in the file `output` beside its folder."""
    import labkit.cli.bench  # noqa: PLC0415
    import labkit.cli.train  # noqa: PLC0415

    for line in sys.stdin:
        folder, arguments, variables = json.loads(line)
        if not (child := os.fork()):
            signal.alarm(LIMIT_S)
            os.chdir(folder)
            os.environ.update(variables)
            output = os.open(f"{folder}.output", os.O_WRONLY | os.O_CREAT)
            for number in (1, 2):
                os.dup2(output, number)
            sys.argv = ["labkit", *arguments]
            labkit.cli.main(prog_name="labkit")
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


if __name__ == "__main__":
    main()
