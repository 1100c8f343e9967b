"""How the ranks of a program are started: their environment variables, the launcher, and the command line.

The launcher's environment variables tell what started this process. If a launcher belongs to another MPI
library than the program, or if `srun` has the wrong `--mpi`, each process becomes a world of one rank, does
all of the work, and exits with status 0. Nothing here needs more than the standard library.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NoReturn

from mpiwatch.output import check_writable, destination, remove, write_whole
from mpiwatch.processes import FLIGHT_RECORDER, LINUX, SHM, is_mpich, print_error, supervised, without_job

__all__ = [
    "ADDRESSES",
    "DEADLINE_S",
    "HANG_EXIT_CODE",
    "ONE_THREAD",
    "OPEN_MPI",
    "OVERSUBSCRIBE",
    "SEVERAL_MACHINES",
    "STRICT_EXIT_CODE",
    "Options",
    "SettingError",
    "command_line",
    "is_first",
    "lack_of_shared_memory",
    "launcher_of_ranks",
    "mpiexec",
    "node_name",
    "one_machine",
    "refuse_world_of_one",
    "run",
    "settings",
]

HANG_EXIT_CODE = 86  # of a program, or of a rank of a session, that ends because of a hang
STRICT_EXIT_CODE = 87  # of a program without a hang in which strict mode has found errors

# One BLAS thread per rank: ranks that each start a thread per core slow each other down.
ONE_THREAD = {name: "1" for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")}

OVERSUBSCRIBE = "PRTE_MCA_rmaps_default_mapping_policy"
OPEN_MPI = {
    # A waiting rank yields its core to a rank that computes: there may be more ranks than cores.
    "OMPI_MCA_mpi_yield_when_idle": "1",
    # Shared-memory windows need no network; this component prints a complaint where it finds none.
    "OMPI_MCA_osc": "^ucx",
    # Allow more ranks than cores.
    OVERSUBSCRIBE: ":oversubscribe",
    # Open MPI refuses to start as root (in a container, for example) unless both variables are set.
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
}

# Ranks of one machine need no port: they reach each other through its memory. UCX and libfabric are MPICH's
# transports; libfabric opens a port even so, here one that other machines cannot reach.
ONE_MACHINE = {"UCX_TLS": "posix,self", "OMPI_MCA_btl": "sm,self", "FI_TCP_IFACE": "lo"}
# Variables that a user sets in order to choose the transport, by their first letters.
TRANSPORT = "UCX_", "FI_", "OMPI_MCA_btl", "OMPI_MCA_pml"
# If set, mpiexec starts ranks on several machines, which no file of hosts has named to it.
SEVERAL_MACHINES = "MPIWATCH_SEVERAL_MACHINES"
# The addresses of the machines, separated by commas: rank 0's machine listens on its own address alone.
ADDRESSES = "MPIWATCH_ADDRESSES"
# With these variables, a user gives mpiexec a file of hosts.
FILES_OF_HOSTS = "HYDRA_HOST_FILE", "PRTE_MCA_prte_default_hostfile", "OMPI_MCA_orte_default_hostfile"


def one_machine(environment: Mapping[str, str] = os.environ, *, spawns: bool = False) -> dict[str, str]:
    """Return environment variables that close the ports of ranks that mpiexec starts on this machine.

    Return nothing if `environment` shows that the ranks may run on several machines, or that the user has
    chosen a transport. With `spawns`, let programs start further processes (`Spawn`): Open MPI needs ports
    for that.
    """
    has_chosen = any(name.startswith(TRANSPORT) for name in environment)
    are_several = any(name in environment for name in (SEVERAL_MACHINES, *FILES_OF_HOSTS))
    if not LINUX or has_chosen or are_several:
        return {}
    return {name: value for name, value in ONE_MACHINE.items() if not (spawns and name.startswith("OMPI"))}


# What each rank of MPICH takes of /dev/shm as it starts; messages take more. Open MPI uses other folders.
SHM_BYTES_OF_A_RANK = 1_150_000


def lack_of_shared_memory(ranks: int, folder: str = SHM) -> str:
    """Return a sentence, without a full stop, if ranks cannot start because they can share no memory.

    Return nothing if they can, or if it is not known. Without this sentence a signal would kill them.
    """
    if not LINUX or not is_mpich(shutil.which(mpiexec()) or ""):
        return ""
    try:
        room = os.statvfs(folder)
    except OSError:  # MPICH does without
        return ""
    if room.f_flag & os.ST_RDONLY or not os.access(folder, os.W_OK):
        return f"{folder} cannot be written, and ranks share memory there"
    free, needed = room.f_bavail * room.f_frsize, ranks * SHM_BYTES_OF_A_RANK
    if free >= needed:
        return ""
    mib, total = 1 << 20, room.f_blocks * room.f_frsize
    return (
        f"{free / mib:.1f} of {total / mib:.1f} MiB are free in {folder}, and {ranks} ranks need "
        f"{needed / mib:.1f} MiB to start"
    )


def settings() -> dict[str, str]:
    """Return a rank's environment variables, with the user's own value where a variable is set.

    BLAS and MPI read them once, while they load. Variables of an MPI library that is not in use do no harm.
    """
    return {name: os.environ.get(name, value) for name, value in {**ONE_THREAD, **OPEN_MPI}.items()}


def mpiexec() -> str:
    """Return the path of this environment's `mpiexec`, else of the one on PATH, else the bare name."""
    installed = os.path.join(sys.prefix, "bin", "mpiexec")
    return installed if os.path.exists(installed) else shutil.which("mpiexec") or "mpiexec"


