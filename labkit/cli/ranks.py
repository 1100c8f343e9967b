"""How a command starts ranks or other children, and how it ends all ranks if one of them fails."""

# ruff: noqa: PLC0415 (imports inside functions: --help must not wait for MPI and NumPy)

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from labkit.children import ChildError, run_child
from labkit.cli.inputs import MOST_RANKS, InputError, InputFile, InputFolder, Whole, one_line
from labkit.files import printable
from mpiwatch import launch
from mpiwatch.processes import STOP_SIGNALS, print_error, sweep_after_this_job, without_job

if TYPE_CHECKING:
    from mpi4py import MPI


# Launchers set one of the first two for each rank, and `on_ranks` sets the last: with a launcher that sets
# neither, each rank would start ranks, and each of these again.
STARTED = "LABKIT_ON_RANKS"
RANK_VARIABLES = {"PMI_RANK", "PMIX_RANK", STARTED}

RANKS = 4  # by default
HOSTS = f"{__name__}.HOSTS"  # the path of the host file, in a click context's `meta`
LATE_S = 20.0  # for ranks that start later than others


def under_mpiexec() -> bool:
    """Return whether a launcher (mpiexec, srun) has started this process as a rank, without loading MPI."""
    return not RANK_VARIABLES.isdisjoint(os.environ)


def _note_hosts(context: click.Context, option: click.Parameter, path: Path | None) -> None:
    context.meta[HOSTS] = path


def on_hosts() -> bool:
    """Return whether the option --hosts was given: then ranks start on other machines, too."""
    return bool(click.get_current_context().meta.get(HOSTS))


