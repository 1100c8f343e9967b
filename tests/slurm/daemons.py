"""SLURM's configuration and daemons in a folder: munged, slurmctld and one slurmd for each node."""

from __future__ import annotations

import contextlib
import getpass
import os
import signal
import socket
import subprocess
import time
from functools import partial
from pathlib import Path

from mpiwatch.processes import alive

STOP_S, POLL_S = 5.0, 0.05
CPUS = 4  # on each node, possibly more than the machine has
# The folders of the daemons may be missing in a user's PATH.
PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"

CONFIGURATION = """\
ClusterName=lab
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
SlurmctldPort={port}
AuthType=auth/munge
AuthInfo=socket={folder}/munge/munge.socket
CredType=cred/munge
# Listen only on the loopback interface.
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
MpiDefault=none
ReturnToService=2
# Nodes may declare more CPUs than the machine has.
SlurmdParameters=config_overrides
SchedulerParameters=batch_sched_delay=0,sched_interval=1
MailProg=/bin/true
PlugStackConfig={folder}/plugstack.conf
StateSaveLocation={folder}/state
SlurmctldPidFile={folder}/run/slurmctld.pid
SlurmctldLogFile={folder}/log/slurmctld.log
SlurmdSpoolDir={folder}/spool/%n
# PMIx needs one folder for each slurmd of a machine.
TmpFS={folder}/tmp/%n
SlurmdPidFile={folder}/run/slurmd.%n.pid
SlurmdLogFile={folder}/log/slurmd.%n.log
SlurmctldTimeout=30
SlurmdTimeout=15
KillWait=2
# One minute is the shortest time limit of a job, so SLURM must end the job without a grace minute.
OverTimeLimit=0
{nodes}
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=NO
"""


def start(folder: Path, nodes: int) -> None:
    """Write the configuration, and start the daemons."""
    for name in ("munge", "state", "run", "log", "spool", "tmp"):
        (folder / name).mkdir(0o755)
    for name in names(nodes):
        (folder / "tmp" / name).mkdir()
        (folder / "tmp" / name).chmod(0o1777)
    folder.chmod(0o755)
    ports = free_ports(nodes + 1)
    host = socket.gethostname().partition(".")[0]
    (folder / "plugstack.conf").touch()
    (folder / "slurm.conf").write_text(
        CONFIGURATION.format(
            folder=folder,
            host=host,
            user=getpass.getuser(),
            port=ports[0],
            nodes="\n".join(
                f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs={CPUS} "
                "RealMemory=2000 State=UNKNOWN"
                for name, port in zip(names(nodes), ports[1:], strict=True)
            ),
        )
    )
    run = partial(subprocess.run, env=environment(folder), stdout=subprocess.DEVNULL, check=True)
    munge = folder / "munge"
    key = munge / "key"
    key.touch(0o600)
    key.write_bytes(os.urandom(128))
    run(
        [
            "munged", "--key-file", key, "--socket", munge / "munge.socket", "--pid-file", munge / "pid",
            "--log-file", munge / "log", "--seed-file", munge / "seed",
        ],
    )  # fmt: skip
    run(["slurmctld", "-c"])
    for name in names(nodes):
        run(["slurmd", "-N", name])


def stop(folder: Path) -> None:
    """End the daemons. The supervisor kills those that are left after STOP_S."""
    files = [*folder.glob("run/*.pid"), folder / "munge" / "pid"]
    pids = [int(text) for file in files if file.exists() and (text := file.read_text().strip())]
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
    end = time.monotonic() + STOP_S
    while any(map(alive, pids)) and time.monotonic() < end:
        time.sleep(POLL_S)


def names(nodes: int) -> tuple[str, ...]:
    """Return the names of the nodes."""
    return tuple(f"n{number}" for number in range(1, nodes + 1))


def environment(folder: Path) -> dict[str, str]:
    return {**os.environ, "PATH": PATH, "SLURM_CONF": str(folder / "slurm.conf")}


def free_ports(count: int) -> list[int]:
    """Return ports that no program uses now."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def logs(folder: Path) -> str:
    """Return the last lines of each daemon's log."""
    return "\n".join(
        f"{log.name}:\n" + "\n".join(log.read_text(errors="replace").splitlines()[-5:])
        for log in [*folder.glob("log/*"), *folder.glob("munge/log")]
    )
