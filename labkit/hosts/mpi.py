"""Start an MPI program on the hosts, one rank on each, with either MPI.

    python -m labkit.hosts.mpi [-n RANKS] PROGRAM …

replaces `mpiexec`. It ends with the process that started it.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from typing import NoReturn

from labkit.hosts import links
from labkit.hosts.control import running
from labkit.hosts.namespaces import FOLDER, PREFIX, TOKEN, enter
from labkit.hosts.state import HostsError, folder
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


def command(
    mpiexec: str,
    slots: Mapping[str, int],
    program: Sequence[str],
    *,
    address: str,
    card: str,
    agent: str = "",
    passed: Sequence[str] = (),
) -> tuple[list[str], dict[str, str]]:
    """Return the command line that starts a program on hosts, and its environment variables.

    - `slots`: the number of ranks on each host.
    - `address`, `card`: where the hosts reach this mpiexec, and the network card with that address.
    - `agent`: the program that replaces ssh, if any.
    - `passed`: the environment variables that the ranks get; by default, what MPI sends by itself.
    """
    hosts = ",".join(f"{name}:{count}" for name, count in slots.items())
    if is_mpich(mpiexec):
        options = ["-launcher", "ssh", "-hosts", hosts, "-localhost", address, "-iface", card]
        options += ["-launcher-exec", agent] if agent else []
        options += ["-genvlist", ",".join(passed)] if passed else []
        settings = {}
    else:
        own_names = "OMPI_", "PMIX_", "PRTE_"  # Open MPI sends these by itself
        options = ["--host", hosts]
        options += [word for name in passed if not name.startswith(own_names) for word in ("-x", name)]
        settings = {
            # Fill one host after the other, and bind no rank to a core: others may use the cores, too.
            "PRTE_MCA_rmaps_default_mapping_policy": "slot",
            "PRTE_MCA_hwloc_default_binding_policy": "none",
            **({"PRTE_MCA_plm_ssh_agent": agent} if agent else {}),
        }
    return [mpiexec, *options, "-n", str(sum(slots.values())), *program], settings


def unquoted_prefix(mpiexec: str) -> str:
    """Return the path that Open MPI writes into commands without the quotes that it needs; empty if none."""
    prefix = os.path.dirname(os.path.dirname(os.path.realpath(mpiexec)))
    return "" if is_mpich(mpiexec) or shlex.quote(prefix) == prefix else prefix


def execute(program: list[str], ranks: int | None = None) -> NoReturn:
    """Become the mpiexec that runs a program on the hosts, one rank on each of the first `ranks`.

    Raise HostsError if no hosts are up, or fewer than ranks.
    """
    state = running(1 if ranks is None else ranks)
    mpiexec, parent = launch.mpiexec(), os.getppid()
    slots = {host.name: 1 for host in state.hosts[:ranks]}
    where = {"address": links.SWITCH_ADDRESS, "card": links.SWITCH, "agent": str(folder() / "agent")}
    line, settings = command(mpiexec, slots, program, **where)
    ours = {**OVER_THE_LINKS, TOKEN: state.token, launch.SEVERAL_MACHINES: "1"}
    ours |= {FOLDER: str(folder()), PREFIX: unquoted_prefix(mpiexec)}
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
