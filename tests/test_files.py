"""Files that are whole or not there."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from labkit import files
from labkit.files import atomic_write, kept_beside, locked, read_input, remove_unfinished
from labkit.train import prepare
from mpiwatch.output import write_whole


def test_a_file_appears_when_it_is_whole_and_stays_when_the_next_writer_fails(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    with atomic_write(path) as file:
        file.write(b"all of it")
        file.flush()
        assert not path.exists()
    with pytest.raises(KeyboardInterrupt), atomic_write(path) as file:
        file.write(b"half")
        raise KeyboardInterrupt
    assert path.read_bytes() == b"all of it" and list(tmp_path.iterdir()) == [path]


def test_prepare_makes_the_directory_and_removes_only_leftovers(tmp_path: Path) -> None:
    directory = tmp_path / "new" / "er"
    with prepare(directory):
        pass
    for name in (".weights.txt.labkit-part", ".hidden", "kept.txt"):
        (directory / name).touch()
    with prepare(directory), atomic_write(directory / "now.txt"), prepare(directory / "below"):
        remove_unfinished(directory)
    assert {path.name for path in directory.iterdir()} == {".hidden", "kept.txt", "now.txt", "below"}


WRITE = """
import sys
from pathlib import Path
from labkit.files import atomic_write
for number in range(60):
    with atomic_write(Path(sys.argv[1])) as file:
        for _ in range(20):
            file.write(sys.argv[2].encode() * 500)
            file.flush()
