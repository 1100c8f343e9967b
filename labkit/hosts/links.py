"""The hosts' network: one switch, a cable to each host, and each cable's bandwidth in both directions."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from labkit.hosts.state import Host, HostsError
from labkit.units import parse_bandwidth

SWITCH, PORT, CARD = "allreducelab", "allreducelab", "eth0"
SWITCH_ADDRESS = "10.77.0.254"
# Set on every host, whatever the machine's own defaults. Every kernel has reno. With a slow start after an
# idle time, the duration of a collective would depend on the pause before it.
TCP = {"tcp_congestion_control": "reno", "tcp_slow_start_after_idle": "0"}
MAX_HOSTS = 250  # the switch has one of the last addresses
MIN_BANDWIDTH = 10**5  # bit/s


def bits_per_s(bandwidth: str) -> int:
    """Return the bit/s of a bandwidth such as 1gbit or 100mbit; raise HostsError for any other text."""
    try:
        value = round(parse_bandwidth(bandwidth))
    except ValueError as error:
        raise HostsError(str(error)) from None
    if value < MIN_BANDWIDTH:
        raise HostsError(f"a bandwidth must be at least 100kbit; got {bandwidth!r}")
    return value


def address(index: int) -> str:
    """Return the address of a host."""
    return f"10.77.0.{index + 1}"


def shape(card: str, bandwidth: int) -> str:
    """Return the command for `tc` that limits what a card sends to a bandwidth in bit/s."""
    # TCP hands packets of up to 64 KiB to a card. A smaller bucket would make the processor cut them up.
    return f"qdisc add dev {card} root tbf rate {bandwidth}bit burst 128kb latency 50ms"


def run_batch(program: str, lines: Iterable[str]) -> None:
    """Run commands of `ip` or `tc` in this process's network namespace; raise OSError if one fails."""
    completed = subprocess.run(
        [program, "-batch", "-"], input="\n".join(lines), capture_output=True, text=True, check=False
    )
    if completed.returncode != 0:
        raise OSError(f"{program}: {' '.join((completed.stderr or completed.stdout).split())}")


def lay_cables(hosts: Iterable[Host]) -> None:
    """Create the switch and the shaped cables from it to the hosts. Call it in the switch's namespace."""
    lines = ["link set lo up", f"link add {SWITCH} type bridge", f"link set {SWITCH} addrgenmode none"]
    lines += [f"addr add {SWITCH_ADDRESS}/24 dev {SWITCH}", f"link set {SWITCH} up"]
    shapes = []
    for index, host in enumerate(hosts):
        port = f"{PORT}{index}"
        lines.append(f"link add {port} type veth peer name {CARD} netns {host.pid}")
        # No automatic IPv6 address: its packets would be counted with the ranks' bytes.
        lines.append(f"link set {port} addrgenmode none")
        lines.append(f"link set {port} master {SWITCH} up")
        shapes.append(shape(port, host.bandwidth))
    run_batch("ip", lines)
    run_batch("tc", shapes)


def plug_in(index: int, bandwidth: int) -> None:
    """Give the cable's end its address, and shape what the host sends. Call it on the host."""
    lines = ["link set lo up", f"link set {CARD} addrgenmode none"]
    lines += [f"addr add {address(index)}/24 dev {CARD}", f"link set {CARD} up"]
    run_batch("ip", lines)
    run_batch("tc", [shape(CARD, bandwidth)])
    for name, value in TCP.items():
        with suppress(OSError):  # a container's /proc may be read-only: then the machine's settings hold
            Path(f"/proc/sys/net/ipv4/{name}").write_text(value)
