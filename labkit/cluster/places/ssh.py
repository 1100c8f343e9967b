"""The profile `ssh`: start ranks on the machines of a host file, after a look at each of them.

    python -m labkit.cluster.places.ssh -n RANKS PROGRAM …

replaces `mpiexec`. MPI's own launcher starts the ranks, by ssh. With `--look FOLDER [FILE …]` in place of
`-n`, this program runs on each machine beforehand. It prints what is there in one line of JSON, reads the
addresses of the other machines, and prints which of them it cannot reach.
"""

from __future__ import annotations

import hashlib
import ipaddress
import json
import os
import re
import secrets
import shlex
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import psutil

from labkit import __version__
from labkit.cluster.adapter.files import PROFILE_DIR
from labkit.cluster.places.errors import ClusterError
from labkit.cluster.places.files import files_of_this_cluster
from labkit.cluster.places.place import Engines, Place
from labkit.guard import Guard
from labkit.hosts.mpi import command, unquoted_prefix
from labkit.text import counted, ranks_phrase
from mpiwatch import launch
from mpiwatch.processes import die_with_parent, end_signal

if TYPE_CHECKING:
    import ipyparallel as ipp

FILE = "LABKIT_HOST_FILE"  # environment variable with the path of the host file
MACHINES = "LABKIT_MACHINES"  # environment variable with the result of the last look, for the launcher
LOCAL, THIS = "127.0.0.1", "this machine"
LOOK_S = 20.0  # for all machines to answer, at the same time
REACH_S = 3.0  # for one machine to reach another
FRESH_S = 30.0  # a look is repeated for ranks that start later
ROOT = Path(__file__).parents[3]
FOLDERS = ROOT, Path(sys.prefix)  # the lab and its environment; one may be in the other
END_S = 2.0  # from SIGTERM to SIGKILL
POLL_S = 0.2
SSH = (
    *("ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=5"),
    *("-o", "ServerAliveInterval=3", "-o", "ServerAliveCountMax=3"),  # notice a silent host after 9 s
)
UNUSED_S = 10  # until a connection that no session uses any more ends
# The longest path of a folder for sockets, in characters: a socket's path may have 104, and its name has 72.
LONGEST_FOLDER = 32
# What ssh prints → what is wrong, and how to mend it.
FAULTS = {
    "resolve hostname": "its name is unknown here: `echo ADDRESS {host} | sudo tee -a /etc/hosts`",
    "verification failed": "its host key is not known here: `ssh {host} true`",
    r"Permission denied \(": "it does not admit you without a password: `ssh-copy-id {host}`",
    "Connection refused": "no ssh server answers: `sudo apt install openssh-server` on {host}",
    "timed out|No route|unreachable": "it does not answer: `ping {host}`",
    "No module named|No such file|not found": "it has no lab at {root}: `{copy}`",
}
# The variables that ranks on other machines get, by their first letters. MPICH's launcher sends them
# unencrypted, so secrets of this process must not be among them.
PASSED = (
    *("PATH", "LABKIT_", "MPIWATCH_", "IPP_", "IPYTHONDIR", "OMP_NUM", "OPENBLAS_NUM", "MKL_NUM", "PYTHON"),
    *("MPIR_", "MPICH_", "UCX_", "FI_", "OMPI_", "PRTE_", "PMIX_"),
)


def host_file(chosen: str | None = None) -> Path:
    """Return the path of the host file: as chosen, else from the environment, else the user's own."""
    from platformdirs import user_config_path  # noqa: PLC0415  (slow to import, and a look does not need it)

    return Path(chosen or os.environ.get(FILE) or user_config_path("allreduce-lab") / "hosts.txt").absolute()


