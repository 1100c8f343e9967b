"""Settings of the profile `slurm`: what to ask SLURM for, from one short file."""

from __future__ import annotations

import configparser
import os
import re
import socket
import subprocess
from dataclasses import dataclass, fields
from pathlib import Path

from platformdirs import user_config_path

from labkit.cluster.errors import ClusterError

FILE = "LABKIT_SLURM"  # environment variable with the path of the file
SECTION = "slurm"
EXAMPLE = "[slurm]\npartition = main\ntime = 2:00:00"


@dataclass(frozen=True)
class Settings:
    """The settings in the file; SLURM chooses where a setting is empty.

    `launcher` starts the ranks inside the job: this environment's `mpiexec`, or SLURM's `srun --mpi=pmi2` or
    `srun --mpi=pmix`. `pending` is how many minutes a job may wait in the queue. `controller` is the address
    at which the nodes reach this machine. `options` are further options of sbatch.
    """

    partition: str = ""
    account: str = ""
    time: str = "1:00:00"
    nodes: str = ""
    launcher: str = "mpiexec"
    options: str = ""
    pending: str = "60"
    controller: str = ""


def file() -> Path:
    """Return the path of the file with the settings; it need not exist."""
    return Path(os.environ.get(FILE) or user_config_path("allreduce-lab") / "slurm.ini")


def load() -> Settings:
    """Return the settings. Raise ClusterError if the file is wrong."""
    path = file()
    try:
        text = path.read_text()
    except FileNotFoundError:
        text = ""
    except OSError as error:
        raise ClusterError(f"cannot read {path}: {error.strerror}") from None
    return parse(text, str(path))


def parse(text: str, path: str) -> Settings:
    """Return the settings in the text of a file. Raise ClusterError if it is wrong."""
    parser = configparser.ConfigParser(interpolation=None, inline_comment_prefixes=("#",))
    try:
        parser.read_string(text, path)
    except configparser.Error as error:
        raise ClusterError(f"{error}. Expected lines as in:\n{EXAMPLE}") from None
    known = [field.name for field in fields(Settings)]
    wrong = [name for name in parser.sections() if name != SECTION]
    given = dict(parser[SECTION]) if parser.has_section(SECTION) else {}
    wrong += [name for name in given if name not in known]
    if wrong:
        raise ClusterError(
            f"{path} has {wrong[0]!r}, which the profile `slurm` does not know. Expected a section "
            f"[{SECTION}] with any of {', '.join(known)}."
        )
    lines = [name for name, value in given.items() if "\n" in value]
    if lines:
        raise ClusterError(f"{path} has {lines[0]} on several lines; expected one line for each setting.")
    settings = Settings(**given)
    if not re.fullmatch(r"\d+(\.\d+)?", settings.pending):
        raise ClusterError(f"{path} has pending = {settings.pending}; expected a number of minutes")
    return settings


def controller_address(settings: Settings) -> str:
    """Return the address at which this machine's controller is reachable from the nodes.

    The default is this machine's address in the network of SLURM's own controller.
    """
    return settings.controller or address_towards(slurm_controller()) or socket.gethostname()


def slurm_controller() -> str:
    """Return the address of the machine where slurmctld runs; empty if SLURM does not answer."""
    try:
        command = ["scontrol", "show", "config"]
        shown = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""
    found = re.search(r"^SlurmctldHost\[0\]\s*=\s*([^\s(]+)(?:\(([^)]+)\))?", shown, re.MULTILINE)
    return (found[2] or found[1]) if found else ""


def address_towards(host: str) -> str:
    """Return the address of this machine from which it reaches a host; empty if the host is unknown."""
    if not host:
        return ""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((host, 9))  # sends nothing
            return str(probe.getsockname()[0])
    except OSError:
        return ""
