"""Ranks of MPICH on this machine, forked from a process that has imported what they need.

MPICH's mpiexec starts each rank as a new program, which imports everything again, and stays above it with a
second process. This module takes its place: a process forks the ranks itself, and sees them end.

A rank asks the process that has started it how many ranks there are, which of them share a machine, and when
all have come so far. Both talk in lines of text, such as `cmd=get_maxes`, through a socket whose number is in
PMI_FD: the Process Management Interface, version 1, which mpiexec, SLURM and Flux speak, too. Ranks of one
machine need eight of its commands (`_answer`); MPI refuses others, such as `Spawn`'s, with an error.

When a rank ends without MPI_Finalize, the others are ended, as by mpiexec.
"""

from __future__ import annotations

import gc
import os
import secrets
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from selectors import EVENT_READ, DefaultSelector
from typing import NamedTuple

from labkit import forking
from labkit.guard import Guard
from mpiwatch.processes import child_ends, die_with_parent, drain

POLL_S = 0.005
LEFT_S = 0.5  # for ranks to end by themselves, after one that has ended with exit code 0 or called MPI_Abort
# The lengths of names and values, as mpiexec gives them.
MAXES = "cmd=maxes rc=0 kvsname_max=256 keylen_max=64 vallen_max=1024"
# Commands with the same answer for all ranks.
ANSWERS = {
    "init": "cmd=response_to_init rc=0 pmi_version=1 pmi_subversion=1",
    "get_maxes": MAXES,
    "get_appnum": "cmd=appnum rc=0 appnum=0",
    "finalize": "cmd=finalize_ack rc=0",
}


class Rank(NamedTuple):
    """A rank that has not ended, and the connection to it."""

    number: int
    connection: socket.socket