def hosts_of_ranks(path: Path, ranks: int | None) -> list[str]:
    """Return the host of each rank, by default one rank for each slot of a host file.

    A line is of MPICH's format or Open MPI's. Raise ClusterError if it is not, if the file cannot be read, or
    if it has fewer slots than ranks.
    """
    names: list[str] = []
    try:
        lines = path.read_text().splitlines()
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", "") or error
        raise ClusterError(
            f"cannot read the host file {path}: {why}. Write a line such as `lab1 slots=2` for each machine "
            f"there, or name another file: --hosts, hosts=…, or {FILE}."
        ) from None
    for number, line in enumerate(lines, 1):
        words = line.partition("#")[0].strip()
        match = re.fullmatch(r"([A-Za-z0-9][\w.-]*)(?:(?::|\s+slots\s*=\s*)([1-9]\d{0,3}))?", words)
        if match:
            names += [match[1]] * int(match[2] or 1)
        elif words:
            raise ClusterError(
                f"{path}, line {number}: expected a host such as `lab1 slots=2` or `lab1:2`, got {words!r}. "
                f"A user's name or a port belongs in ~/.ssh/config."
            )
    if not names or len(names) < (ranks or 0):
        raise ClusterError(
            f"{path} has {counted(len(names), 'slot')} for {counted(ranks or 1, 'rank')}. Add lines such as "
            f"`lab1 slots=2`, or raise their numbers."
        )
    together = sorted(names, key=names.index)  # all ranks of a host, as MPI starts them
    return together[:ranks]


def options_to_share() -> list[str]:
    """Return the options with which the sessions of a new job share one ssh connection to each machine.

    A look, the watch over the machines and mpiexec connect to each machine, one soon after the other. Each
    connection that they share saves time. A job has connections of its own: when a job ends, its supervisor
    also ends the processes that keep them. Return nothing if this user has no private folder for the
    connections' sockets.
    """
    folder = os.environ.get("XDG_RUNTIME_DIR", "")
    if len(folder) > LONGEST_FOLDER or not re.fullmatch(r"/[\w./-]+", folder):
        return []
    try:
        status = os.stat(folder)
    except OSError:
        return []
    if status.st_uid != os.getuid() or stat.S_IMODE(status.st_mode) != 0o700:
        return []  # another user could wait for the engines' key at the socket
    remove_dead_sockets(folder)
    return [f"-oControlPath={folder}/labkit-{secrets.token_hex(3)}-%C"]


def remove_dead_sockets(folder: str) -> None:
    """Remove the sockets of connections that were killed with their jobs."""
    for path in Path(folder).glob("labkit-*"):
        if path.suffix:  # ssh is about to listen there, and will rename it
            continue
        with socket.socket(socket.AF_UNIX) as probe:
            try:
                probe.connect(str(path))
            except ConnectionRefusedError:
                path.unlink(missing_ok=True)
            except OSError:  # it has just been removed, or is busy
                pass


def ssh_line(host: str, command: str, share: Sequence[str]) -> list[str]:
    """Return the command line that runs a shell's command on a host, over the job's connection, if any."""
    keep = ["-oControlMaster=auto", f"-oControlPersist={UNUSED_S}"] if share else []
    return [*SSH, *share, *keep, host, command]


class EnginesBySsh(Engines):
    """Engines that this module has started. The file `place` holds the host of each rank."""

    are_on_several_machines = True

    def machines(self) -> list[str]:
        with suppress(OSError, ValueError):
            return list(json.loads(self.file.read_text()))
        return []

    def cause_of_end(self, hosts: Mapping[int, str]) -> str:
        return lost(self.machines())


class MachinesBySsh(Place):
    """The machines of a host file."""

    engines = EnginesBySsh

    def before_start(self, n: int, hosts: str | None) -> dict[str, str]:
        return {FILE: str(host_file(hosts))} if hosts else {}

    def machines_of(self, n: int, hosts: str | None) -> list[str]:
        return hosts_of_ranks(host_file(hosts), n) if hosts else []


PLACE = MachinesBySsh()


def before_controller(cluster: ipp.Cluster) -> list[str]:
    """Look at the hosts of a cluster that is to start; return the options of its controller.

    The launcher of its engines gets the result. Raise ClusterError if a host cannot run ranks.
    """
    from labkit.cluster.adapter import launchers  # noqa: PLC0415  (a look needs no ipyparallel)

    environment = launchers.environment_of_engines(cluster)
    machines = last_look({**os.environ, **environment}, cluster.n)
    environment |= {MACHINES: json.dumps(machines), launch.SEVERAL_MACHINES: "1"}
    # Engines connect from other machines, and notebooks from this one.
    return [f"--IPController.engine_ip={machines['where']['address']}"]


