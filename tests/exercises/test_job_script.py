"""The exercise of the job script names what is wrong; `make exercises` tries the reference and mistakes."""

from __future__ import annotations

import pytest

from labkit.exercises.job_script import option_faults, run_faults, seconds_of
from labkit.exercises.nb09 import job_script

SCRIPT = job_script()


def changed(old: str, new: str) -> str:
    assert old in SCRIPT
    return SCRIPT.replace(old, new)


@pytest.mark.parametrize(
    ("old", "new", "finding"),
    [
        ("#!/bin/bash\n", "", "first line"),
        ("#SBATCH --open-mode=append\n", "", "--open-mode=append"),
        ("--nodes=4", "--nodes=2", "expected --nodes=4, found 2"),
        ("--nodes=4", "-N=4", "expected --nodes=4, found =4"),
        ("#SBATCH --cpus-per-task=1\n", "", "expected --cpus-per-task=1, found none"),
        ("00:30:00", "30:00:00", "time limit of at most half an hour"),
        ("B:USR1@60", "USR1@60", "--signal=B:USR1@S"),
        ("B:USR1@60", "B:USR1@10", "--signal=B:USR1@S"),
        ("B:USR1@60", "B:USR1@900", "--signal=B:USR1@S"),
        ("B:USR1@60", "B:USR1@60s", "--signal=B:USR1@S"),
        ("00:30:00", "half", "as --time=HH:MM:SS"),
        ("--nodes=4", '--nodes="4', "cannot be read"),
        ("#!/bin/bash\n", "#!/bin/bash\ncd /tmp\n", "below the first command"),
    ],
)
def test_a_wrong_option_is_named(old: str, new: str, finding: str) -> None:
    assert finding in "\n".join(option_faults(changed(old, new)))


def test_a_script_may_wait_in_another_way() -> None:
    begin, _, _ = SCRIPT.partition("while kill")
    for end in (
        "wait $ranks\nwait $ranks\n",
        "while kill -0 $ranks; do sleep 5; done\nwait $ranks\n",
        "trap 'kill -USR1 $ranks; wait $ranks' USR1\nwait $ranks; code=$?; wait $ranks; exit $?\n",
    ):
        assert list(run_faults(begin + end)) == []


def test_an_option_can_be_written_in_another_way() -> None:
    assert list(option_faults(changed("--nodes=4", "-N 4  # nodes"))) == []
    two_lines = "--nodes=4\n#SBATCH --ntasks-per-node=1"
    assert list(option_faults(changed(two_lines, "--nodes 4 --ntasks-per-node=1"))) == []


@pytest.mark.parametrize(
    ("old", "new", "finding"),
    [
        (" OPENBLAS_NUM_THREADS=1", "", "OPENBLAS_NUM_THREADS is not 1"),
        ("labkit train", "echo", "labkit train --out"),
        ("lenet5 --data", "linear --data", "--model lenet5"),
        ('[ -e "$1/checkpoint.npz" ]', "true", "labkit train --out"),
        ("done\n", "done\nwhile true; do sleep 1; done\n", "still runs"),
        ('"$SLURM_NTASKS"', "4", "expected `mpiexec -n 3"),
        ("while kill -0 $ranks 2>/dev/null", "while wait $ranks; [ $? -gt 128 ]", "still runs"),
        ('options[@]}" &', 'options[@]}" & exit', "ended before mpiexec: wait for it"),
        ("kill -USR1 $ranks'", "kill $ranks'", "killed mpiexec"),
        ("mpiexec", "true", "without calling mpiexec"),
    ],
)
@pytest.mark.thorough
def test_a_wrong_command_is_named(old: str, new: str, finding: str) -> None:
    assert finding in "\n".join(run_faults(changed(old, new)))


@pytest.mark.parametrize(
    ("limit", "seconds"), [("5", 300), ("5:30", 330), ("01:00:00", 3600), ("1-0", 86400), ("1-2:30", 95400)]
)
def test_time_limits_of_slurm(limit: str, seconds: int) -> None:
    assert seconds_of(limit) == seconds
