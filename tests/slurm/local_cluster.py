"""A real SLURM on this machine: munged, slurmctld and one slurmd for each node, in a temporary folder.

    python -m tests.slurm.local_cluster up [NODES]

starts it, prints how to use it, and removes it on Ctrl-C. It needs the Debian packages in PACKAGES and
changes nothing outside its folder. Everything ends with the process that started it, even if that is killed
by SIGKILL.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from labkit.children import start_child

PACKAGES = "slurm-wlm munge libpmi2-0 libpmix-dev"  # as in .ci/run
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun")
START_S, STOP_S, JOBS_S, POLL_S = 60.0, 40.0, 10.0, 0.05
# The folders of the daemons may be missing in a user's PATH.
PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
CPUS = 4  # on each node, possibly more than the machine has
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


class LocalCluster:
    """A SLURM; `environment` has the variable by which its commands and jobs find it."""

    def __init__(self, folder: Path, nodes: int) -> None:
        self.folder = folder
        self.nodes = [f"n{number}" for number in range(1, nodes + 1)]
        self.environment = {"SLURM_CONF": f"{folder}/slurm.conf"}
        self.daemons: dict[str, subprocess.Popen[bytes]] = {}  # a supervisor of each

    def command(self, *words: str) -> str:
        """Return what one of SLURM's commands prints."""
        env = {**os.environ, **self.environment, "PATH": PATH}
        done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=60, check=False)
        if done.returncode:
            raise RuntimeError(f"{' '.join(words)} failed: {done.stderr or done.stdout}")
        return done.stdout

    def jobs(self) -> list[str]:
        """Return the ids of the jobs in the queue, including those that are ending."""
        return self.command("squeue", "-h", "-o", "%i").split()

    def start(self) -> None:
        """Write the configuration, and start the daemons."""
        munge = self.folder / "munge"
        for name in ("munge", "state", "run", "log", "spool", "tmp", *(f"tmp/{node}" for node in self.nodes)):
            (self.folder / name).mkdir()
            (self.folder / name).chmod(0o1777 if "/" in name else 0o755)
        self.folder.chmod(0o755)
        (self.folder / "plugstack.conf").touch()
        port, *ports = free_ports(len(self.nodes) + 1)
        host = socket.gethostname().partition(".")[0]
        nodes = [
            f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs={CPUS} RealMemory=2000"
            for name, port in zip(self.nodes, ports, strict=True)
        ]
        values = {"folder": self.folder, "host": host, "user": getpass.getuser(), "port": port}
        (self.folder / "slurm.conf").write_text(CONFIGURATION.format(**values, nodes="\n".join(nodes)))
        (munge / "key").touch(0o600)
        (munge / "key").write_bytes(os.urandom(128))
        files = {"key-file": "key", "socket": "munge.socket", "pid-file": "pid", "seed-file": "seed"}
        self._start("munged", "-F", *(f"--{option}={munge / file}" for option, file in files.items()))
        self._wait_until((munge / "munge.socket").exists)
        self._start("slurmctld", "-D", "-c")
        self._wait_until(self.answers)  # a slurmd that registers before waits for up to a minute
        for name in self.nodes:
            self.start_node(name)
        self.wait_until_idle()

    def _start(self, *command: str) -> None:
        self.daemons[command[-1]] = start_child(
            command,
            env={**os.environ, **self.environment, "PATH": PATH},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            remove=str(self.folder),
        )

    def start_node(self, name: str) -> None:
        """Start the daemon of a node."""
        self._start("slurmd", "-D", "-N", name)

    def return_node(self, name: str) -> None:
        """Start the daemon of a lost node again, and wait until all nodes are idle.

        slurmctld has the node's job to end, and asks a node that did not answer only after a minute. The job
        is forgotten if the node is set down first.
        """
        node = f"NodeName={name}"
        self.command("scontrol", "update", node, "State=DOWN", "Reason=lost")
        self.start_node(name)
        self.command("scontrol", "update", node, "State=RESUME")
        self.wait_until_idle()

    def lose_node(self, name: str) -> None:
        """Kill all processes of a node at once, as if its power had failed."""
        doomed = psutil.Process(self.daemons[name].pid).children(recursive=True)
        for how in (signal.SIGSTOP, signal.SIGKILL):  # no process may see another one end
            for process in doomed:
                with contextlib.suppress(psutil.Error):
                    process.send_signal(how)
        self.daemons[name].wait(STOP_S)

    def answers(self) -> bool:
        """Return whether slurmctld answers."""
        with contextlib.suppress(RuntimeError):  # it does not yet
            return bool(self.command("scontrol", "show", "node", self.nodes[0]))
        return False

    def wait_until_idle(self) -> None:
        """Wait until all nodes are idle."""
        idle = ["idle"] * len(self.nodes)

        def are_idle() -> bool:
            with contextlib.suppress(RuntimeError):  # slurmctld is starting
                return self.command("sinfo", "-h", "-N", "-o", "%T").split() == idle
            return False

        self._wait_until(are_idle)

    def _wait_until(self, condition: Callable[[], bool]) -> None:
        end = time.monotonic() + START_S
        while not condition():
            if time.monotonic() > end:
                logs = [*self.folder.glob("log/*")]
                lines = [line for log in logs for line in log.read_text(errors="replace").splitlines()[-5:]]
                raise RuntimeError("\n".join([f"SLURM is not ready after {START_S:.0f} s", *lines]))
            time.sleep(POLL_S)

    def stop(self) -> None:
        """Cancel all jobs, and end the daemons."""
        with contextlib.suppress(RuntimeError, OSError, subprocess.TimeoutExpired):
            end = time.monotonic() + JOBS_S
            while (jobs := self.jobs()) and time.monotonic() < end:
                self.command("scancel", *jobs)
                time.sleep(5 * POLL_S)
        for daemon in self.daemons.values():
            daemon.terminate()
        for daemon in self.daemons.values():
            daemon.wait(STOP_S)


def missing() -> str:
    """Return why SLURM cannot run here; empty if it can."""
    lacking = [program for program in PROGRAMS if not shutil.which(program, path=PATH)]
    if lacking:
        return f"there is no {', '.join(lacking)}: `apt-get install --no-install-recommends {PACKAGES}`"
    return ""


@contextmanager
def running(nodes: int = 4) -> Iterator[LocalCluster]:
    """Run a cluster inside the block."""
    with tempfile.TemporaryDirectory(prefix="allreducelab-slurm-", ignore_cleanup_errors=True) as folder:
        cluster = LocalCluster(Path(folder), nodes)
        try:
            cluster.start()
            yield cluster
        finally:
            cluster.stop()


def free_ports(count: int) -> list[int]:
    """Return ports that no program uses now."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def up(nodes: int) -> None:
    """Run a cluster until Ctrl-C."""
    if why := missing():
        sys.exit(f"SLURM cannot run here: {why}")
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with contextlib.suppress(KeyboardInterrupt), running(nodes) as cluster:
        print(f"SLURM runs with the nodes {', '.join(cluster.nodes)}. In another terminal:\n")
        print(f"    export SLURM_CONF={cluster.folder}/slurm.conf\n    sinfo\n\nCtrl-C ends it.", flush=True)
        signal.pause()


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["up", *rest] if len(rest) <= 1:
            up(int(*rest or [4]))
        case _:
            sys.exit(__doc__)