def look(folder: str, *files: str) -> None:
    """Print what this machine has; read the other machines' addresses, and print which it cannot reach."""
    import mpi4py  # noqa: PLC0415  (a notebook's kernel loads no MPI)

    mpi4py.rc.initialize = False
    from mpi4py import MPI  # noqa: PLC0415

    name, version = MPI.get_vendor()
    code = hashlib.sha256()
    packages = ROOT / "labkit", Path(launch.__file__).parent
    for path in sorted(path for package in packages for path in package.rglob("*.py")):
        code.update(path.read_bytes())
    client, _, address, _ = (os.environ.get("SSH_CONNECTION") or f"{LOCAL} - {LOCAL} -").split()
    description: dict[str, Any] = {
        "lab": f"the lab {__version__} ({code.hexdigest()[:7]})",
        "mpi": f"{name} {'.'.join(map(str, version))}",
        "missing": [path for path in (folder, *files) if not os.path.exists(path)],
        "client": client,  # this machine's look has been started from there
        **network_of(address),
    }

    def reaches(other: Sequence[Any]) -> bool:
        with suppress(OSError):
            socket.create_connection(tuple(other[1:]), timeout=REACH_S).close()
            return True
        return False

    with socket.create_server(("", 0)) as listener:
        description["port"] = listener.getsockname()[1]
        print(json.dumps(description), flush=True)
        others = json.loads(sys.stdin.readline() or "[]")
        with ThreadPoolExecutor(len(others) or 1) as pool:
            reached = zip(others, pool.map(reaches, others), strict=True)
            print(json.dumps([other[0] for other, reaches in reached if not reaches]), flush=True)
        sys.stdin.read()  # the others may not have tried yet


def network_of(address: str) -> dict[str, str]:
    """Return an address of this machine with its network card, and its network such as 10.0.0.0/24."""
    for card, addresses_of_card in psutil.net_if_addrs().items():
        for of_card in addresses_of_card:
            if of_card.address == address and of_card.netmask:
                network = ipaddress.ip_network(f"{address}/{of_card.netmask}", strict=False)
                return {"address": address, "card": card, "network": str(network)}
    return {"address": address, "card": "", "network": ""}


def is_here(host: str) -> bool:
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind((host, 0))
        return True
    return False


class Look:
    """The look at one machine, from its start until it has described the machine and reached the others."""

    def __init__(self, command: Sequence[str]) -> None:
        # Messages go to a file, because a shared connection keeps a pipe open while the command hangs.
        self.messages = tempfile.TemporaryFile("w+")  # noqa: SIM115  (`end` closes it)
        environment = {name: value for name, value in os.environ.items() if name != "SSH_CONNECTION"}
        self.process = subprocess.Popen(
            command,
            env=environment,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.messages,
        )

    def answer(self) -> Any:
        """Return the next line of JSON; if there is none, the error messages, a text."""
        for line in self.process.stdout or ():
            if line.startswith(("{", "[")):
                with suppress(ValueError):  # a login script may print, too
                    return json.loads(line)
        self.messages.seek(0)
        return self.messages.read().strip()

    def tell(self, others: Sequence[Sequence[Any]]) -> None:
        """Send the names, addresses and ports of the other machines."""
        with suppress(OSError):  # it has ended: it will not answer
            self.process.stdin.write(f"{json.dumps(others)}\n")  # type: ignore[union-attr]
            self.process.stdin.flush()  # type: ignore[union-attr]

    def end(self) -> None:
        """End the look, and close its files."""
        self.process.kill()
        self.process.wait()
        for file in self.process.stdin, self.process.stdout, self.messages:
            with suppress(OSError):  # what it has not read
                file.close()  # type: ignore[union-attr]


