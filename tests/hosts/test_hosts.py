"""`labkit hosts`: names, addresses and shaped links; nothing is left, however the hosts end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from labkit import hosts
from labkit.hosts import control
from labkit.hosts.namespaces import FOLDER, TOKEN
from labkit.hosts.state import load
from mpiwatch.processes import start_time
from tests.cluster_fixtures import wait_until
from tests.conftest import thorough
from tests.hosts.conftest import Run

pytestmark = pytest.mark.clusters

BYTES = 4 * 2**20  # as in measure.py

# Root without the right to create namespaces has the rights of any other user.
NO_RIGHTS = ("setpriv", "--bounding-set=-sys_admin,-net_admin", "--inh-caps=-sys_admin,-net_admin")


def machine() -> tuple[set[str], set[str]]:
    """Return the network cards and the named network namespaces of this machine's own network."""
    cards = {line.split(":")[0].strip() for line in Path("/proc/net/dev").read_text().splitlines()[2:]}
    names = Path("/run/netns")
    return cards, {path.name for path in names.iterdir()} if names.exists() else set()


def networks(folder: Path) -> set[int]:
    """Return the network namespaces of all processes that belong to the hosts of this folder."""
    found = set()
    for process in psutil.process_iter():
        try:
            environment = process.environ()
            if TOKEN in environment and environment.get(FOLDER) == str(folder):
                found.add(os.stat(f"/proc/{process.pid}/ns/net").st_ino)
        except (psutil.Error, OSError):
            pass
    return found


@pytest.mark.parametrize(
    "before",
    [(), thorough(NO_RIGHTS)] if os.getuid() == 0 else [()],
    ids=lambda words: "less" if words else "as-is",
)
def test_the_commands_up_run_status_and_down(
    labkit_hosts: Run, folder: Path, before: tuple[str, ...]
) -> None:
    cards = machine()
    done = labkit_hosts("up", "--n", "3", "--bandwidth", "1gbit", "--slow", "2=100mbit", before=before)
    assert done.returncode == 0, done.stderr
    holder = load().holder  # type: ignore[union-attr]
    assert os.stat(f"/proc/{holder}/ns/net").st_ino != os.stat("/proc/self/ns/net").st_ino
    assert (os.stat(f"/proc/{holder}/ns/user").st_ino != os.stat("/proc/self/ns/user").st_ino) == (
        bool(before) or os.getuid() != 0
    )
    assert machine() == cards
    again = labkit_hosts("up", before=before)
    assert again.returncode == 2 and "3 hosts are up already; `labkit hosts down`" in again.stderr

    program = Path(__file__).with_name("measure.py")
    ran = labkit_hosts("run", sys.executable, str(program), before=before)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    result = json.loads(ran.stdout.splitlines()[-1])
    assert result["hosts"] == ["lab0", "lab1", "lab2"]
    check_bytes(result)
    check_times(result["seconds"])

    rows = [line.split() for line in labkit_hosts("status").stdout.splitlines()[1:]]
    assert [row[:3] for row in rows] == [
        ["lab0", "10.77.0.1", "1gbit"],
        ["lab1", "10.77.0.2", "1gbit"],
        ["lab2", "10.77.0.3", "100mbit"],
    ]
    assert all(int(count) > 2 * BYTES for row in rows for count in row[3:])
    assert "are down" in labkit_hosts("down").stdout
    assert not folder.exists()
    assert not start_time(holder)
    assert "No hosts were up" in labkit_hosts("down").stdout
    assert "no hosts are up" in labkit_hosts("status").stderr


def check_bytes(result: dict) -> None:
    """Check that all bytes went over the links, and none through shared memory."""
    expected = 2 * (3 - 1) / 3 * BYTES
    for host, counts in result["ring"].items():
        # Headers are 4.6 %; acknowledgements and barriers are few.
        assert all(expected <= count < 1.12 * expected for count in counts), (host, counts, expected)
    # By any algorithm, two of the arrays must leave their ranks, and the sum must get back to two.
    assert sum(sent for _, sent in result["allreduce"].values()) >= 2 * (3 - 1) * BYTES


def check_times(seconds: dict[str, float]) -> None:
    """Check that no message is faster than its link in either direction, and that a slow link is slower."""
    lowest = {"0>1": 1e9, "1>0": 1e9, "0>2": 1e8, "2>0": 1e8}
    for link, bandwidth in lowest.items():
        # Of 4 MiB, 128 KiB may go at once: the size of the link's token bucket.
        assert seconds[link] > 0.95 * 8 * BYTES / bandwidth, (link, seconds)
    assert seconds["0>2"] > 2 * seconds["0>1"] and seconds["2>0"] > 2 * seconds["1>0"], seconds


