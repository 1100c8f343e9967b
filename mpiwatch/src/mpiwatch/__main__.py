"""Run an mpi4py program with its ranks watched: mpiwatch -n 4 program.py.

With another launcher, each rank runs this module: mpiexec -n 4 python -m mpiwatch program.py.
"""

from __future__ import annotations

import sys

# `python -m mpiwatch`: a file random.py in this folder must not take the place of Python's own in mpiwatch.
# `run_script` puts the program's folder there instead.
if __name__ == "__main__" and not sys.flags.safe_path:
    del sys.path[0]

import shutil
import signal

from mpiwatch.launch import mpiexec, parse, run
from mpiwatch.program import begin_watching, show_error
from mpiwatch.script import is_from_the_program, load, run_script, wait_for_the_first


def main() -> None:
    """Run the command line of `mpiwatch` and `python -m mpiwatch`.

    Exit with the program's code, or with another one if it hangs or dies.
    """
    options = parse(sys.argv[1:])
    code = load(options.words[0], is_module=options.is_module)
    if options.ranks:
        if not shutil.which(mpiexec()):
            print("mpiwatch: there is no mpiexec to start ranks with: install MPI", file=sys.stderr)
            sys.exit(2)
        sys.exit(run([mpiexec(), "-n", str(options.ranks)], options))
    link = begin_watching(options)
    try:
        run_script(options.words, code, is_module=options.is_module)
    except SystemExit:
        raise
    except BaseException as error:
        if not is_from_the_program(error):
            wait_for_the_first()
        show_error(error)
        link.note_error(error)
        sys.exit(128 + signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1)


if __name__ == "__main__":
    main()