def look_at(
    hosts: Sequence[str], files: Sequence[str] = (), share: Sequence[str] = ()
) -> dict[str, dict[str, Any]]:
    """Return what each host has, and this machine (""). Raise ClusterError if a host cannot run ranks.

    The message has a line for each host: what is missing, and the command that mends it. `files`: the paths
    that the ranks need, besides this folder. `share`: see options_to_share.
    """
    command = [sys.executable, "-I", "-m", "labkit.cluster.places.ssh", "--look", os.getcwd(), *files]
    with ThreadPoolExecutor(len(hosts)) as pool:  # a name server may take seconds to answer
        here = [host for host, is_local in zip(hosts, pool.map(is_here, hosts), strict=True) if is_local]
    lines = {host: ssh_line(host, shlex.join(command), share) for host in hosts if host not in here}
    looks = {host: Look(line) for host, line in {"": command, **lines}.items()}

    def kill_all() -> None:
        for look in looks.values():
            look.process.kill()

    deadline = threading.Timer(LOOK_S, kill_all)
    deadline.start()
    try:
        with ThreadPoolExecutor(len(looks)) as pool:
            answers = dict(zip(looks, pool.map(Look.answer, looks.values()), strict=True))
            faults = {host: _faults(host, answer, answers[""]) for host, answer in answers.items()}
            if not any(faults.values()):
                remote = next((answer for host, answer in answers.items() if host), None)
                answers[""].update(network_of(remote["client"] if remote else LOCAL))
                for host, look in looks.items():
                    look.tell(
                        [[name, it["address"], it["port"]] for name, it in answers.items() if name != host]
                    )
                missed = dict(zip(looks, pool.map(Look.answer, looks.values()), strict=True))
                _add_faults_of_reach(faults, missed, answers)
    finally:
        deadline.cancel()
        for look in looks.values():
            look.end()
    if any(faults.values()):
        shown = {host: faults[host if host in looks else ""] for host in hosts}
        if not here:
            shown[THIS] = faults[""]
        rows = [f"{host}: {'; '.join(texts) or 'ready'}" for host, texts in shown.items()]
        raise ClusterError("\n".join(["Nothing was started, because a machine is not ready.", *rows]))
    return {**answers, **{host: answers[""] for host in here}}


def _add_faults_of_reach(
    faults: dict[str, list[str]], missed: Mapping[str, Any], answers: Mapping[str, Any]
) -> None:
    """Add which machines cannot be reached from which, to the faults of those that cannot be reached.

    `missed`: for each machine, the names of the machines that it cannot reach, or its error message.
    """
    for host, names in missed.items():
        unreached = names if isinstance(names, list) else [host]
        for other in unreached:
            mend = f"sudo ufw allow from {answers[other]['network']}"
            if other:
                mend = f"ssh -t {other} {mend}"  # sudo asks for a password
            faults[other].append(f"{host or THIS} cannot connect to its ports: `{mend}`")


def _faults(host: str, theirs: Any, ours: Any) -> list[str]:
    """Return what a machine lacks, each with the command that mends it."""
    if not isinstance(ours, dict):
        return [] if host else [str(ours)]
    folders = [folder for folder, other in (FOLDERS, FOLDERS[::-1]) if other not in folder.parents]
    copies = [
        shlex.join(["rsync", "-a", "--delete", f"{folder}/", f"{host}:{folder}/"]) for folder in folders
    ]
    copy = " && ".join(copies)
    if not isinstance(theirs, dict):
        text = str(theirs) or f"timed out after {LOOK_S:.0f} s"
        fault = next((fault for pattern, fault in FAULTS.items() if re.search(pattern, text)), "")
        return [fault.format(host=host, root=sys.prefix, copy=copy) or f"ssh says: {text.splitlines()[-1]}"]
    faults = [
        f"it has {theirs[part]} instead of {ours[part]}: `{copy}`"
        for part in ("lab", "mpi")
        if theirs[part] != ours[part]
    ]
    for path in map(shlex.quote, theirs["missing"]):
        make = path == shlex.quote(os.getcwd())
        mend = f"ssh {host} mkdir -p {path}" if make else f"scp {path} {host}:{path}"
        faults.append(f"it has no {path}: `{mend}`")
    return faults


def prepare(path: Path, ranks: int | None, files: Sequence[str] = ()) -> dict[str, Any]:
    """Look at the hosts for this number of ranks; return what the launcher needs. Raise ClusterError."""
    hosts = hosts_of_ranks(path, ranks)
    share = options_to_share()
    seen = look_at(list(dict.fromkeys(hosts)), files, share)
    cards = sorted({machine["card"] for machine in seen.values()} - {""})
    networks = sorted({machine["network"] for machine in seen.values()} - {""})
    settings = {
        "UCX_NET_DEVICES": ",".join(cards),
        **({"FI_TCP_IFACE": cards[0]} if len(cards) == 1 else {}),
        "OMPI_MCA_btl_tcp_if_include": ",".join(networks),
        "PRTE_MCA_prte_if_include": ",".join(networks),
        launch.ADDRESSES: ",".join(sorted({machine["address"] for machine in seen.values()})),
    }
    where = {"address": seen[""]["address"], "card": seen[""]["card"]}
    return {
        **{"file": str(path), "hosts": hosts, "time": time.time()},
        **{"where": where, "settings": settings, "share": share},
    }


