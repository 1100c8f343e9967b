"""Files that are whole or not there."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from labkit import files
from labkit.files import atomic_write, locked, remove_unfinished
from labkit.train import prepare


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
        lock.write_text("process 1")
        lock.chmod(0o600 | 0o044)
        with lock.open() as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            assert _as_another_user(lock) == "in use by process 1"
        assert _as_another_user(lock) == "held"
        assert not lock.exists()


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