"""


def test_two_writers_do_not_damage_each_others_file(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    with atomic_write(path) as file:
        file.write(b"a" * 10_000)
    writers = [subprocess.Popen([sys.executable, "-c", WRITE, path, letter]) for letter in "abc"]
    reads = 0
    while any(writer.poll() is None for writer in writers):
        content = path.read_bytes()
        assert len(content) == 10_000 and len(set(content)) == 1
        reads += 1
    assert [writer.returncode for writer in writers] == [0, 0, 0] and reads > 3
    assert [each.name for each in tmp_path.iterdir()] == ["record.json"]


def test_the_next_writer_removes_the_file_of_a_killed_one(tmp_path: Path) -> None:
    path = tmp_path / f"{'long' * 60}.json"  # the name of the unfinished file, too, has at most 255 bytes
    program = "import os; from labkit.files import *\nwith atomic_write(Path({!r})): os.kill(os.getpid(), 9)"
    for _ in range(3):
        subprocess.run([sys.executable, "-c", program.format(str(path))], check=False)
        assert len(list(tmp_path.iterdir())) == 1
    with atomic_write(path) as file:
        file.write(b"whole")
    assert [each.name for each in tmp_path.iterdir()] == [path.name] and path.read_bytes() == b"whole"


def test_a_lock_names_its_holder_and_ends_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "KILLED_S", 0.1)
    lock = tmp_path / "lock"
    held = f"with locked(Path({str(lock)!r})): print('locked', flush=True); input()"
    command = [sys.executable, "-c", f"from labkit.files import *\n{held}"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout and holder.stdout.readline() == "locked\n"
        with pytest.raises(BlockingIOError, match=rf"in use by process {holder.pid} on "), locked(lock):
            pass
        holder.kill()
    assert lock.exists()
    with locked(lock):
        assert lock.read_text().startswith(f"process {os.getpid()} on ")
    assert not lock.exists()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be two users")
def test_another_user_s_lock_is_waited_for_and_removed_after_a_kill() -> None:
    with TemporaryDirectory() as name:
        os.chmod(name, 0o777)
        lock = Path(name, "lock")
        held = f"with locked(Path({str(lock)!r})): print('locked', flush=True); input()"
        command = [sys.executable, "-c", f"from labkit.files import *\n{held}"]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
            assert holder.stdout and holder.stdout.readline() == "locked\n"
            assert _as_another_user(lock).startswith(f"in use by process {holder.pid} on ")
            holder.kill()
        assert _as_another_user(lock) == "held"
        assert not lock.exists()


def test_where_the_file_system_has_no_locks_nothing_is_locked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_locks(file: int, operation: int) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(fcntl, "flock", no_locks)
    with locked(tmp_path / "lock"), locked(tmp_path / "lock"):
        pass


def _as_another_user(lock: Path) -> str:
    read, write = os.pipe()
    if os.fork() == 0:
        os.setuid(12345)
        try:
            with locked(lock, wait_s=0):
                said = "held"
        except OSError as error:
            said = str(error.strerror)
        os.write(write, said.encode())
        os._exit(0)
    os.wait()
    os.close(write)
    with open(read) as file:
        return file.read()


def with_labkit(path: Path, text: str) -> None:
    with atomic_write(path) as file:
        file.write(text.encode())


WRITERS = pytest.mark.parametrize("write", [with_labkit, write_whole], ids=["labkit", "mpiwatch"])
NO_FILES = pytest.mark.parametrize("kind", ["folder", "pipe", "socket", "loop", "link to a pipe"])


def make(kind: str, path: Path) -> None:
    """Put something at a path that is no plain file."""
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(path))
    elif kind == "loop":
        path.symlink_to(path)
    else:
        os.mkfifo(path.with_name("target"))
        path.symlink_to("target")


def kinds_and_changes(folder: Path) -> dict[str, tuple[int, ...]]:
    """Return what is in a folder: no time of access, which reading a link changes."""
    status = {each.name: each.lstat() for each in folder.iterdir()}
    return {name: (each.st_mode, each.st_ino, each.st_mtime_ns) for name, each in status.items()}


@WRITERS
@NO_FILES
def test_only_a_plain_file_is_replaced(kind: str, write: Callable[[Path, str], None], tmp_path: Path) -> None:
    path = tmp_path / "x"
    make(kind, path)
    before = kinds_and_changes(tmp_path)
    with pytest.raises(OSError) as raised:
        write(path, "text")
    assert raised.value.filename == str(path)
    assert kinds_and_changes(tmp_path) == before


@WRITERS
def test_a_link_stays_and_its_file_is_written(write: Callable[[Path, str], None], tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    for name, old in (("old.txt", "old"), ("new.txt", None)):
        target, link = tmp_path / "below" / name, tmp_path / f"link-to-{name}"
        if old:
            target.write_text(old)
        link.symlink_to(f"below/{name}")
        write(link, "text")
        assert link.is_symlink() and target.read_text() == "text"
    assert len([*tmp_path.rglob("*")]) == 5


@WRITERS
def test_a_device_and_an_open_descriptor_are_written_to(
    write: Callable[[Path, str], None], tmp_path: Path
) -> None:
    null, output = tmp_path / "null", tmp_path / "output"
    try:
        os.mknod(null, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
    except OSError:  # not root, who alone could replace the real one
        null = Path("/dev/null")
    device, link = null.lstat().st_rdev, tmp_path / "link"
    link.symlink_to(null)
    for path in (null, link):
        write(path, "text")
        assert null.lstat().st_rdev == device and link.is_symlink()
    with output.open("w") as file:  # as a shell redirects standard output
        file.write("before ")
        file.flush()
        descriptor = tmp_path / "stdout"
        descriptor.symlink_to(f"/dev/fd/{file.fileno()}")
        write(descriptor, "text")
        file.write(" after")
    assert output.read_text() == "before text after" and descriptor.is_symlink()


def test_a_replaced_file_keeps_its_permissions(tmp_path: Path) -> None:
    path = tmp_path / "private"
    path.write_text("old")
    path.chmod(0o600)
    with_labkit(path, "new")
    assert path.read_text() == "new" and stat.S_IMODE(path.stat().st_mode) == 0o600


@NO_FILES
def test_neither_a_reader_nor_a_lock_waits_for_a_pipe_or_removes_one(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "x"
    make(kind, path)
    before = path.lstat()
    with pytest.raises(OSError):
        read_input(path)
    with pytest.raises(OSError), locked(path):
        pass
    assert path.lstat() == before


def test_a_lock_does_not_write_through_a_link_and_no_link_is_renamed_over(tmp_path: Path) -> None:
    thesis, lock, old = (tmp_path / name for name in ("thesis.tex", ".lock", "a-old.txt"))
    thesis.write_text("written for a year")
    lock.symlink_to(thesis)
    with pytest.raises(OSError), locked(lock):
        pass
    assert thesis.read_text() == "written for a year" and lock.is_symlink()
    (tmp_path / "a.txt").touch()
    old.symlink_to("nothing")
    assert kept_beside(tmp_path / "a.txt") == "a-old2.txt" and old.is_symlink()