def last_look(environment: Mapping[str, str], ranks: int) -> dict[str, Any]:
    """Return what `prepare` has returned for these ranks within FRESH_S, or else look at the hosts now."""
    machines: dict[str, Any] = json.loads(environment.get(MACHINES, "{}"))
    if machines.get("time", 0.0) > time.time() - FRESH_S and len(machines["hosts"]) == ranks:
        return machines
    return prepare(host_file(machines.get("file") or environment.get(FILE)), ranks)


def on_others(
    hosts: Sequence[str], command: str, share: Sequence[str] = ()
) -> dict[str, subprocess.Popen[bytes]]:
    """Start a shell's command on each of the hosts except this machine; return the processes of ssh."""
    pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout"), subprocess.PIPE)
    others = [host for host in dict.fromkeys(hosts) if not is_here(host)]
    return {
        host: subprocess.Popen(ssh_line(host, command, share), stderr=subprocess.DEVNULL, **pipes)
        for host in others
    }


def lost(hosts: Sequence[str]) -> str:
    """Return a sentence about the ranks' hosts that no longer answer; empty if all of them do."""
    connections = on_others(hosts, "true")
    return sentence([host for host, connection in connections.items() if connection.wait()], hosts)


def sentence(gone: Sequence[str], hosts: Sequence[str]) -> str:
    """Return a sentence about hosts that no longer answer, and their ranks; empty if there are none."""
    ranks = [rank for rank, host in enumerate(hosts) if host in gone]
    verb = "answers" if len(gone) == 1 else "answer"
    return f"{', '.join(gone)} with {ranks_phrase(ranks)} no longer {verb} ssh" if gone else ""


class HostWatch:
    """Ends mpiexec if one of the ranks' hosts disappears; mpiexec itself would wait for it, for minutes.

    Gives each host the file by which engines find their controller, over ssh, because it holds the secret
    key. The process of the watch ends with mpiexec, and its connections with this process.
    """

    STEPS = "write_hosts", "give_key", "gone_hosts", "say", "signal_mpiexec"

    def __init__(self, mpiexec: int, hosts: Sequence[str], share: Sequence[str]) -> None:
        self.mpiexec = mpiexec
        self.hosts = hosts
        self.share = share
        self.files = files_of_this_cluster()
        self.is_cluster = PROFILE_DIR in os.environ
        self.guard = Guard("the watch over the machines")
        self.connections: dict[str, subprocess.Popen[bytes]] = {}
        self.without_key: list[subprocess.Popen[bytes]] = []  # connections to hosts that wait for the key

    def connect(self) -> None:
        """Connect to each host, and return when none has an old file."""
        script = "echo ready; exec cat"
        if self.is_cluster:
            self.guard.insist("write_hosts", self.write_hosts)
            folders = shlex.join(os.path.dirname(self.files[name]) for name in ("engine", "place"))
            engine = self.files["engine"]
            mark, engine, part = map(shlex.quote, (self.files["place"], engine, f"{engine}.part"))
            script = (  # a host that sees the file `place` shares the folder
                f"umask 077; test -e {mark} || {{ mkdir -p {folders}; rm -f {engine}; }}; echo ready; "
                f"read size; test -e {mark} || {{ head -c $size > {part}; mv {part} {engine}; }}; "
                f"exec cat >/dev/null"
            )
        self.connections = on_others(self.hosts, shlex.join(["sh", "-c", script]), self.share)
        for connection in self.connections.values():
            for line in connection.stdout or ():  # a login script may print, too
                if line == b"ready\n":
                    break
        if self.is_cluster:
            self.without_key = list(self.connections.values())

    def watch_until_loss(self) -> NoReturn:
        """Watch until a host has disappeared; then end mpiexec."""
        gone: list[str] = []
        while not gone:
            self.guard.do("give_key", self.give_key)
            gone = self.guard.do("gone_hosts", self.gone_hosts) or []
            time.sleep(POLL_S)
        self.guard.insist("say", self.say, gone)
        for signum in (signal.SIGTERM, signal.SIGKILL):
            self.guard.insist("signal_mpiexec", self.signal_mpiexec, signum)
            time.sleep(END_S)
        os._exit(0)

    def write_hosts(self) -> None:
        """Write the ranks' hosts for the notebook."""
        Path(self.files["place"]).write_text(json.dumps(self.hosts))

    def give_key(self) -> None:
        """Send the file of the engines to the hosts that wait for it, once the controller has written it."""
        if not self.without_key or not os.path.exists(self.files["engine"]):
            return
        key = Path(self.files["engine"]).read_bytes()
        while self.without_key:
            connection = self.without_key.pop()
            with suppress(OSError):  # the host has gone
                connection.stdin.write(f"{len(key)}\n".encode() + key)  # type: ignore[union-attr]
                connection.stdin.flush()  # type: ignore[union-attr]

    def gone_hosts(self) -> list[str]:
        """Return the hosts whose connections have ended."""
        return [host for host, connection in self.connections.items() if connection.poll() is not None]

    def say(self, gone: Sequence[str]) -> None:
        """Print which hosts have disappeared."""
        print(f"{sentence(gone, self.hosts)}: all ranks were ended.", file=sys.stderr, flush=True)

    def signal_mpiexec(self, signum: int) -> None:
        """Send mpiexec a signal."""
        os.kill(self.mpiexec, signum)


