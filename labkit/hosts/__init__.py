"""Hosts of their own on this machine, with real links of a chosen rate between them (Linux)."""

from labkit.hosts.state import Host, HostsError
from labkit.hosts.up import Counters, counters, down, running, up

__all__ = ["Counters", "Host", "HostsError", "counters", "down", "running", "up"]
