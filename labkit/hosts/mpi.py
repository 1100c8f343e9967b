"""Start an MPI program on the hosts, one rank on each, with either MPI.

    python -m labkit.hosts.mpi [-n RANKS] PROGRAM …

replaces `mpiexec`. It ends with the process that started it.
"""

from __future__ import annotations

import os
import shlex
import sys
from typing import NoReturn

from labkit.hosts import links
from labkit.hosts.control import running
from labkit.hosts.namespaces import FOLDER, PREFIX, TOKEN, enter
from labkit.hosts.state import HostsError, State, folder
from mpiwatch import launch
from mpiwatch.processes import die_with_parent, end_signal, is_mpich

# Both MPIs need these to use the network: hosts on one machine can reach each other's memory, and MPICH would
# use it. Settings of an MPI that is not in use do no harm.
OVER_THE_LINKS = {
    "UCX_TLS": "tcp,self",
    "UCX_NET_DEVICES": links.CARD,
    "FI_PROVIDER": "tcp",
    "FI_TCP_IFACE": links.CARD,
    "OMPI_MCA_pml": "ob1",
    "OMPI_MCA_btl": "tcp,self",
    "OMPI_MCA_btl_tcp_if_include": links.CARD,
    # Send messages up to this size without waiting for the receiver: ranks that share a core answer late.
    "OMPI_MCA_btl_tcp_eager_limit": str(1 << 20),
}


def command(state: State, mpiexec: str, ranks: int, program: list[str]) -> tuple[list[str], dict[str, str]]:
    """Return the command line that starts a program on the first hosts, and its environment variables."""
    names = [host.name for host in state.hosts[:ranks]]
    agent = str(folder() / "agent")
    if is_mpich(mpiexec):
        options = ["-launcher", "ssh", "-launcher-exec", agent, "-hosts", ",".join(names)]
        options += ["-localhost", links.SWITCH_ADDRESS, "-iface", links.SWITCH]
        settings = {}
    else:
        link_prefix(mpiexec)
        options = ["--host", ",".join(f"{name}:1" for name in names)]
        settings = {
            "PRTE_MCA_plm_ssh_agent": agent,
            # One rank on each host, bound to no core: all hosts share the machine's cores.
            "PRTE_MCA_rmaps_default_mapping_policy": "ppr:1:node",
            "PRTE_MCA_hwloc_default_binding_policy": "none",
        }
    return [mpiexec, *options, "-n", str(ranks), *program], {**OVER_THE_LINKS, **settings}


def link_prefix(mpiexec: str) -> None:
    """Make the link by which the agent names this Open MPI, if its path needs quotes in a shell."""
    prefix = os.path.dirname(os.path.dirname(os.path.realpath(mpiexec)))
    if shlex.quote(prefix) == prefix:
        return
    link, new = folder() / PREFIX, folder() / f"{PREFIX}.{os.getpid()}"
    new.symlink_to(prefix)
    new.replace(link)


def execute(program: list[str], ranks: int | None = None) -> NoReturn:
    """Become the mpiexec that runs a program on the hosts, one rank on each of the first `ranks`.

    Raise HostsError if no hosts are up, or fewer than ranks.
    """
    state = running() if ranks is None else running(ranks)
    ranks = len(state.hosts) if ranks is None else ranks
    mpiexec, parent = launch.mpiexec(), os.getppid()
    line, settings = command(state, mpiexec, ranks, program)
    ours = {TOKEN: state.token, FOLDER: str(folder())}
    enter(state.holder)
    die_with_parent(end_signal(mpiexec), parent)
    os.execvpe(line[0], line, {**os.environ, **launch.settings(), **settings, **ours})


def main(arguments: list[str]) -> None:
    """Run a program on the hosts, as the command line says."""
    ranks = None
    if arguments[:1] == ["-n"]:
        ranks, arguments = int(arguments[1]), arguments[2:]
    try:
        execute(arguments, ranks)
    except HostsError as error:
        sys.exit(f"labkit hosts: {error}")


if __name__ == "__main__":
    main(sys.argv[1:])
