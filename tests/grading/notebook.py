"""What the checks of a notebook say in a kernel: the other half of a comparison with the grader."""

from __future__ import annotations

import ast
import os
import re
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from jupyter_client.manager import KernelManager

from labkit.cli.course import copies

START_S, CHECK_S = 120.0, 300.0  # on a busy machine
# A notebook that uses ranks imports these on them. The kernel is no rank: it must not start MPI.
START = """
import mpi4py
mpi4py.rc.initialize = False
import numpy as np
from mpi4py import MPI
from labkit.exercises import check
"""
NOT_CORRECT = re.compile(r"\w+: not correct yet: (.*?)(?: Your function takes \(.*)? The notebook uses")
DEFINITIONS = ast.FunctionDef | ast.Import | ast.ImportFrom


class Said(NamedTuple):
    """What `check` says in a notebook, and for how long it ran; no finding if the answer is correct."""

    finding: str
    seconds: float

    @property
    def passed(self) -> bool:
        """Return whether the check calls the answer correct."""
        return not self.finding


class Kernel:
    """A notebook's kernel. It gets the cells that define functions, and the checks."""

    def __init__(self, client: Any) -> None:
        self.client = client

    def run(self, source: str, *, may_raise: bool = False) -> str:
        """Run a cell and return what it prints. Raise AssertionError for an error that it must not raise."""
        printed = []

        def note(message: Any) -> None:
            content = message["content"]
            if message["msg_type"] == "stream":
                printed.append(content["text"])
            is_error = message["msg_type"] == "error"
            assert may_raise or not is_error, "\n".join(content["traceback"])

        self.client.execute_interactive(source, timeout=CHECK_S, output_hook=note, store_history=False)
        return "".join(printed)

    def checks(self, notebook: Any) -> dict[str, Said]:
        """Run the functions and checks of a student's notebook; return what each check says, by its name."""
        self.run("%reset -f")
        self.run(START)
        exercises = {pair.name for pair in copies.pairs(notebook)}
        verdicts = {}
        for cell in notebook.cells:
            if cell.cell_type != "code":
                continue
            name = copies.checked(cell)
            if name:
                began = time.monotonic()
                printed = self.run(copies.without_magic(cell.source)[1])
                verdicts[name] = Said(finding_in(printed), time.monotonic() - began)
                continue
            text = copies.without_magic(cell.source)[1]
            functions = copies.functions(text)
            if exercises & functions.keys():
                self.run(text)
            elif functions:
                self.run(definitions(text), may_raise=True)  # a function's defaults can need other cells
        return verdicts


def definitions(text: str) -> str:
    """Return the functions and imports of a cell of the notebook; lines keep their numbers."""
    lines = text.splitlines()
    for statement in ast.parse(text).body:
        if not isinstance(statement, DEFINITIONS):
            for number in range(statement.lineno - 1, statement.end_lineno or statement.lineno):
                lines[number] = ""
    return "\n".join(lines)


def finding_in(printed: str) -> str:
    """Return the finding in what a check prints; empty if the answer is correct."""
    printed = " ".join(printed.split())
    if re.match(r"\w+: correct \(", printed):
        return ""
    match = NOT_CORRECT.match(printed)
    return match[1] if match else printed


@contextmanager
def kernel() -> Iterator[Kernel]:
    """Start a kernel, whose checks print text and record nothing for the user; end it with the block."""
    with tempfile.TemporaryDirectory() as folder:
        settings = {"IPP_NONINTERACTIVE": "1", "LABKIT_PROGRESS": str(Path(folder, "progress.json"))}
        manager = KernelManager(kernel_name="python3", transport="ipc", ip=f"{folder}/kernel")
        manager.start_kernel(env={**os.environ, **settings})
        client = manager.blocking_client()
        try:
            client.start_channels()
            client.wait_for_ready(timeout=START_S)
            yield Kernel(client)
        finally:
            client.stop_channels()
            manager.shutdown_kernel(now=True)
