"""The profile `ssh`: a real sshd on each of four hosts, which MPI's own launcher uses."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import mpi4py
import numpy as np
import psutil
import pytest

from labkit import hosts
from labkit.cluster.adapter.files import CLUSTER_ID, PROFILE_DIR
from labkit.cluster.errors import ClusterError
from labkit.cluster.places import ssh
from labkit.cluster.places.files import cluster_files
from labkit.hosts.links import CARD
from labkit.hosts.namespaces import FOLDER
from labkit.hosts.state import processes_on
from mpiwatch import launch
from mpiwatch.processes import forgotten_segments, is_mpich, supervised
from tests.cluster_fixtures import STRANGER, wait_until
from tests.conftest import PROGRAMS, thorough
from tests.programs.faulty import CALLS, FAULT, Fault

pytestmark = pytest.mark.clusters

DEADLINE_S = 150
LABKIT = (sys.executable, "-m", "labkit")
SSHD = """HostKey {folder}/host_key
AuthorizedKeysFile {folder}/keys-{host}
PidFile {folder}/pid-{host}
UsePAM no
StrictModes no
PasswordAuthentication no
KbdInteractiveAuthentication no
SetEnv HOME={folder}
"""
SSH = """IdentityFile {folder}/key
IdentitiesOnly yes
UserKnownHostsFile {folder}/known_hosts
StrictHostKeyChecking yes
"""


@dataclass
class Machines:
    """Four hosts with an sshd on each, and a folder with all keys and settings. Commands run on lab0."""

    folder: Path
    env: dict[str, str]

    @property
    def work(self) -> Path:
        """Return the folder in which commands run."""
        return self.folder / "work"

    def on(self, host: str, command: str) -> None:
        """Run a shell's command on a host, without ssh."""
        subprocess.run([self.env[FOLDER] + "/agent", host, command], check=True, capture_output=True)

    def start(self, *command: str | Path, **options: str) -> subprocess.Popen[str]:
        line = [self.env[FOLDER] + "/agent", "lab0", f"exec {shlex.join(map(str, command))}"]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        return subprocess.Popen(
            line, env={**self.env, **options}, text=True, cwd=self.work, start_new_session=True, **pipes
        )

    def run(self, *command: str | Path, code: int = 0, **options: str) -> str:
        """Run a command on lab0; return its output."""
        with self.start(*command, **options) as job:
            output, _ = job.communicate(timeout=DEADLINE_S)
        assert job.returncode == code, output
        return output

    def host_file(self, *lines: str) -> Path:
        path = self.work / "hosts.txt"
        path.write_text("\n".join(lines or ["lab0 slots=1", "lab1:1", "lab2", "", "lab3  # the last"]))
        return path

    def start_sshd(self, host: str) -> None:
        self.on(host, f"/usr/sbin/sshd -E {self.log(host)} -f {self.folder}/sshd-{host}")
        wait_until((self.folder / f"pid-{host}").exists, f"sshd on {host}", 20)

    def log(self, host: str) -> Path:
        return self.folder / f"log-{host}"

    def end_connections(self) -> None:
        """End the connections that jobs have shared; each would end ssh.UNUSED_S after its last session."""
        for socket in self.folder.glob("labkit-*"):
            subprocess.run(
                ["ssh", "-O", "exit", f"-oControlPath={socket}", "any"], check=False, capture_output=True
            )

    def connections(self, host: str) -> int:
        """Return how many connections a host's sshd has accepted."""
        return self.log(host).read_text().count("Accepted publickey")

    def stop_sshd(self, host: str) -> None:
        os.kill(int((self.folder / f"pid-{host}").read_text()), signal.SIGTERM)
        wait_until(lambda: not (self.folder / f"pid-{host}").exists(), f"no sshd on {host}", 20)

    def programs(self) -> list[list[str]]:
        """Return the command lines of all programs on the hosts, without sshd's."""
        found = []
        for pid in processes_on(hosts.running()):
            try:
                line = psutil.Process(pid).cmdline()
            except psutil.Error:
                continue
            found += [line] if line and "sshd" not in line[0] else []
        return found


