"""How the relays find the hub when the ranks start: they try every address of its machine."""

from __future__ import annotations

import secrets
import socket
import threading
from contextlib import suppress
from time import monotonic

import psutil

from mpiwatch.machines.connection import KEY_BYTES, Connection, admit, introduce

START_S = 30.0  # until all machines have connected
CONNECT_S = 2.0  # for one address, which may lead nowhere and never answer


class Door:
    """The socket on which the hub listens until all relays have connected."""

    def __init__(self) -> None:
        self.key = secrets.token_bytes(KEY_BYTES)
        dual = socket.has_dualstack_ipv6()
        try:
            self.socket = _listen(dual)
        except OSError:
            self.socket = _listen(False)
        self.port: int = self.socket.getsockname()[1]
        self.admitted: dict[int, Connection] = {}
        threading.Thread(target=self._admit_all, name="mpiwatch-hub-door", daemon=True).start()

    def _admit_all(self) -> None:
        while True:
            try:
                sock, _ = self.socket.accept()
            except OSError:  # closed
                return
            # A client that sends nothing must not keep the others out.
            threading.Thread(target=self._admit, args=[sock], daemon=True).start()

    def _admit(self, sock: socket.socket) -> None:
        machine = admit(sock, self.key)
        if machine is None or machine in self.admitted:
            sock.close()
        else:
            self.admitted[machine] = Connection(sock)

    def close(self) -> None:
        """Stop listening."""
        with suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)  # otherwise `accept` keeps waiting in its thread
        self.socket.close()


def _listen(dual: bool) -> socket.socket:
    family = socket.AF_INET6 if dual else socket.AF_INET
    return socket.create_server(("", 0), family=family, backlog=1024, dualstack_ipv6=dual)


def addresses() -> list[str]:
    """Return the addresses of this machine; those that other machines cannot reach come last."""
    found = [
        entry.address
        for entries in psutil.net_if_addrs().values()
        for entry in entries
        if entry.family in (socket.AF_INET, socket.AF_INET6) and "%" not in entry.address
    ]
    return sorted(dict.fromkeys(found), key=lambda address: (address in ("127.0.0.1", "::1"), ":" in address))


def find_hub(where: tuple[list[str], int, bytes], machine: int) -> tuple[Connection | None, str]:
    """Connect to the hub as the relay of a machine; return the connection, or None and the errors.

    `where`: the addresses of the hub's machine, its port and the key.
    """
    addresses, port, key = where
    faults, deadline = [], monotonic() + START_S
    for address in addresses:
        if monotonic() > deadline:
            break
        try:
            sock = socket.create_connection((address, port), CONNECT_S)
        except OSError as error:
            faults.append(f"{address}: {error.strerror or error}")
            continue
        try:
            introduce(sock, key, machine)
        except OSError as error:
            sock.close()
            faults.append(f"{address}: {error.strerror or error}")
        else:
            return Connection(sock), ""
    return None, "; ".join(faults)
