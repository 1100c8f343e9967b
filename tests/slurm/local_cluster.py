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
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import psutil

from labkit.children import start_child
from mpiwatch.processes import alive

PACKAGES = "slurm-wlm munge libpmi2-0 libpmix-dev"  # as in .ci/run
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun")
START_S, STOP_S, JOBS_S, DAEMONS_S, POLL_S = 60.0, 40.0, 10.0, 5.0, 0.05
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


@dataclass(frozen=True)
class LocalCluster:
    """A running SLURM; `environment` is what its commands and jobs need."""

    folder: Path
    nodes: tuple[str, ...]

    @property
    def environment(self) -> dict[str, str]:
        """Return the environment variables by which SLURM's commands find this cluster."""
        return {"SLURM_CONF": str(self.folder / "slurm.conf")}

    def command(self, *words: str) -> str:
        """Return what one of SLURM's commands prints."""
        env = environment_of(self.folder)
        done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=60, check=False)
        if done.returncode:
            raise RuntimeError(f"{' '.join(words)} failed: {done.stderr or done.stdout}")
        return done.stdout

    def jobs(self) -> list[str]:
        """Return the ids of the jobs in the queue, including those that are ending."""
        return self.command("squeue", "-h", "-o", "%i").split()

    def lose_node(self, name: str) -> None:
        """Kill all processes of a node at once, as if its power had failed."""
        log = f"{self.folder}/log/slurmd.{name}.log"  # slurmd and slurmstepd share it
        doomed = set()
        for process in psutil.process_iter():
            with contextlib.suppress(OSError, psutil.Error):
                if process.name() in ("slurmd", "slurmstepd") and log in [
                    f.path for f in process.open_files()
                ]:
                    is_step = process.name() == "slurmstepd"
                    doomed |= {process, *(process.children(recursive=True) if is_step else ())}
        for how in (signal.SIGSTOP, signal.SIGKILL):  # no process may see another one end
            for process in doomed:
                with contextlib.suppress(psutil.Error):
                    process.send_signal(how)

    def start_node(self, name: str) -> None:
        """Start a lost node again, and wait until it is idle. It ends with the cluster."""
        subprocess.run(["slurmd", "-N", name], env=environment_of(self.folder), check=True)
        self.wait_until_idle()

    def wait_until_idle(self) -> None:
        """Wait until all nodes are idle."""
        end = time.monotonic() + START_S
        while (states := self.command("sinfo", "-h", "-N", "-o", "%T").split()) != ["idle"] * len(self.nodes):
            if time.monotonic() > end:
                raise RuntimeError(f"after {START_S:.0f} s the nodes are {', '.join(states)}")
            time.sleep(POLL_S)


def missing() -> str:
    """Return why SLURM cannot run here; empty if it can."""
    lacking = [program for program in PROGRAMS if not shutil.which(program, path=PATH)]
    if lacking:
        return f"there is no {', '.join(lacking)}: `apt-get install --no-install-recommends {PACKAGES}`"
    return ""


@contextmanager
def running(nodes: int = 4) -> Iterator[LocalCluster]:
    """Run a cluster inside the block."""
    folder = Path(tempfile.mkdtemp(prefix="allreducelab-slurm-"))
    keeper = start_child(
        [sys.executable, "-m", "tests.slurm.local_cluster", "keep", str(folder), str(nodes)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
        remove=str(folder),
    )
    try:
        assert keeper.stdout is not None
        if keeper.stdout.readline() != "ready\n":
            raise RuntimeError("SLURM did not start; its messages are above")
        yield LocalCluster(folder, node_names(nodes))
    finally:
        keeper.terminate()
        keeper.communicate(timeout=STOP_S)


def keep(folder: Path, nodes: int) -> None:
    """Start a cluster in a folder; stop it and remove the folder on SIGTERM, or if a daemon fails."""
    signal.signal(signal.SIGTERM, lambda signum, frame: sys.exit(0))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        start_daemons(folder, nodes)
        LocalCluster(folder, node_names(nodes)).wait_until_idle()
        print("ready", flush=True)
        while True:
            time.sleep(3600)
    except Exception:
        print(logs(folder), file=sys.stderr, flush=True)
        raise
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        stop(LocalCluster(folder, ()))
        shutil.rmtree(folder, ignore_errors=True)


def start_daemons(folder: Path, nodes: int) -> None:
    """Write the configuration, and start the daemons."""
    for name in ("munge", "state", "run", "log", "spool", "tmp"):
        (folder / name).mkdir(0o755)
    for name in node_names(nodes):
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
                for name, port in zip(node_names(nodes), ports[1:], strict=True)
            ),
        )
    )
    run = partial(subprocess.run, env=environment_of(folder), stdout=subprocess.DEVNULL, check=True)
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
    for name in node_names(nodes):
        run(["slurmd", "-N", name])


def stop(cluster: LocalCluster) -> None:
    """Cancel all jobs, and end the daemons. The supervisor kills those that are left after DAEMONS_S."""
    with contextlib.suppress(RuntimeError, OSError, subprocess.TimeoutExpired):
        end = time.monotonic() + JOBS_S
        while (jobs := cluster.jobs()) and time.monotonic() < end:
            cluster.command("scancel", *jobs)
            time.sleep(5 * POLL_S)
    files = [*cluster.folder.glob("run/*.pid"), cluster.folder / "munge" / "pid"]
    pids = [int(text) for file in files if file.exists() and (text := file.read_text().strip())]
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
    end = time.monotonic() + DAEMONS_S
    while any(map(alive, pids)) and time.monotonic() < end:
        time.sleep(POLL_S)


def node_names(nodes: int) -> tuple[str, ...]:
    """Return the names of the nodes."""
    return tuple(f"n{number}" for number in range(1, nodes + 1))


def environment_of(folder: Path) -> dict[str, str]:
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
        case ["keep", where, count]:
            keep(Path(where), int(count))
        case ["up", *rest] if len(rest) <= 1:
            up(int(*rest or [4]))
        case _:
            sys.exit(__doc__)