@pytest.fixture(scope="module")
def machines(allowed: None) -> Iterator[Machines]:
    if os.getuid() != 0 or not Path("/usr/sbin/sshd").exists() or not shutil.which("ssh"):
        pytest.skip("an sshd on each host needs root, and the package openssh-server")
    with tempfile.TemporaryDirectory(prefix="allreducelab-ssh-") as name:
        folder = Path(name)
        for key in ("key", "host_key"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / key], check=True)
        # MPI and the lab call `ssh`: one that reads these settings, and not the user's.
        (folder / "bin").mkdir()
        (folder / "work").mkdir()
        (folder / "bin/ssh").write_text(
            f'#!/bin/sh\nexec {shutil.which("ssh")} -F {folder}/ssh_config "$@"\n'
        )
        (folder / "bin/ssh").chmod(0o700)
        (folder / "ssh_config").write_text(SSH.format(folder=folder))
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(FOLDER, f"{folder}/hosts")
            own = {
                "PATH": f"{folder}/bin:{os.environ['PATH']}",
                "IPYTHONDIR": f"{folder}/ipython",
                # Hosts of one machine could use its memory.
                "UCX_TLS": "tcp,self",
                "MPIWATCH_SEPARATE_MACHINES": "1",
                "XDG_CONFIG_HOME": str(folder),
                "XDG_RUNTIME_DIR": str(folder),
            }
            yield from started(Machines(folder, {**os.environ, **own}))


def started(machines: Machines) -> Iterator[Machines]:
    folder = machines.folder
    host_key = " ".join((folder / "host_key.pub").read_text().split()[:2])
    lines = [f"{host.name},{host.address} {host_key}\n" for host in hosts.up(4)]
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("XDG_RUNTIME_DIR", str(folder))
            assert ssh.options_to_share(), "the jobs of these tests share no connections"
        (folder / "known_hosts").write_text("".join(lines))
        for host in (host.name for host in hosts.running().hosts):
            (folder / f"sshd-{host}").write_text(SSHD.format(folder=folder, host=host))
            shutil.copy(folder / "key.pub", folder / f"keys-{host}")
            machines.on(host, "mount -t tmpfs tmpfs /run && mkdir /run/sshd")
            machines.start_sshd(host)
        yield machines
    finally:
        hosts.down()


@pytest.fixture(autouse=True)
def nothing_left(machines: Machines) -> Iterator[None]:
    """Wait for the end of all programs. Connections that wait for further sessions are ended."""
    before = set(forgotten_segments())
    yield
    machines.end_connections()
    wait_until(lambda: not machines.programs(), "no program left on any host", 40)
    wait_until(lambda: not set(forgotten_segments()) - before, "no shared memory left", 40)
    ssh.remove_dead_sockets(str(machines.folder))  # as the next job would
    assert not list(machines.folder.glob("labkit-*"))


def refused(machines: Machines, *lines: str) -> dict[str, str]:
    """Return what is said of each host by a `labkit run` that must not start."""
    program = machines.work / "never.py"
    program.write_text(f"open({str(machines.folder / 'started')!r}, 'w')")
    path = machines.host_file(*lines)
    output = machines.run(*LABKIT, "run", "--hosts", path, program, code=2)
    head, *rows = output.splitlines()
    assert head == "Error: Nothing was started, because a machine is not ready."
    assert not (machines.folder / "started").exists()
    return dict(row.split(": ", 1) for row in rows)


READY = {"lab0": "ready", "lab1": "ready", "lab2": "ready", "lab3": "ready"}


def test_one_that_refuses_one_without_a_key_and_one_with_an_unknown_name(machines: Machines) -> None:
    keys = machines.folder / "keys-lab2"
    keys.rename(f"{keys}.not")
    machines.stop_sshd("lab1")
    try:
        assert refused(machines, "lab0", "lab1", "lab2", "lab3", "lab9") == {
            **READY,
            "lab1": "no ssh server answers: `sudo apt install openssh-server` on lab1",
            "lab2": "it does not admit you without a password: `ssh-copy-id lab2`",
            "lab9": "its name is unknown here: `echo ADDRESS lab9 | sudo tee -a /etc/hosts`",
        }
    finally:
        Path(f"{keys}.not").rename(keys)
        machines.start_sshd("lab1")


