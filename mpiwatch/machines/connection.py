"""A TCP connection between a relay and the hub: frames, admission, and the offset of the other clock."""

from __future__ import annotations

import hashlib
import hmac
import secrets
import socket
from collections.abc import Iterator
from contextlib import suppress
from enum import IntEnum
from struct import Struct
from time import monotonic

HEADER = Struct("!IBd")  # length of what follows, a Kind, the sender's clock
RECEIVED_BYTES = 1 << 16
MOST_BYTES = 1 << 30  # of a frame; a larger length means that the bytes are not a frame
MOST_WAITING_BYTES = 1 << 20  # if more is waiting to be sent, only frames that must arrive are added
HANDSHAKE_S = 5.0
DRIFT = 1e-4  # how fast clocks may drift apart, in seconds per second
KEY_BYTES = NONCE_BYTES = MAC_BYTES = 32
SETTLED_S = 0.02  # smaller changes of the offset are ignored, since they would change every time in a slot
# The kernel notices within about 20 s that a machine is gone. For a busy process, its kernel answers.
KEEP_ALIVE = {"TCP_KEEPIDLE": 5, "TCP_KEEPALIVE": 5, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}
USER_TIMEOUT_MS = 20_000


class Kind(IntEnum):
    """What a frame holds."""

    SLOTS = 1  # relay to hub: changes in slots
    STATES = 2  # hub to relay: what the ranks of other machines are doing
    OBSERVE = 3  # hub to relay: tell me what your ranks are doing
    OBSERVED = 4  # relay to hub: the answer
    REPORT = 5  # hub to relay: publish this
    PUBLISHED = 6  # relay to hub: the answer


class Connection:
    """One end of an admitted connection; none of its methods waits for the other end."""

    def __init__(self, sock: socket.socket) -> None:
        self.socket = sock
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in (*KEEP_ALIVE.items(), ("TCP_USER_TIMEOUT", USER_TIMEOUT_MS)):
            with suppress(OSError, AttributeError):  # not every system has every option
                sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        self.arrived, self.leaving = bytearray(), bytearray()
        self.offset_s = self.least_s = float("inf")
        self.heard = monotonic()

    def fileno(self) -> int:
        """Return the socket's file descriptor, for `select`."""
        return self.socket.fileno()

    def send(self, kind: Kind, payload: bytes = b"") -> None:
        """Send a frame, or keep it until the other end takes it. Raise OSError if the connection is lost."""
        self.leaving += HEADER.pack(len(payload), kind, monotonic()) + payload
        self.flush()

    @property
    def is_behind(self) -> bool:
        """Return whether the other end is far behind in reading what was sent."""
        return len(self.leaving) > MOST_WAITING_BYTES

    def flush(self) -> None:
        """Send what the other end can take now."""
        with suppress(BlockingIOError):
            while self.leaving:
                del self.leaving[: self.socket.send(self.leaving)]

    def receive(self) -> Iterator[tuple[Kind, bytes]]:
        """Yield the frames that have arrived. Raise OSError if the connection has ended."""
        has_ended = False
        with suppress(BlockingIOError):
            while not has_ended:
                part = self.socket.recv(RECEIVED_BYTES)
                self.arrived += part
                has_ended = not part
        while len(self.arrived) >= HEADER.size:
            length, kind, sent = HEADER.unpack_from(self.arrived)
            if length > MOST_BYTES:
                raise ConnectionError(f"a frame of {length} bytes")
            end = HEADER.size + length
            if len(self.arrived) < end:
                break
            payload = bytes(self.arrived[HEADER.size : end])
            del self.arrived[:end]
            self._compare_clocks(sent)
            yield Kind(kind), payload
        if has_ended:
            raise ConnectionError("the other end has closed the connection")

    def _compare_clocks(self, sent: float) -> None:
        """Estimate how far this machine's clock is ahead, from the frame with the shortest transit."""
        now = monotonic()
        self.least_s = min(now - sent, self.least_s + DRIFT * (now - self.heard))
        self.heard = now
        if not abs(self.offset_s - self.least_s) < SETTLED_S:
            self.offset_s = self.least_s

    def close(self) -> None:
        """Close this end."""
        self.socket.close()


def admit(sock: socket.socket, key: bytes) -> int | None:
    """Return the number of the machine that has connected; None if it does not prove that it has the key."""
    sock.settimeout(HANDSHAKE_S)
    nonce = secrets.token_bytes(NONCE_BYTES)
    try:
        sock.sendall(nonce)
        answer = _receive_exactly(sock, NONCE_BYTES + 4 + MAC_BYTES)
        theirs, number, proof = answer[:NONCE_BYTES], answer[NONCE_BYTES:-MAC_BYTES], answer[-MAC_BYTES:]
        if not hmac.compare_digest(proof, _proof(key, b"relay", nonce, number)):
            return None
        sock.sendall(_proof(key, b"hub", theirs))
    except OSError:
        return None
    return int.from_bytes(number, "big")


def introduce(sock: socket.socket, key: bytes, machine: int) -> None:
    """Prove to the hub that this is the relay of a machine. Raise OSError if the other end is not the hub."""
    sock.settimeout(HANDSHAKE_S)
    theirs = _receive_exactly(sock, NONCE_BYTES)
    nonce, number = secrets.token_bytes(NONCE_BYTES), machine.to_bytes(4, "big")
    sock.sendall(nonce + number + _proof(key, b"relay", theirs, number))
    if not hmac.compare_digest(_receive_exactly(sock, MAC_BYTES), _proof(key, b"hub", nonce)):
        raise ConnectionError("another program answered in place of the hub")


def _proof(key: bytes, *parts: bytes) -> bytes:
    return hmac.new(key, b"".join(parts), hashlib.sha256).digest()


def _receive_exactly(sock: socket.socket, size: int) -> bytes:
    received = b""
    while len(received) < size:
        part = sock.recv(size - len(received))
        if not part:
            raise ConnectionError("the connection was refused")
        received += part
    return received