class ForkedRanks:
    """The ranks of one MPI world of MPICH, which this process has forked.

    It has what a supervisor uses of `subprocess.Popen`. `exits`: a file that gets a line for each rank that
    ends, its pid and exit code; none if it is empty.
    """

    # An error in one of these ends no ranks.
    STEPS = "_answer_all", "_note_ends"

    def __init__(self, number: int, exits: str = "") -> None:
        self.number, self.exits = number, exits
        self.pid = os.getpid()  # the ranks' parent
        self.ranks: dict[int, Rank] = {}  # by pid
        self.returncode: int | None = None
        self.guard = Guard("the process that forks ranks")
        self._first_failure = 0  # exit code, or minus the signal
        # Of `ranks`, so that no signal reaches another process. A handler of signals may take it, too.
        self._lock = threading.RLock()
        self._has_killed = False
        self._values = {"PMI_process_mapping": f"(vector,(0,1,{number}))"}  # all ranks are on one machine
        # Of no other world of this machine: MPICH names its shared memory after it.
        self._name = f"labkit-{os.getpid()}-{secrets.token_hex(8)}"
        self._at_barrier: list[socket.socket] = []
        self._finalized: set[int] = set()
        self._aborted: dict[int, int] = {}  # exit codes that MPI_Abort was given, by rank

    @property
    def pids(self) -> set[int]:
        """Return the pids of the ranks that have not ended."""
        return {*self.ranks}

    def fork(self, prepare: Callable[[], None]) -> int | None:
        """Fork the ranks; return its number in each rank, after `prepare`, and None in this process.

        Call it in a process that has one thread and has not initialised MPI. Raise OSError if this user may
        have no more processes.
        """
        for number in range(self.number):
            here, there = socket.socketpair()
            try:
                pid = os.fork()
            except OSError:
                self.kill()
                raise
            if pid == 0:
                for connection in (here, *(rank.connection for rank in self.ranks.values())):
                    connection.close()
                prepare()
                self._become_rank(number, there)
                return number
            there.close()
            self.ranks[pid] = Rank(number, here)
        threading.Thread(target=self._serve, name="ranks", daemon=True).start()
        return None

    def _become_rank(self, number: int, connection: socket.socket) -> None:
        forking.leave_signals_to_rank()
        os.setsid()  # as mpiexec's own children: Linux shares a busy machine's cores among sessions
        with open(os.devnull, "rb") as nothing:
            os.dup2(nothing.fileno(), 0)
        os.set_inheritable(connection.fileno(), True)
        os.environ.update(PMI_FD=str(connection.detach()), PMI_RANK=str(number), PMI_SIZE=str(self.number))
        forking.draw_other_numbers()

    # What a supervisor uses

    def poll(self) -> int | None:
        """Return the exit code if all ranks have ended: that of the first that has failed; else None."""
        if self.returncode is None:
            self.guard.insist("_note_ends", self._note_ends)
            if not self.ranks:
                self.returncode = self._first_failure
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end of all ranks. Raise subprocess.TimeoutExpired after so many seconds."""
        end_at = float("inf") if timeout is None else time.monotonic() + timeout
        while True:
            code = self.poll()
            if code is not None:
                return code
            if time.monotonic() > end_at:
                raise subprocess.TimeoutExpired("ranks", timeout or 0.0)
            time.sleep(POLL_S)

    def send_signal(self, number: int, *, spare: int | None = None) -> None:
        """Send all ranks a signal, or all but the rank of the number `spare`."""
        with self._lock:
            for pid, rank in [*self.ranks.items()]:
                with suppress(ProcessLookupError):  # a signal's handler calls this, also right after waitpid
                    if rank.number != spare:
                        os.kill(pid, number)

    def kill(self) -> None:
        """End all ranks, even those in a deadlock."""
        self._has_killed = True
        self.send_signal(signal.SIGKILL)

    terminate = kill  # a Python handler of SIGTERM never runs in a rank that is stuck inside MPI

    def _note_ends(self) -> None:
        """Note which ranks have ended; end the others if one has ended without MPI_Finalize."""
        for pid, rank in [*self.ranks.items()]:
            with self._lock:
                ended, status = os.waitpid(pid, os.WNOHANG)
                if not ended:
                    continue
                del self.ranks[pid]
            code = self._aborted.get(rank.number, os.waitstatus_to_exitcode(status))
            if not (self._has_killed and code == -signal.SIGKILL):  # our own signal is no failure
                self._first_failure = self._first_failure or code
            if self.exits:
                with suppress(OSError):  # a full disk
                    forking.record_exit(self.exits, pid, code)
            if rank.number not in self._finalized and not self._has_killed and self.ranks:
                self._end_others(code)

    def _end_others(self, code: int) -> None:
        """End the other ranks, as mpiexec does when a rank ends with this code before MPI_Finalize."""
        if code:
            self.kill()
        else:
            self._kill_later()

    def _kill_later(self) -> None:
        """End the ranks that do not end by themselves."""
        later = threading.Timer(LEFT_S, self.kill)
        later.daemon = True
        later.start()

    # The Process Management Interface

    def _serve(self) -> None:
        """Answer the ranks, in a thread of its own."""
        with DefaultSelector() as selector:
            unread = {}
            for rank in [*self.ranks.values()]:
                selector.register(rank.connection, EVENT_READ, rank)
                unread[rank.number] = b""
            while selector.get_map():
                for key, _ in selector.select():
                    rank = key.data
                    received = b""
                    with suppress(OSError):
                        received = rank.connection.recv(1 << 16)
                    if not received:
                        selector.unregister(rank.connection)
                        rank.connection.close()
                        continue
                    *lines, unread[rank.number] = (unread[rank.number] + received).split(b"\n")
                    self.guard.insist("_answer_all", self._answer_all, rank, lines)

    def _answer_all(self, rank: Rank, lines: list[bytes]) -> None:
        while lines:
            self._answer(rank, lines[0].decode())
            del lines[0]  # after an error, the guard calls this again, with the lines that are left

    def _answer(self, rank: Rank, line: str) -> None:
        """Answer a line, such as `cmd=get kvsname=… key=NAME`."""
        fields = dict(word.partition("=")[::2] for word in line.split())
        command = fields.get("cmd", "")
        if command == "finalize":
            self._finalized.add(rank.number)
        if command == "put":
            self._values[fields["key"]] = fields["value"]
            say(rank.connection, "cmd=put_result rc=0")
        elif command == "get":
            value = self._values.get(fields["key"])
            say(
                rank.connection,
                "cmd=get_result rc=1" if value is None else f"cmd=get_result rc=0 value={value}",
            )
        elif command == "barrier_in":
            self._at_barrier.append(rank.connection)
            if len(self._at_barrier) == self.number:
                waiting, self._at_barrier = self._at_barrier, []
                for connection in waiting:
                    say(connection, "cmd=barrier_out rc=0")
        elif command == "abort":  # MPI_Abort: this rank ends itself
            self._kill_later()
            self._has_killed = True
            self._aborted[rank.number] = int(fields.get("exitcode", "1"))
            self.send_signal(signal.SIGKILL, spare=rank.number)
        elif command == "get_universe_size":
            say(rank.connection, f"cmd=universe_size rc=0 size={self.number}")
        elif command == "get_my_kvsname":
            say(rank.connection, f"cmd=my_kvsname rc=0 kvsname={self._name}")
        elif command in ANSWERS:
            say(rank.connection, ANSWERS[command])
        elif command or line.strip() == "endcmd":  # Spawn's command has several lines, and one answer
            say(rank.connection, f"cmd={command or 'spawn'}_result rc=1 msg=not_available")


def fork_ranks(number: int) -> None:
    """Fork the ranks of an MPI world and return in each of them; this process ends when they have ended.

    Call it in a process that has one thread and has not initialised MPI.
    """
    gc.freeze()  # the collector of a rank does not write to objects, and so they stay shared
    me, woken = os.getpid(), child_ends()
    wake = forking.file_that_wakes()

    def prepare() -> None:
        os.close(woken)
        os.close(wake)
        die_with_parent(signal.SIGKILL, me)

    ranks = ForkedRanks(number, os.environ.pop(forking.EXITS, ""))
    if ranks.fork(prepare) is not None:
        return
    for signum in forking.FORWARDED:
        signal.signal(signum, lambda received, frame: ranks.send_signal(received))
    signal.signal(signal.SIGTERM, lambda received, frame: ranks.kill())
    while ranks.poll() is None:
        select.select([woken], [], [])
        drain(woken)
    code = ranks.wait()
    os._exit(code if code >= 0 else 128 - code)


def say(connection: socket.socket, line: str) -> None:
    """Send a rank a line; it may have ended."""
    with suppress(OSError):
        connection.sendall(f"{line}\n".encode())


def are_mpich() -> bool:
    """Return whether the MPI library that mpi4py loads is MPICH, whose ranks ask by PMI-1."""
    from mpi4py import MPI  # noqa: PLC0415  (the caller has decided that MPI is not initialised)

    return sys.platform == "linux" and MPI.get_vendor()[0] == "MPICH"