def test_one_with_another_mpi_one_without_the_lab_and_one_without_the_folder(machines: Machines) -> None:
    stub, package = machines.folder / "mpi4py", Path(mpi4py.__file__).parent
    stub.mkdir()
    (stub / "__init__.py").write_text("class rc: pass\n")
    (stub / "MPI.py").write_text("def get_vendor(): return 'Other MPI', (1, 2, 3)\n")
    machines.on("lab1", shlex.join(["mount", "--bind", str(stub), str(package)]))
    machines.on("lab2", f"mount -t tmpfs tmpfs {shlex.quote(sys.prefix)}")
    machines.on("lab3", f"mount -t tmpfs tmpfs {machines.work}")
    try:
        said = refused(machines)
    finally:
        machines.on("lab1", shlex.join(["umount", str(package)]))
        machines.on("lab2", f"umount {shlex.quote(sys.prefix)}")
        machines.on("lab3", f"umount {machines.work}")
    copies = {host: shlex.join([f"{ssh.ROOT}/", f"{host}:{ssh.ROOT}/"]) for host in ("lab1", "lab2")}
    assert re.fullmatch(
        rf"it has Other MPI 1\.2\.3 instead of .*: `rsync -a --delete {re.escape(copies['lab1'])}.*`",
        said["lab1"],
    )
    assert said["lab2"].startswith(f"it has no lab at {sys.prefix}: `rsync -a --delete {copies['lab2']}")
    program = machines.work / "never.py"
    assert said["lab3"] == f"it has no {program}: `scp {program} lab3:{program}`"
    assert said["lab0"] == "ready"


def test_a_firewall_between_two_machines(machines: Machines) -> None:
    address = hosts.running().hosts[2].address
    machines.on("lab1", f"ip route add prohibit {address}")
    try:
        assert refused(machines) == {
            **READY,
            "lab1": "lab2 cannot connect to its ports: `ssh -t lab1 sudo ufw allow from 10.77.0.0/24`",
            "lab2": "lab1 cannot connect to its ports: `ssh -t lab2 sudo ufw allow from 10.77.0.0/24`",
        }
    finally:
        machines.on("lab1", f"ip route del prohibit {address}")


def test_host_files_and_the_hosts_of_ranks(tmp_path: Path) -> None:
    path = tmp_path / "hosts.txt"
    for text, message in (
        ("lab0 max_slots=2", "line 1: expected a host such as `lab1 slots=2` or `lab1:2`, got 'lab0 max_sl"),
        ("lab0\n\n-oProxyCommand=x", "line 3: expected a host"),
        ("lab0:1\nlab1 slots=2", "has 3 slots for 4 ranks. Add lines such as"),
    ):
        path.write_text(text)
        with pytest.raises(ClusterError, match=message):
            ssh.hosts_of_ranks(path, 4)
    with pytest.raises(ClusterError, match="cannot read the host file"):
        ssh.hosts_of_ranks(tmp_path / "none.txt", None)
    path.write_text("lab0 slots = 2\nlab1:1 # a comment\nlab0\n")
    assert ssh.hosts_of_ranks(path, None) == ["lab0", "lab0", "lab0", "lab1"]
    assert ssh.hosts_of_ranks(path, 2) == ["lab0", "lab0"]


PROGRAM = """import json, os, socket, sys
from mpi4py import MPI

comm = MPI.COMM_WORLD
said = comm.gather([socket.gethostname(), os.getcwd(), sys.argv[1], os.environ.get("SECRET", "")])
if comm.rank == 0:
    print(json.dumps(said))
"""


def test_a_program_and_an_environment_whose_paths_have_spaces(machines: Machines, spaced: Path) -> None:
    program = machines.work / "my program.py"
    program.write_text(PROGRAM)
    line = [spaced, "-m", "labkit", "run", "--hosts", machines.host_file(), program, "a b"]
    said = json.loads(machines.run(*line, SECRET="of this machine").splitlines()[-1])
    assert [row[:3] for row in said] == [[f"lab{rank}", str(machines.work), "a b"] for rank in range(4)]
    assert [row[3] for row in said[1:]] == ["", "", ""]


def test_a_folder_for_sockets_is_private_and_has_a_short_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        longest = Path(name, "x" * (ssh.LONGEST_FOLDER - len(name) - 1))
        too_long, spaced, public = Path(f"{longest}x"), Path(name, "a b"), Path(name, "p")
        for folder in longest, too_long, spaced:
            folder.mkdir(mode=0o700)
        public.mkdir(mode=0o755)
        shared = {}
        for folder in longest, too_long, spaced, public, Path(name, "none"), Path():
            monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
            shared[folder] = bool(ssh.options_to_share())
        monkeypatch.delenv("XDG_RUNTIME_DIR")
        assert ssh.options_to_share() == []
        assert [folder for folder, is_shared in shared.items() if is_shared] == [longest]


SHORT = """from mpi4py import MPI
MPI.COMM_WORLD.Barrier()
"""