FIRST_S = 2.0  # for the first rank's message: some launchers end all ranks as soon as one has failed

COUNTS = {  # variables with the number of ranks, and the launcher that sets each; the innermost comes first
    "OMPI_COMM_WORLD_SIZE": "Open MPI's mpiexec",
    "PMI_SIZE": "MPICH's mpiexec",
    "SLURM_STEP_NUM_TASKS": "srun",
    "SLURM_NTASKS": "SLURM's batch script",
}
# How each MPI library's ranks are started under SLURM without its own mpiexec.
SRUN = {"MPICH": "srun --mpi=pmi2", "Open MPI": "srun --mpi=pmix"}

# Ranks count as stuck only if all of them have been inside one MPI call for this long, each without a line of
# Python in between. Few calls take a minute, even with a slow disk or network.
DEADLINE_S = 60.0
MOST_RANKS = 1024  # on one machine: a number with a digit too many must not exhaust its processes
MOST_SHOWN = 60  # characters of a wrong value in a message
NAME = "python -m mpiwatch"
ENDINGS = signal.SIGINT, signal.SIGTERM, signal.SIGHUP


class SettingError(ValueError):
    """An environment variable has a value that cannot be used."""


def node_name(host: str) -> str:
    """Return SLURM's name for the node that this rank runs on; without SLURM, the name `host`."""
    return os.environ.get("SLURMD_NODENAME") or host


def started(environment: Mapping[str, str] = os.environ) -> tuple[str, int]:
    """Return the launcher that started this process and its number of ranks; `("", 1)` without a launcher."""
    name = next((name for name in COUNTS if name in environment), None)
    if name is None:
        return "", 1
    count, launcher = environment[name], COUNTS[name]
    if launcher == "srun" or (launcher == COUNTS["PMI_SIZE"] and "SLURM_MPI_TYPE" in environment):
        launcher = f"srun --mpi={environment.get('SLURM_MPI_TYPE') or 'none'}"
    if not re.fullmatch("[0-9]{1,9}", count) or not int(count):
        raise SettingError(f"the environment variable {name}={count} is not a valid number of ranks")
    return launcher, int(count)


