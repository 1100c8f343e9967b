"""`labkit export`: write a notebook's `%%px` cells as a program for mpiexec."""

# ruff: noqa: PLC0415 (import inside a function: nbformat loads only where the command runs)

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import click

from labkit.cli.inputs import InputError, InputFile, OutputFile, one_line
from labkit.files import atomic_write, destination, read_input

FIRST_LINE = '"""Made by `labkit export` from '
HEADER = """\
{first_line}{name}.

    mpiexec -n 4 python {program}

It works with any number of ranks. Left out: {left_out}.
Unlike in the notebook, an expression at the end of a cell prints nothing, and nothing ends a hang.
\"""

# What connect() does for every rank of a notebook.
import os
import sys

os.environ.setdefault("OMP_NUM_THREADS", "1")  # one BLAS thread per rank; NumPy reads it when it loads

import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size


def end_all_ranks(*error):
    \"""If a rank fails, end the others, which may be waiting for it.\"""
    sys.__excepthook__(*error)
    comm.Abort(1)


sys.excepthook = end_all_ranks
"""
CHECKS = (
    "from labkit.exercises import check, hint  # of functions that were written in the notebook's kernel\n"
)


def as_program(notebook: Any, name: str, program: str) -> str:
    """Return the cells of a notebook that run on all ranks as the text of a Python program.

    Headings and magics become comments. Left out are the cells of the notebook's kernel, except exercises and
    their checks: notebooks send those functions to the engines. Left out, too, are `%%px` cells that need the
    kernel: those with `--targets`, and those with the tag `notebook-only`.

    `notebook` is nbformat's, version 4; `name` is the notebook's name and `program` the program's, for the
    text at the top. Raises InputError for a notebook without such cells, and for cells that are not Python.
    """
    parts: list[str] = []
    of_kernel = needing_it = on_ranks = written = 0
    for number, cell in enumerate(notebook.cells, 1):
        tags = cell.metadata.get("tags", [])
        head, _, body = cell.source.lstrip().partition("\n")
        if cell.cell_type == "markdown":
            parts += ["\n".join(f"# {line}" for line in headings(cell.source))]
        elif cell.cell_type == "code" and re.match(r"%%(px|replay)\b", head):
            if re.search(r"\s(--targets|-t)", head) or "notebook-only" in tags:
                needing_it += 1
            else:
                on_ranks += 1
                parts += [as_python(body, number).strip("\n")]
        elif cell.cell_type == "code" and {"exercise", "check"} & set(tags):
            written += 1
            parts += [as_python(cell.source, number).strip("\n")]
        elif cell.cell_type == "code" and cell.source.strip():
            of_kernel += 1
    if not on_ranks:
        raise InputError(f"{name} has no %%px cells that run on all ranks, so there is nothing to export")
    left_out = (
        f"code cells that ran in the kernel ({of_kernel}), %%px cells that need the kernel ({needing_it})"
    )
    header = HEADER.format(first_line=FIRST_LINE, name=name, program=program, left_out=left_out)
    return "\n\n".join(filter(None, [header, CHECKS if written else "", *parts])) + "\n"


def headings(markdown: str) -> list[str]:
    """Return the headings (`# …`) of a markdown text, without code blocks."""
    text = re.sub(r"^```.*?^```", "", markdown, flags=re.MULTILINE | re.DOTALL)
    return re.findall(r"^#+ .*", text, flags=re.MULTILINE)


def as_python(body: str, number: int) -> str:
    """Return the text of a cell with its magics as comments."""
    if not is_python(body):
        body = re.sub(r"^(\s*)([%!].*)$", r"\1# left out: \2", body, flags=re.MULTILINE)
    if not is_python(body):
        raise InputError(
            f"cell {number}, counted with the text cells, is not Python, also without its magics"
        )
    return body


def is_python(text: str) -> bool:
    """Return whether a text is a Python program."""
    try:
        ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # the last two: nested too deeply
        return False
    return True


@click.command
@click.argument("notebook", type=InputFile())
@click.option("--out", type=OutputFile(), help="The program. [default: NOTEBOOK.py, here]")
def command(notebook: Path, out: Path | None) -> None:
    """Write a notebook's %%px cells as a program that runs under mpiexec.

    The program has the cells that run on all ranks, in their order, below the lines that define comm, rank,
    size and np. The text at its top says what was left out. Headings become comments.
    """
    import nbformat

    out = out or Path(f"{notebook.stem}.py")
    with one_line(OSError):
        old = destination(out)
        if old is not None and old.exists() and not read_input(old).startswith(FIRST_LINE.encode()):
            raise InputError(f"{out} exists and was not made by this command; choose another --out")
    try:
        with one_line(OSError):
            content = read_input(notebook)
        cells = nbformat.reads(content.decode(), as_version=4)
        nbformat.validate(cells)
    except Exception as error:  # a file of any content may be given, and nbformat raises many types
        if isinstance(error, InputError):
            raise
        reason = str(error).partition("\n")[0]
        raise InputError(f"{notebook} is not a notebook: {reason}") from None
    with one_line(UnicodeEncodeError, OSError):  # JSON can hold halves of characters
        text = as_program(cells, notebook.name, out.name).encode()
        with atomic_write(out) as file:
            file.write(text)
    click.echo(f"{out}: run it with mpiexec -n 4 python {out}")