@pytest.mark.parametrize("is_shared", [True, False])
def test_a_job_connects_once_to_a_machine_if_it_can_share_the_connection(
    machines: Machines, is_shared: bool
) -> None:
    program = machines.work / "short.py"
    program.write_text(SHORT)
    before = machines.connections("lab1")
    variables = {} if is_shared else {"XDG_RUNTIME_DIR": ""}
    machines.run(*LABKIT, "run", "--hosts", machines.host_file(), program, **variables)
    of_mpi = 0 if is_shared and is_mpich(launch.mpiexec()) else 1
    assert machines.connections("lab1") - before == (1 if is_shared else 2) + of_mpi
    if is_shared:
        wait_until(lambda: not machines.programs(), "the connections have ended", ssh.UNUSED_S + 30)


def test_the_end_of_a_job_leaves_the_connections_of_another_one(machines: Machines) -> None:
    """A connection belongs to the processes of a job, and its supervisor ends them all."""
    endless, short, path = machines.work / "endless.py", machines.work / "short.py", machines.host_file()
    endless.write_text(ENDLESS)
    short.write_text(SHORT)
    going = machines.work / "going-too"
    jobs = []
    for _ in range(2):
        going.unlink(missing_ok=True)
        jobs.append(machines.start(*supervised(), *LABKIT, "run", "--hosts", path, endless))
        wait_until(going.exists, "the ranks compute")
    first, second = jobs
    first.send_signal(signal.SIGTERM)
    first.communicate(timeout=DEADLINE_S)
    machines.run(*LABKIT, "run", "--hosts", path, short)  # meanwhile, the second job would end, too
    assert second.poll() is None
    second.send_signal(signal.SIGTERM)
    output, _ = second.communicate(timeout=DEADLINE_S)
    assert "no longer answers" not in output


def test_a_look_that_hangs_ends_after_its_time(machines: Machines) -> None:
    """A shared connection holds the pipe of its messages until the command on the machine ends."""
    hang_s = 3 * ssh.LOOK_S
    stub, package = machines.folder / "hanging", Path(mpi4py.__file__).parent
    stub.mkdir()
    (stub / "__init__.py").write_text(f"import time; time.sleep({hang_s})\n")
    machines.on("lab1", shlex.join(["mount", "--bind", str(stub), str(package)]))
    start = time.monotonic()
    try:
        said = refused(machines)
        assert time.monotonic() - start < hang_s
        assert said["lab1"] == "it does not answer: `ping lab1`"
    finally:
        machines.on("lab1", shlex.join(["umount", str(package)]))
        for pid in processes_on(hosts.running()):
            with suppress(psutil.Error):
                process = psutil.Process(pid)
                if "--look" in process.cmdline():
                    process.kill()


def test_a_training_run_gives_the_weights_of_one_machine(machines: Machines) -> None:
    """The other machines have neither the host file nor the folder of the run that is to be resumed."""
    options = ("--model", "mlp", "--data", "digits", "--epochs", "1", "--iterations", "20")
    on_hosts = (*LABKIT, "train", "--hosts", machines.host_file())
    others = "lab1", "lab2", "lab3"
    for host in others:
        machines.on(host, f"mount -t tmpfs tmpfs {machines.work}")
    try:
        machines.run(*on_hosts, *options, "--checkpoint-every", "5", "--out", "four")
        assert "there is nothing to resume" in machines.run(*on_hosts, "--resume", "four")
        machines.on("lab1", f"touch {machines.work}/file")  # rank 0 has none, and so finds no error
        said = machines.run(*on_hosts, *options, "--out", "file", code=2)
        assert "expected a folder or nothing" in said, said
    finally:
        for host in others:
            machines.on(host, f"umount -l {machines.work}")  # a sweeper may still be there for a moment
    record = json.loads((machines.work / "four/run.json").read_text())
    assert record["hosts"] == ["lab0", "lab1", "lab2", "lab3"]
    here = {**launch.settings(), **launch.ONE_MACHINE}
    machines.run(launch.mpiexec(), "-n", "4", *LABKIT, "train", *options, "--out", "one", **here)
    four, one = (np.load(machines.work / run / "model.npz") for run in ("four", "one"))
    assert all(np.allclose(four[name], one[name], rtol=1e-5, atol=1e-7) for name in one.files)