def ranks_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the option -n (--ranks) of a command that starts its own ranks, and --hosts."""
    text = "Ranks to start. [default: 4, or the hosts' slots]"
    option = click.option("-n", "--ranks", type=Whole(max=MOST_RANKS), help=text)
    return option(hosts_option(function))


class HostFile(InputFile):
    """The path of a host file, for the command that starts the ranks: their machines may have none."""

    def check(self, path: Path) -> None:
        if not under_mpiexec():
            super().check(path)


class FolderOfRankZero(InputFolder):
    """The path of a folder that rank 0 reads: other ranks may be on machines without it."""

    def check(self, path: Path) -> None:
        if launch.SEVERAL_MACHINES not in os.environ or launch.is_first():
            super().check(path)


hosts_option = click.option(
    "--hosts",
    type=HostFile(),
    metavar="FILE",
    callback=_note_hosts,
    expose_value=False,
    help="Start the ranks on the machines of this host file, by ssh (see docs/machines.md).",
)


def mpiexec(ranks: int | None, *files: str) -> list[str]:
    """Return the first words of a command line that starts ranks, where the option --hosts says.

    The default is 4 ranks, or as many as the host file has slots. `files`: the paths that the ranks need.
    Raise ClickException if there is no mpiexec, InputError if a host is not ready.
    """
    path = click.get_current_context().meta.get(HOSTS)
    if path:
        from labkit.cluster.errors import ClusterError
        from labkit.cluster.places import ssh

        with one_line(ClusterError, has_rows=True):
            machines = ssh.prepare(path.absolute(), ranks, files)
        os.environ |= {ssh.MACHINES: json.dumps(machines), launch.SEVERAL_MACHINES: "1"}
        return [sys.executable, "-P", "-m", "labkit.cluster.places.ssh", "-n", str(len(machines["hosts"]))]
    program = launch.mpiexec()
    if not shutil.which(program):
        raise click.ClickException(
            f"there is no {program} to start ranks with: install MPI, for example by pip install mpich"
        )
    return [program, "-n", str(ranks or RANKS)]


def on_ranks(ranks: int | None, deadline_s: float | None, command_of: str = "labkit") -> None:
    """Unless this process is a rank, run the command (`python -m command_of …`) on ranks; exit with its code.

    The ranks end with this process, however it ends. Raise as `mpiexec` does, and at the deadline.
    """
    if under_mpiexec():
        return
    starter = mpiexec(ranks)
    stop_at_signals()
    try:
        done = run_child(
            [*starter, sys.executable, "-P", "-m", command_of, *sys.argv[1:]],
            deadline_s=deadline_s,
            environment={**without_job(os.environ), **launch.one_machine(), STARTED: "1"},
            capture=False,
            check=False,
        )
    except ChildError as error:
        raise click.ClickException(f"{starter[-1]} ranks: {error}") from None
    sys.exit(done.returncode)


def stop_at_signals(after_ctrl_c: int = 128 + signal.SIGINT) -> None:
    """Let the first signal that ends this process raise SystemExit, so that it ends what it has started."""

    def stop(signum: int, frame: object) -> None:
        ignore_signals()
        raise SystemExit(after_ctrl_c if signum == signal.SIGINT else 128 + signum)

    for signum in STOP_SIGNALS:
        signal.signal(signum, stop)


def ignore_signals() -> None:
    """Ignore further signals: a second Ctrl-C must not interrupt the ending."""
    for signum in STOP_SIGNALS:
        signal.signal(signum, signal.SIG_IGN)


def in_one_line(error: click.UsageError) -> click.UsageError:
    """Return a usage error with its message in one line, whatever was typed; rows stay rows."""
    if isinstance(error, InputError) and error.has_rows:
        return error
    text = error.format_message()
    if isinstance(error, click.MissingParameter):  # it lists the choices below one another
        text = " ".join(text.split())
    kind = InputError if isinstance(error, InputError) else click.UsageError
    return kind(printable(text), error.ctx)


@contextmanager
def usage_errors_once() -> Iterator[None]:
    """Let rank 0 alone report a wrong option, and end every rank with the error's exit status.

    All ranks have the same command line, so all of them find the error. If a rank has not come after
    LATE_S, it has another command line and is at work: the job is aborted.
    """
    try:
        yield
    except click.UsageError as raised:
        error = in_one_line(raised)
        if not under_mpiexec():
            raise error from None
        from mpi4py import MPI

        comm = MPI.COMM_WORLD
        if launch.SEVERAL_MACHINES in os.environ:
            sweep_after_this_job()  # a rank that aborts leaves shared memory; no supervisor here removes it
        if comm.rank == 0:
            error.show()
            sys.stderr.flush()
        # A launcher may kill all ranks as soon as one has failed, so rank 0 prints first.
        here, deadline = comm.Ibarrier(), time.monotonic() + LATE_S
        while not here.Test():
            if time.monotonic() > deadline:
                if comm.rank:  # rank 0 has not found the error: a file is missing on this machine alone
                    error.show()
                    sys.stderr.flush()
                comm.Abort(error.exit_code)
            time.sleep(0.01)
        sys.exit(error.exit_code)


class CommandsOnRanks(click.Group):
    """Subcommands that may be called on ranks: an error is one line, which rank 0 alone reports."""

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        with usage_errors_once():
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: click.Context) -> Any:
        with usage_errors_once(), one_line():
            return super().invoke(ctx)


@contextmanager
def ending_together(comm: MPI.Intracomm, command: str) -> Iterator[None]:
    """End all ranks if the block raises on any rank.

    If all ranks raise the same CollectiveError, rank 0 prints it in one line and each rank exits with status
    2. Any other error may be this rank's alone, with the others waiting in a collective: this rank prints the
    error and aborts the whole job.
    """
    from labkit.comm import CollectiveError

    try:
        yield
    except CollectiveError as error:
        if comm.rank == 0:
            print_error(f"{command}: {printable(str(error))}\n")
        # A launcher may kill all ranks as soon as one has failed, so rank 0 prints first.
        comm.Barrier()
        sys.exit(2)
    except KeyboardInterrupt:
        comm.Abort(130)
    except Exception as error:
        where = "".join(traceback.format_tb(error.__traceback__))
        print_error(
            f"{where}{command}: rank {comm.rank} of {comm.size} failed: {type(error).__name__}: {error}\n"
        )
        comm.Abort(1)
