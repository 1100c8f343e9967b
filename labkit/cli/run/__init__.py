"""`labkit run`: run an unchanged mpi4py program on ranks, and report a hang."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from json import loads
from pathlib import Path

import click

from labkit.cli.inputs import MOST_RANKS, Finite, Place, Whole
from labkit.cli.ranks import mpiexec, under_mpiexec
from labkit.supervisor import supervised
from mpiwatch import FLIGHT_RECORDER, env
from mpiwatch.launch import DEADLINE_S, Options, command_line, started

ENDINGS = signal.SIGINT, signal.SIGTERM, signal.SIGHUP


@click.command(context_settings={"ignore_unknown_options": False, "allow_interspersed_args": False})
@click.option(
    "-n", "ranks", type=Whole(max=MOST_RANKS), default=4, show_default=True, help="MPI ranks to start."
)
@click.option(
    "--deadline",
    "deadline_s",
    type=Finite(min=0, min_open=True),
    default=DEADLINE_S,
    show_default=True,
    metavar="S",
    help="Seconds after which ranks that are all waiting inside MPI count as stuck.",
)
@click.option(
    "--strict",
    is_flag=True,
    help="Also find errors that show only by chance, such as a reliance on buffered sends.",
)
@click.option(
    "--json",
    type=Place(writable_file=True),
    metavar="FILE",
    help="Write the report (if any) and the ranks' exit codes to a file.",
)
@click.option("-m", "is_module", is_flag=True, help="PROGRAM is a module.")
@click.argument("program")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def command(  # noqa: PLR0917
    ranks: int,
    deadline_s: float,
    strict: bool,
    json: Path | None,
    is_module: bool,
    program: str,
    arguments: tuple[str, ...],
) -> None:
    """Run an mpi4py program, unchanged, and report a hang: labkit run -n 4 program.py.

    The exit code is the program's own, 86 after a hang, 87 if --strict found errors, and 128 + the signal if
    a signal killed a rank. With another launcher: srun -n 4 python -m mpiwatch program.py.
    """
    launcher, count = started()
    if under_mpiexec() or (launcher.startswith("srun") and count > 1):
        raise click.UsageError(
            "a launcher has already started this process as a rank. Replace `labkit run` by "
            "`python -m mpiwatch`."
        )
    with _record(json) as record:
        options = Options((program, *arguments), is_module, deadline_s, strict, str(record))
        code = _run([*mpiexec(ranks), *command_line(options)])
        # After one rank has failed, launchers return different codes.
        with contextlib.suppress(OSError, ValueError, KeyError):
            code = int(loads(record.read_bytes())["exit_code"])
    sys.exit(code)


@contextlib.contextmanager
def _record(path: Path | None) -> Iterator[Path]:
    """Yield the path of the file for the report and the exit codes: `path`, or a temporary file."""
    if path is not None:
        path.unlink(missing_ok=True)
        yield path.absolute()
        return
    # If this process is killed, the supervisor finds the file by this name and removes it.
    file, name = tempfile.mkstemp(prefix=f"{FLIGHT_RECORDER}{os.getpid()}-")
    os.close(file)
    yield Path(name)
    Path(name).unlink(missing_ok=True)


def _run(words: list[str]) -> int:
    """Run a command in this terminal; return its exit status. The command ends with this process."""
    environment = {**os.environ, **env.one_machine(spawns=True)}
    job = subprocess.Popen([*supervised(), *words], env=environment)
    received: list[int] = []

    def end(signum: int, frame: object) -> None:
        received.append(signum)
        job.send_signal(signal.SIGTERM)  # the supervisor ends the ranks; a Ctrl-C reaches it, too

    for signum in ENDINGS:
        signal.signal(signum, end)
    code = job.wait()
    return 128 + received[0] if received else code
