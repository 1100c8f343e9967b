"""Programs on ranks: a missing rank is an error, and no shared memory is left."""

from __future__ import annotations

import os
from pathlib import Path

from tests.conftest import PROGRAMS, kill_tree, run, started


def files(line: str) -> list[str]:
    word, *paths = line.split()
    assert word == "files", line
    return paths


def test_ranks_with_shared_memory_end_without_files_or_complaints() -> None:
    done = run(3, PROGRAMS / "shared_memory_files.py", "end")
    (line,) = done.stdout.splitlines()  # no complaint of the MPI library
    assert done.returncode == 0 and not any(map(os.path.exists, files(line))), done.stdout


def test_killed_ranks_leave_no_shared_memory() -> None:
    with started(3, PROGRAMS / "shared_memory_files.py", "wait") as job:
        line = job.stdout.readline()
        kill_tree(job)
    assert not any(map(os.path.exists, files(line)))


def test_a_missing_rank_is_an_error_on_unwatched_communicators() -> None:
    with started(3, PROGRAMS / "missing_rank.py", "1") as job:
        said, _ = job.communicate(timeout=60)
    for call, waited_in, missing in (
        ("run", "ring_allreduce", "a message from rank 2"),
        ("algorithm", "ring_allreduce", "a message from rank 2"),
        ("RingComm", "Allreduce", "the other ranks"),  # for its duplicate, in the MPI library
        ("used RingComm", "ring_allreduce", "a message from rank 2"),
        ("started", "ring_allreduce", "a message from rank 2"),
        ("shared memory", "shared-memory", "a message from rank 2"),
    ):
        assert f"{call}: rank 0 waited 1 s in {waited_in} for {missing}" in said, said
        assert f"{call}: rank 1 waited 1 s in {waited_in} for " in said, said


def test_emulated_links_in_strict_mode_are_refused(tmp_path: Path) -> None:
    program = tmp_path / "links.py"
    program.write_text(
        "from mpi4py import MPI\nfrom labkit.comm import EmulatedComm, Link\n"
        "try:\n    EmulatedComm(MPI.COMM_WORLD, Link(1e9))\n"
        "except NotImplementedError as error:\n    print(error)\n"
    )
    done = run(2, "-m", "mpiwatch", "--strict", program)
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("leave out `strict=True` or `--strict`") == 2, done.stdout