def is_first(environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether the launcher's rank of this process is 0; in a world of one, MPI's rank always is."""
    names = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID")
    return next((environment[name] for name in names if name in environment), "0") == "0"


def first_on_its_node() -> bool:
    """Return whether a launcher has started this process as the first rank of its node."""
    names = "MPI_LOCALRANKID", "OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID"
    return next((os.environ[name] for name in names if name in os.environ), None) == "0"


def world_of_one(size: int, library: str, mpiexec: str, environment: Mapping[str, str] = os.environ) -> str:
    """Return why this rank must not go on: its launcher started several ranks, but its world has only one.

    Return an empty text if all is well. `size`: the size of MPI.COMM_WORLD. `library`: the name in
    MPI.get_vendor(). `mpiexec`: the path of the library's own mpiexec.
    """
    launcher, count = started(environment)
    if size != 1 or count == 1:
        return ""
    others = f"`{SRUN[library]}` or " if library in SRUN else ""
    inside = " inside the allocation" if "SLURM_JOB_ID" in environment else ""
    if launcher == COUNTS["SLURM_NTASKS"]:
        cause = f"this is one process in a SLURM job of {count} tasks, and nothing has started the others"
    else:
        named = f"`{launcher}`" if launcher.startswith("srun") else launcher  # a command, or a description
        cause = (
            f"{named} has started {count} processes, but each is an MPI world of one rank: "
            f"{library} does not understand this launcher"
        )
    return f"{cause}. Start the ranks with {others}`{mpiexec} -n {count}`{inside}."


def as_typed(program: str) -> str:
    """Return the shortest text by which a shell in this folder finds the program: its name or a path."""
    name = os.path.basename(program)
    return name if shutil.which(name) == program else min(program, os.path.relpath(program), key=len)


def refuse_world_of_one(command: str, size: int, library: str) -> None:
    """Exit with status 2 if a launcher has started several ranks and MPI knows only this one.

    The launcher's first rank prints why. `command`: the command that refuses. `size` and `library`: as in
    `world_of_one`.
    """
    why = world_of_one(size, library, as_typed(mpiexec()))
    if not why:
        return
    if is_first():
        print_error(f"{command}: {why}\n")
    else:
        mpi = sys.modules.get("mpi4py.MPI")
        if mpi:
            mpi.Finalize()  # a rank that its launcher kills leaves its shared memory
        time.sleep(FIRST_S)
    sys.exit(2)


@dataclass(frozen=True)
class Options:
    """A program and how to watch it.

    `words`: the program's path or module, and its own arguments. `command`: the command that runs it, for
    messages. `ranks`: how many to start; None in a rank. `launched`: `run` has started this rank, and prints
    the report below the last words of the launcher. `trace`: the file for a recording of all calls.
    `findings`: a file beside `json`.
    """

    words: tuple[str, ...]
    is_module: bool = False
    deadline_s: float = DEADLINE_S
    strict: bool = False
    json: str | None = None
    command: str = NAME
    ranks: int | None = None
    launched: bool = False
    trace: str | None = None
    findings: str = field(default="", compare=False)


def command_line(options: Options) -> list[str]:
    """Return the command line that runs one rank of the program; `parse` is the inverse."""
    # -P: a file random.py beside the program must not take the place of Python's own in mpiwatch.
    words = [sys.executable, "-Pm", "mpiwatch", "--deadline", f"{options.deadline_s!r}"]
    if options.strict:
        words.append("--strict")
    if options.launched:
        words.append("--launched")
    if options.json is not None:
        words += ["--json", options.json]
    if options.trace is not None:
        words += ["--trace", options.trace]
    if options.is_module:
        words.append("-m")
    return [*words, *options.words]


def findings_file(json: str) -> str:
    """Return a path for the file that hands strict mode's findings from the program to its parent.

    It lies beside the plain file that the report goes to. Beside a device or /dev/stdout, nothing is made.
    """
    file = destination(Path(json))
    return f"{file or os.path.join(tempfile.gettempdir(), f'{FLIGHT_RECORDER}{os.getpid()}')}-strict"


def whole(text: str) -> int:
    """Return a number of ranks that a command line names."""
    if re.fullmatch("[0-9]{1,9}", text) and 1 <= int(text) <= MOST_RANKS:
        return int(text)
    raise argparse.ArgumentTypeError(f"expected a whole number from 1 to {MOST_RANKS}, got {shortened(text)}")


def seconds(text: str) -> float:
    """Return a deadline that a command line names."""
    with contextlib.suppress(ValueError):
        if 0 < float(text) < math.inf:
            return float(text)
    raise argparse.ArgumentTypeError(f"expected a number of seconds above 0, got {shortened(text)}")


class Parser(argparse.ArgumentParser):
    """A parser whose errors are printed once: all ranks of a job have the same command line."""

    def error(self, message: str) -> NoReturn:
        """Print a usage error and exit with status 2."""
        if not is_first():
            time.sleep(FIRST_S)
        super().error(message)


def shortened(text: str) -> str:
    """Return a quoted text, in one line that a terminal can show."""
    quoted = repr(text)
    return quoted if len(quoted) <= MOST_SHOWN else f"{quoted[:MOST_SHOWN]}…"


def parse(arguments: Sequence[str]) -> Options:
    """Return the options in a command line's arguments; on a usage error, print it and exit with status 2."""
    parser = Parser(
        prog=NAME if os.path.basename(sys.argv[0]) == "__main__.py" else "mpiwatch",
        description="Run an mpi4py program, unchanged, and watch its ranks: those that it starts (-n 4), or "
        "those that mpiexec or srun has started. A hang is reported on standard error, "
        f"and the job ends with exit code {HANG_EXIT_CODE}.",
        allow_abbrev=False,
    )
    parser.add_argument("-n", dest="ranks", type=whole, help="the number of ranks to start")
    parser.add_argument(
        "--deadline", dest="deadline_s", type=seconds, default=DEADLINE_S, metavar="S", help="seconds [60]"
    )
    parser.add_argument("--strict", action="store_true", help="let sends wait for their receives")
    parser.add_argument("--json", metavar="FILE", help="write the report and the exit codes to a file")
    parser.add_argument("--trace", metavar="FILE", help="record all calls to a file for Perfetto")
    parser.add_argument("--launched", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("-m", dest="is_module", action="store_true", help="the program is a module")
    parser.add_argument("program")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    parsed = vars(parser.parse_args(arguments))
    options = Options((parsed.pop("program"), *parsed.pop("arguments")), **parsed)
    if options.json is not None:
        try:
            if is_first() and not options.launched:  # the others write nothing; `run` has looked already
                check_writable(Path(options.json))
            options = replace(options, findings=findings_file(options.json))
        except OSError as error:
            parser.error(f"argument --json: {error.strerror}: {error.filename!r}")
    if options.trace is not None:
        try:
            if is_first() and not options.launched:
                check_writable(Path(options.trace))
            options = replace(
                options, trace=os.path.abspath(options.trace)
            )  # the program may change its folder
        except OSError as error:
            parser.error(f"argument --trace: {error.strerror}: {error.filename!r}")
    launcher = launcher_of_ranks() if options.ranks else ""
    if launcher:
        parser.error(f"-n starts ranks, but {launcher} has already started this process as a rank")
    return options


def launcher_of_ranks() -> str:
    """Return the launcher that has started this process as one of its ranks; empty if none has."""
    launcher, count = started()
    is_rank = not {"PMI_RANK", "PMIX_RANK"}.isdisjoint(os.environ)
    return (launcher or "mpiexec") if is_rank or (launcher.startswith("srun") and count > 1) else ""


def run(mpiexec: Sequence[str], options: Options) -> int:
    """Start the ranks of a program in this terminal; return the job's exit code.

    `mpiexec`: the first words of the command line, which start the ranks and end with their number. The ranks
    end with this process.
    """
    lack = lack_of_shared_memory(int(mpiexec[-1])) if mpiexec[0] != sys.executable else ""
    if lack:
        print_error(f"mpiwatch: {lack}.\n")
        return 1
    with tempfile.TemporaryDirectory(prefix=f"{FLIGHT_RECORDER}{os.getpid()}-") as folder:
        # If this process is killed, the supervisor finds the folder by its name and removes it.
        to_file = options.json is not None and destination(Path(options.json)) is not None
        record = Path(options.json if options.json and to_file else f"{folder}/record").absolute()
        remove(record)  # from an earlier run
        words = command_line(replace(options, json=str(record), launched=True))
        environment = {**without_job(os.environ), **settings(), **one_machine(spawns=True)}
        job = subprocess.Popen([*supervised(), *mpiexec, *words], env=environment)
        received: list[int] = []

        def end(signum: int, frame: object) -> None:
            received.append(signum)
            job.send_signal(signal.SIGTERM)  # the supervisor ends the ranks; a Ctrl-C reaches it, too

        for signum in ENDINGS:
            signal.signal(signum, end)
        code = job.wait()
        if received:
            code = 128 + received[0]
        # After one rank has failed, launchers return different codes.
        with contextlib.suppress(OSError, ValueError, KeyError):
            content = json.loads(record.read_bytes())
            code = int(content["exit_code"])
            if content["report"]:
                from mpiwatch.report import Report, render  # noqa: PLC0415  (rarely needed)

                report = Report.from_json(json.dumps(content["report"]).encode())
                print_error(f"\n{render(report, in_program=True)}\n")
        if options.json is not None and not (to_file and record.exists()):
            hand_over_record(record, Path(options.json), code)
    if options.trace is not None:
        from mpiwatch.trace_files import write_trace  # noqa: PLC0415  (rarely needed)

        write_trace(options.trace, int(mpiexec[-1]))
    return code


def hand_over_record(record: Path, asked_for: Path, code: int) -> None:
    """Write the ranks' record where it was asked for; without one, as without MPI, only the exit code."""
    content = {"exit_code": code, "exit_codes": [], "report": None, "findings": []}
    try:
        text = record.read_text() if record.exists() else json.dumps(content, indent=1) + "\n"
        write_whole(asked_for, text)
    except OSError as error:
        print_error(f"mpiwatch: the report could not be written to {asked_for}: {error.strerror}\n")