SESSION = """import json, sys
from IPython.testing.globalipapp import start_ipython

shell = start_ipython()
for line in sys.stdin:
    shell.run_cell(json.loads(line))
    print("CELL ENDED", flush=True)
"""
CONNECT = "from labkit.cluster import connect\nrc = connect(4, profile='ssh'{})"
LOOP = """%%px
import time
x = np.ones(1000)
if rank == 0: open("going", "w").close()
while True:
    comm.Allreduce(x.copy(), x)
    time.sleep(0.05)
"""
ENDLESS = """import time
from mpi4py import MPI
from mpiwatch.processes import sweep_after_this_job

sweep_after_this_job()  # as engines and the ranks of labkit's commands do
MPI.COMM_WORLD.Barrier()
if MPI.COMM_WORLD.rank == 0: open("going-too", "w").close()
while True:
    request = MPI.COMM_WORLD.Ibarrier()
    while not request.Test():  # an unwatched rank would take a core until the loss is noticed
        time.sleep(0.05)
    time.sleep(0.1)
"""
# In the switch's network: a line when it begins, then all frames until standard input ends.
SNIFFER = """import select, socket, sys
from labkit.hosts.namespaces import enter
enter(int(sys.argv[1]))
card = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
print("begun", flush=True)
while sys.stdin not in (ready := select.select([card, sys.stdin], [], [])[0]):
    sys.stdout.buffer.write(card.recv(1 << 16))
"""


class Session:
    """A program on lab0 that runs cells as a notebook does."""

    def __init__(self, machines: Machines) -> None:
        program = machines.folder / "session.py"
        program.write_text(SESSION)
        self.job = machines.start(sys.executable, program)

    def send(self, cell: str) -> None:
        assert self.job.stdin
        self.job.stdin.write(json.dumps(cell) + "\n")
        self.job.stdin.flush()

    def output(self) -> str:
        """Return what the cell has printed once it has ended."""
        lines = []
        assert self.job.stdout
        while (line := self.job.stdout.readline()) not in ("CELL ENDED\n", ""):
            lines.append(line)
        return "".join(lines)

    def run(self, cell: str) -> str:
        self.send(cell)
        return self.output()


@pytest.fixture
def session(machines: Machines) -> Iterator[Session]:
    session = Session(machines)
    with session.job as job:
        yield session
        job.kill()


def test_engines_on_machines(machines: Machines, session: Session) -> None:
    # One machine has no such profile folder: machines need not share a home folder.
    (machines.folder / "ipython").mkdir(exist_ok=True)
    machines.on("lab2", f"mount -t tmpfs tmpfs {machines.folder}/ipython")
    path = machines.host_file()
    bad = machines.work / "bad.txt"
    bad.write_text("lab0\nlab1\nlab2\nlab9\n")
    output = session.run(CONNECT.format(f", hosts={str(bad)!r}"))
    assert "ClusterError: Nothing was started" in output and "\nlab9: its name is unknown" in output
    assert not [line for line in machines.programs() if "labkit.cluster.adapter.controller" in line]

    output = session.run(CONNECT.format(f", hosts={str(path)!r}"))
    assert "4 ranks, one MPI world" in output and "on lab0, lab1, lab2, lab3" in output
    check_that_strangers_read_nothing(machines, session)

    output = session.run("%%px\nimport os\nif rank == 1: os._exit(3)\ncomm.Barrier()")
    assert "RankDied: rank 1 called os._exit(3)" in output
    assert "this notebook's cluster" in session.run(CONNECT.format(""))

    program = machines.work / "endless.py"
    program.write_text(ENDLESS)
    for going in machines.work.glob("going*"):
        going.unlink()
    session.send(LOOP)
    with machines.start(*LABKIT, "run", "--hosts", path, program) as job:
        wait_until(lambda: len(list(machines.work.glob("going*"))) == 2, "both programs compute")
        machines.on("lab3", f"ip link set {CARD} down")
        try:
            output, _ = job.communicate(timeout=DEADLINE_S)
            assert "lab3 with rank 3 no longer answers ssh: all ranks were ended." in output
            output = session.output()  # of the first to notice: ssh, or the ranks' watchdogs
            assert "lab3 with rank 3 no longer answers ssh" in output or "rank 3 (host lab3)" in output
        finally:
            machines.on("lab3", f"ip link set {CARD} up")
            machines.on("lab2", f"umount {machines.folder}/ipython")


# Each step of the watch over the machines, with the kinds of fault that it can have. With errors each time, a
# machine's loss cannot be noticed, and mpiexec cannot be ended.
FAULTS_OF_THE_WATCH = [
    Fault("ssh", "labkit.cluster.places.ssh", "HostWatch", step, kind)
    for step in ssh.HostWatch.STEPS
    for kind in ("often", "delay")
]
MOST_IMPORTANT = "gone_hosts", "give_key", "signal_mpiexec"


