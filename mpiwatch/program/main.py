"""One rank of `python -m mpiwatch program.py`: fork, and run the program in the child."""

# ruff: noqa: PLC0415 (imports inside functions: each process imports only what it needs, and the program must
# be able to set environment variables before it loads NumPy and MPI)

from __future__ import annotations

import os
import signal
import socket
import sys
import tempfile
from typing import TYPE_CHECKING

from mpiwatch.processes import die_with_parent, die_with_proxy
from mpiwatch.program.options import Options, parse

if TYPE_CHECKING:
    from mpiwatch.program.link import Link


def main() -> None:
    """Run the program of this command line; exit with its code, or with another one if it hangs or dies."""
    options = parse(sys.argv[1:])
    link = begin_watching(options)
    from mpiwatch.program import script

    try:
        script.run(options.words, options.is_module)
    except SystemExit:
        raise
    except BaseException as error:
        script.show(error)
        link.note_error(error)
        sys.exit(128 + signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1)


def begin_watching(options: Options) -> Link:
    """Fork: return in the child, whose MPI will be watched; the parent exits when the child has ended.

    Call it before MPI is loaded and before there are threads.
    """
    from mpiwatch.program.link import Link

    parent = os.getpid()
    to_child, to_parent = socket.socketpair()
    stack = tempfile.TemporaryFile()  # noqa: SIM115  (open for as long as the program runs)
    child = os.fork()
    if child:
        die_with_proxy()
        to_parent.close()
        from mpiwatch.program.parent import Parent

        Parent(child, to_child, stack, options).run()  # does not return
    to_child.close()
    die_with_parent(signal.SIGKILL, parent)
    return Link(to_parent, stack, options)
