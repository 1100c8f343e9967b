"""Run checks on the ranks of one job: mpiexec -n p python run_checks.py FOLDER DEADLINE_S.

A check is a function check_…(comm). FOLDER/todo lists checks, one PATH:NAME a line. Each rank appends JSON
lines to FOLDER/RANK.jsonl: a check, and that it began, how it failed, or that it passed. A rank that fails
goes on with the next check as soon as all other ranks have left this one. If they cannot leave it, because
they wait for the rank that failed, each rank writes its stack to FOLDER/RANK.stack, DEADLINE_S after the
check began, and ends a little later.
"""

from __future__ import annotations

import ast
import faulthandler
import importlib.util
import json
import signal
import sys
import traceback
from collections.abc import Callable
from functools import cache
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType

from _pytest.assertion.rewrite import rewrite_asserts
from mpi4py import MPI

from labkit.comm import sleeping_barrier

GRACE_S = 2.0  # for the ranks to write where they are


class RewritingLoader(SourceFileLoader):
    """Loads a module whose failed asserts show their values, as pytest does with the tests it imports."""

    def get_code(self, fullname: str) -> CodeType:
        source = Path(self.path).read_bytes()
        tree = ast.parse(source, self.path)
        rewrite_asserts(tree, source, self.path)
        return compile(tree, self.path, "exec", dont_inherit=True)


@cache
def functions(path: str) -> dict[str, Callable[[MPI.Intracomm], None]]:
    """Import the file and return its functions."""
    name = Path(path).stem
    spec = importlib.util.spec_from_file_location(name, path, loader=RewritingLoader(name, path))
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return vars(module)


def main() -> None:
    """Run the checks in the order of the list."""
    sys.path.insert(0, str(Path(__file__).parents[1]))  # checks import from `tests`
    world, folder, deadline_s = MPI.COMM_WORLD, Path(sys.argv[1]), float(sys.argv[2])
    own = folder / f"{world.rank}.jsonl"
    with own.open("w") as results, own.with_suffix(".stack").open("w") as stack:

        def write(check: str, state: str) -> None:
            print(json.dumps((check, state)), file=results, flush=True)

        for line in (folder / "todo").read_text().splitlines():
            path, name = line.rsplit(":", 1)
            write(line, "began")
            faulthandler.dump_traceback_later(deadline_s, file=stack)
            signal.setitimer(signal.ITIMER_REAL, deadline_s + GRACE_S)  # ends this process, and so the job
            try:
                functions(path)[name](world.Dup())  # so that no message of one check reaches another
            except BaseException:
                write(line, f"failed:\n{traceback.format_exc()}")
            else:
                write(line, "passed")
            sleeping_barrier(world)
            faulthandler.cancel_dump_traceback_later()


main()
