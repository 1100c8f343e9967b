"""Hosts on this machine, each with its own name, address and link of a chosen bandwidth (Linux)."""

from labkit.hosts.control import Counters, counters, down, profile, running, up
from labkit.hosts.state import Host, HostsError
