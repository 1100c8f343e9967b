"""The hosts' network: one switch, a cable to each host, and the rate of each cable in both directions."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from labkit.hosts.state import Host, HostsError

SWITCH, PORT, CARD = "allreducelab", "allreducelab", "eth0"
SWITCH_ADDRESS = "10.77.0.254"
# The same on every machine, whatever its own default: the way that every kernel has, and no new start after a
# pause, or what a collective takes would depend on the one before it.
TCP = {"tcp_congestion_control": "reno", "tcp_slow_start_after_idle": "0"}
LARGEST = 250  # hosts: the switch has the last address
UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9}


def bits(rate: str) -> int:
    """Return a rate such as 1gbit, 100mbit or 2.5gbit in bit/s; the units are those of `tc`."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([kmg]?)bit", rate.strip().lower())
    if not found or (value := round(float(found[1]) * UNITS[found[2]])) < 10**5:
        raise HostsError(f"a rate is at least 100kbit and looks like 1gbit or 100mbit; this is {rate!r}.")
    return value


def shown(rate: int) -> str:
    """Return a rate as one types it."""
    for unit in "gmk":
        if rate >= UNITS[unit]:
            return f"{rate / UNITS[unit]:g}{unit}bit"
    return f"{rate}bit"


def address(index: int) -> str:
    """Return the address of a host."""
    return f"10.77.0.{index + 1}"


def shape(card: str, rate: int) -> str:
    """Return what makes `tc` hold a card to a rate in the direction that it sends."""
    # A bucket below one packet of 64 KiB, as TCP hands it to a card, would have it cut up by the processor.
    return f"qdisc add dev {card} root tbf rate {rate}bit burst 128kb latency 50ms"


def batch(program: str, lines: Iterable[str]) -> None:
    """Have `ip` or `tc` carry out lines, here and now."""
    done = subprocess.run(
        [program, "-batch", "-"], input="\n".join(lines), capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise OSError(f"{program}: {' '.join((done.stderr or done.stdout).split())}")


def lay_cables(hosts: Iterable[Host]) -> None:
    """In the switch's namespace: make the switch, and a cable from it to each host, shaped at this end."""
    lines = ["link set lo up", f"link add {SWITCH} type bridge", f"link set {SWITCH} addrgenmode none"]
    lines += [f"addr add {SWITCH_ADDRESS}/24 dev {SWITCH}", f"link set {SWITCH} up"]
    shapes = []
    for index, host in enumerate(hosts):
        port = f"{PORT}{index}"
        lines.append(f"link add {port} type veth peer name {CARD} netns {host.pid}")
        # No address of IPv6's own making: its chatter would be counted with the ranks' bytes.
        lines.append(f"link set {port} addrgenmode none")
        lines.append(f"link set {port} master {SWITCH} up")
        shapes.append(shape(port, host.rate))
    batch("ip", lines)
    batch("tc", shapes)


def plug_in(index: int, rate: int) -> None:
    """On a host: give the cable's end its address, and shape what the host sends."""
    lines = ["link set lo up", f"link set {CARD} addrgenmode none"]
    lines += [f"addr add {address(index)}/24 dev {CARD}", f"link set {CARD} up"]
    batch("ip", lines)
    batch("tc", [shape(CARD, rate)])
    for name, value in TCP.items():
        with suppress(OSError):  # in a container whose /proc may only be read: then as the machine has it
            Path(f"/proc/sys/net/ipv4/{name}").write_text(value)