def watch(mpiexec: int, hosts: Sequence[str], share: Sequence[str], ready: int) -> NoReturn:
    """Watch the ranks' hosts, and end mpiexec if one disappears.

    Write to the pipe `ready` when each host is connected and has no old file.
    """
    die_with_parent(signal.SIGKILL, mpiexec)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # mpiexec handles a Ctrl-C
    host_watch = HostWatch(mpiexec, hosts, share)
    host_watch.connect()
    os.write(ready, b"!")
    host_watch.watch_until_loss()


def start(ranks: int, program: Sequence[str]) -> NoReturn:
    """Become the mpiexec that starts a program on the hosts, once the watch is connected to each of them."""
    parent = os.getppid()
    mpiexec = launch.mpiexec()
    try:
        machines = last_look(os.environ, ranks)
    except ClusterError as error:
        sys.exit(str(error))
    environment = {**machines["settings"], **os.environ, **launch.settings(), FILE: machines["file"]}
    passed = sorted(name for name in environment if name.startswith(PASSED) and name != MACHINES)
    slots = Counter(machines["hosts"])
    line, settings = command(mpiexec, slots, program, **machines["where"], passed=passed)
    if machines["share"]:
        # MPICH's mpiexec reads this. Open MPI's does not share the connection: if a machine is lost, it would
        # end with a message of its own before the watch names the machine.
        settings["HYDRA_LAUNCHER_EXTRA_ARGS"] = " ".join([*machines["share"], "-oControlMaster=no"])
    prefix = unquoted_prefix(mpiexec)
    if prefix:
        settings["PRTE_MCA_plm_ssh_agent"] = agent_that_quotes(prefix)
    read_end, write_end = os.pipe()
    if os.fork() == 0:
        watch(os.getppid(), machines["hosts"], machines["share"], write_end)
    die_with_parent(end_signal(mpiexec), parent)
    os.close(write_end)
    if not os.read(read_end, 1):
        sys.exit("The watch over the machines has failed: nothing was started.")
    # MPICH does not send the last of its variables to other machines.
    os.execve(line[0], line, {**environment, **settings, "LABKIT_LAST": ""})


def agent_that_quotes(prefix: str) -> str:
    """Write a program that replaces ssh and quotes `prefix` in commands; return its path."""
    # Open MPI keeps its own files in this folder, and the supervisor of mpiexec removes it.
    agent = Path(tempfile.gettempdir(), f"ompi.{os.getpid()}", "agent")
    agent.parent.mkdir(mode=0o700)
    edit = shlex.quote(f"s|{prefix}|{shlex.quote(prefix)}|g")
    agent.write_text(f'#!/bin/sh\nhost=$1; shift\nexec ssh "$host" "$(echo "$*" | sed {edit})"\n')
    agent.chmod(0o700)
    return str(agent)


def main(arguments: Sequence[str]) -> None:
    """Start a program on the hosts, or look at this machine."""
    if arguments[0] == "--look":
        look(*arguments[1:])
    else:
        start(int(arguments[1]), arguments[2:])


if __name__ == "__main__":
    main(sys.argv[1:])