@pytest.mark.parametrize(
    "fault",
    [
        fault if fault.kind == "often" and fault.step in MOST_IMPORTANT else thorough(fault)
        for fault in FAULTS_OF_THE_WATCH
    ],
    ids=str,
)
def test_a_lost_machine_ends_the_ranks_while_a_step_of_the_watch_fails(
    machines: Machines, tmp_path: Path, fault: Fault
) -> None:
    """The watch also brings the controller's key to a machine that does not share the profile folder."""
    program, calls, profile = machines.work / "endless.py", tmp_path / "calls", tmp_path / "profile"
    program.write_text(ENDLESS)
    (profile / "security").mkdir(parents=True)
    (profile / "log").mkdir()
    machines.on("lab2", f"mount -t tmpfs tmpfs {profile}")
    variables = {
        **{"PYTHONPATH": str(ssh.ROOT), FAULT: json.dumps(fault._asdict()), CALLS: str(calls)},
        **{PROFILE_DIR: str(profile), CLUSTER_ID: "", ssh.FILE: str(machines.host_file())},
    }
    going = machines.work / "going-too"
    going.unlink(missing_ok=True)
    words = [sys.executable, PROGRAMS / "faulty.py", "ssh", "-n", "4", sys.executable, program]
    try:
        with machines.start(*words, **variables) as job:
            key = Path(cluster_files(str(profile), "")["engine"])
            wait_until(going.exists, "the ranks compute")
            key.write_text("a key")
            hosts_file = shlex.quote(str(key))
            machines.on("lab2", f"timeout 60 sh -c 'until test -e {hosts_file}; do sleep 0.1; done'")
            machines.on("lab2", f"test \"$(cat {hosts_file})\" = 'a key'")
            machines.on("lab3", f"ip link set {CARD} down")
            try:
                output, _ = job.communicate(timeout=DEADLINE_S)
            finally:
                machines.on("lab3", f"ip link set {CARD} up")
        assert "lab3 with rank 3 no longer answers ssh: all ranks were ended." in output
        assert calls.exists(), "the step was not called"
    finally:
        machines.on("lab2", f"umount {profile}")


def check_that_strangers_read_nothing(machines: Machines, session: Session) -> None:
    """Watch the network during a cell, then talk to the controller's ports without its key."""
    line = [sys.executable, "-c", SNIFFER, str(hosts.running().holder)]
    with subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as sniffer:
        assert sniffer.stdout and sniffer.stdout.readline() == b"begun\n"
        output = session.run("%%px\nword = 'marmalade'[::-1]\nprint(word, comm.bcast('between ' + 'ranks'))")
        seen, _ = sniffer.communicate()
    assert output == "[ranks 0–3] edalamram between ranks\n"
    assert b"between ranks" in seen  # MPI's messages are not encrypted
    assert b"marmalade" not in seen and b"edalamram" not in seen

    (file,) = (machines.folder / "ipython/profile_ssh/security").glob("*-engine.json")
    controller = json.loads(file.read_text())
    address = controller["interface"].removeprefix("tcp://")
    assert address == hosts.running().hosts[0].address
    ports = [
        str(port) for value in controller.values() for port in (value if isinstance(value, list) else [value])
    ]
    ports = [port for port in ports if port.isdigit()]
    stranger = shlex.join([sys.executable, "-c", STRANGER, address, *ports])
    agent = machines.env[FOLDER] + "/agent"
    asked = subprocess.run([agent, "lab3", stranger], capture_output=True, text=True, check=True)
    assert asked.stdout == f"asked {len(ports)}\n" and len(ports) > 4


def test_ipcluster_as_typed_with_the_host_file_in_its_place(machines: Machines, session: Session) -> None:
    shutil.rmtree(machines.folder / "ipython", ignore_errors=True)
    (machines.folder / "allreduce-lab").mkdir()
    machines.host_file().rename(machines.folder / "allreduce-lab/hosts.txt")
    with machines.start(
        sys.executable, "-m", "ipyparallel.cluster", "start", "--profile=ssh", "-n", "4"
    ) as job:
        try:
            wait_until(
                lambda: any("labkit.cluster.adapter.engine" in line for line in machines.programs()),
                "engines",
            )
            output = session.run(CONNECT.format(""))
            assert "on lab0, lab1, lab2, lab3; connected to the running cluster" in output
        finally:
            job.send_signal(signal.SIGINT)