def test_hosts_can_be_created_again_however_they_end(folder: Path) -> None:
    cards = machine()
    for turn in range(3):
        made = hosts.up(3, "1gbit", {1: "100mbit"})
        assert [host.bandwidth for host in made] == [10**9, 10**8, 10**9]
        assert len(networks(folder)) == 4  # the switch's and each host's
        holder = psutil.Process(load().holder)  # type: ignore[union-attr]
        if turn == 0:
            hosts.down()
            assert not folder.exists()
            continue
        # A program runs on the hosts when their holder is killed, or when they are taken down.
        program = [sys.executable, "-m", "labkit.hosts.mpi", "sleep", "1000"]
        with subprocess.Popen(program, stderr=subprocess.DEVNULL) as job:
            there = psutil.Process(job.pid)
            wait_until(
                lambda there=there: sum("sleep" in one.name() for one in there.children(recursive=True)) == 3,
                "a program on each host",
            )
            if turn == 1:
                holder.kill()
                wait_until(lambda made=made: not any(start_time(one.pid) for one in made), "no host")
                with pytest.raises(hosts.HostsError, match="no hosts are up"):
                    hosts.running()
                hosts.up(1)  # removes what was left
            hosts.down()
            job.wait(60)
        assert not folder.exists()
        assert networks(folder) == set()
    assert machine() == cards


def test_hosts_end_with_their_owner(folder: Path) -> None:
    program = "import os; from labkit import hosts; hosts.up(2, owner=os.getpid()); os.kill(os.getpid(), 9)"
    done = subprocess.run([sys.executable, "-c", program], check=False)
    assert done.returncode == -signal.SIGKILL
    wait_until(lambda: not folder.exists() and not networks(folder), "no hosts, no folder")


def test_invalid_arguments_are_errors_and_create_nothing(folder: Path) -> None:
    for arguments, message in (
        ({"n": 0}, "between 1 and 250; n is 0"),
        ({"bandwidth": "fast"}, "expected a bandwidth such as 100mbit or 1gbit, got 'fast'"),
        ({"bandwidth": "1kbit"}, "at least 100kbit"),
        ({"n": 2, "slow": {2: "1mbit"}}, "slow names host 2; the 2 hosts are 0 to 1"),
    ):
        with pytest.raises(hosts.HostsError, match=message):
            hosts.up(**arguments)  # type: ignore[arg-type]
    assert not folder.exists()


def test_missing_rights_are_an_error_that_names_the_alternative(labkit_hosts: Run, folder: Path) -> None:
    if os.getuid() != 0:
        pytest.skip("only root can give up its rights")
    no_more = 'echo 0 > /proc/sys/user/max_net_namespaces; exec "$@"'
    done = labkit_hosts("up", before=("unshare", "--user", "sh", "-c", no_more, "sh"))
    assert done.returncode == 2
    assert "does not let" in done.stderr and "emulated link" in done.stderr
    assert not folder.exists()


def test_programs_run_from_an_environment_whose_path_has_a_space(labkit_hosts: Run, spaced: Path) -> None:
    if not (spaced.parent / "mpiexec").exists():
        pytest.skip("this MPI is the system's, whose path has no space")
    up = labkit_hosts("up", "--n", "2")
    assert up.returncode == 0, up.stderr
    # Each rank says which mpiexec started it, and which environment it is in.
    program = (
        "import sys; from mpi4py import MPI; from mpiwatch.launch import mpiexec; "
        "print(MPI.COMM_WORLD.allreduce(1), mpiexec(), sys.prefix, sep='|', flush=True)"
    )
    command = [spaced, "-m", "labkit.hosts.mpi", spaced, "-c", program]
    ran = subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=False, cwd=spaced.parents[1]
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stdout.splitlines() == [f"2|{spaced.parent}/mpiexec|{spaced.parents[1]}"] * 2


def test_a_folder_whose_path_needs_quotes_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FOLDER, str(tmp_path / "it's"))
    monkeypatch.setattr(control, "check_system", lambda: None)
    with pytest.raises(hosts.HostsError, match="has a character that shells interpret; set LABKIT_HOSTS"):
        hosts.up(2)
    assert not (tmp_path / "it's").exists()


def test_another_folder_or_a_link_in_place_of_the_hosts_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another user may have planted the link in /tmp, before there were any hosts."""
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "state.json").write_text('{"hosts": [1]}')
    (tmp_path / "link").symlink_to(tmp_path / "other")
    for name, words in (
        ("link", "belongs to another user or is a link; remove"),
        ("other", "not a folder of hosts"),
    ):
        monkeypatch.setenv(FOLDER, str(tmp_path / name))
        with pytest.raises(hosts.HostsError, match=words):
            load()


def test_a_file_that_names_no_process_names_no_hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Signals to the pid -1 would reach every process of this user."""
    monkeypatch.setenv(FOLDER, str(tmp_path))
    (tmp_path / "state.json").write_text('{"token": "x", "holder": -1, "holder_start": "", "hosts": []}')
    state = load()
    assert state is not None and not state.alive()
