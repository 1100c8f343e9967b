"""The exercise of the job script accepts its own reference, and names what is wrong with others."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from labkit.exercises.job_script import option_faults, run_faults, seconds_of
from labkit.exercises.nb09 import job_script

SCRIPT = job_script()


def without(line: str) -> Callable[[str], str]:
    return lambda script: script.replace(f"{line}\n", "")


def replaced(old: str, new: str) -> Callable[[str], str]:
    return lambda script: script.replace(old, new)


def test_the_solution_is_right() -> None:
    assert [*option_faults(SCRIPT), *run_faults(SCRIPT)] == []


@pytest.mark.parametrize(
    ("change", "finding"),
    [
        (without("#!/bin/bash"), "first line"),
        (without("#SBATCH --requeue"), "--requeue"),
        (without("#SBATCH --open-mode=append"), "--open-mode=append"),
        (replaced("--nodes=4", "--nodes=2"), "expected --nodes=4, found 2"),
        (without("#SBATCH --cpus-per-task=1"), "expected --cpus-per-task=1, found none"),
        (replaced("00:30:00", "30:00:00"), "time limit of at most half an hour"),
        (replaced("B:USR1@60", "USR1@60"), "--signal=B:USR1@S"),
        (replaced("B:USR1@60", "B:USR1@10"), "--signal=B:USR1@S"),
        (replaced("B:USR1@60", "B:USR1@900"), "--signal=B:USR1@S"),
        (replaced("B:USR1@60", "B:USR1@60s"), "--signal=B:USR1@S"),
        (replaced("00:30:00", "half"), "as --time=HH:MM:SS"),
        (replaced("--nodes=4", '--nodes="4'), "cannot be read"),
        (replaced("#!/bin/bash\n", "#!/bin/bash\ncd /tmp\n"), "below the first command"),
    ],
)
def test_a_wrong_option_is_named(change: Callable[[str], str], finding: str) -> None:
    wrong = change(SCRIPT)
    assert wrong != SCRIPT
    assert finding in "\n".join(option_faults(wrong))


def test_a_script_may_wait_in_another_way() -> None:
    begin, _, _ = SCRIPT.partition("while kill")
    for end in (
        "wait $ranks\nwait $ranks\n",
        "while kill -0 $ranks; do sleep 5; done\nwait $ranks\n",
        "trap 'kill -USR1 $ranks; wait $ranks' USR1\nwait $ranks; code=$?; wait $ranks; exit $?\n",
    ):
        assert list(run_faults(begin + end)) == []


@pytest.mark.parametrize(
    "change",
    [
        replaced("--nodes=4", "--nodes 4"),
        replaced("--nodes=4", "-N 4  # nodes"),
        replaced("--nodes=4\n#SBATCH --ntasks-per-node=1", "--nodes=4 --ntasks-per-node=1"),
    ],
)
def test_an_option_can_be_written_in_another_way(change: Callable[[str], str]) -> None:
    other = change(SCRIPT)
    assert other != SCRIPT
    assert list(option_faults(other)) == []


@pytest.mark.parametrize(
    ("change", "finding"),
    [
        (replaced("export OMP_NUM_THREADS=1 ", "export "), ": OMP_NUM_THREADS is not 1"),
        (replaced(" OPENBLAS_NUM_THREADS=1", ""), "OPENBLAS_NUM_THREADS is not 1"),
        (replaced("labkit train", "echo"), "labkit train --out"),
        (replaced("lenet5 --data", "linear --data"), "--model lenet5"),
        (replaced('[ -e "$1/checkpoint.npz" ]', "true"), "labkit train --out"),
        (replaced("done\n", "done\nwhile true; do sleep 1; done\n"), "still runs"),
        (replaced('"$SLURM_NTASKS"', "4"), "expected `mpiexec -n 3"),
        (replaced("(--resume", "(--out"), "labkit train --resume"),
        (replaced("trap 'kill -USR1 $ranks' USR1", "trap 'true' USR1"), "did not pass it on"),
        (replaced("trap 'kill -USR1 $ranks' USR1", ""), "does not catch SIGUSR1"),
        (replaced("exit $?", "exit 0"), ", the script with 0"),
        (replaced("while kill -0 $ranks 2>/dev/null", "while wait $ranks; [ $? -gt 128 ]"), "still runs"),
        (replaced('options[@]}" &', 'options[@]}" & exit'), "ended before mpiexec: wait for it"),
        (replaced("kill -USR1 $ranks'", "kill $ranks'"), "killed mpiexec"),
        (replaced("mpiexec", "true"), "without calling mpiexec"),
    ],
)
@pytest.mark.thorough
def test_a_wrong_command_is_named(change: Callable[[str], str], finding: str) -> None:
    wrong = change(SCRIPT)
    assert wrong != SCRIPT
    assert finding in "\n".join(run_faults(wrong))


@pytest.mark.parametrize(
    ("limit", "seconds"), [("5", 300), ("5:30", 330), ("01:00:00", 3600), ("1-0", 86400), ("1-2:30", 95400)]
)
def test_time_limits_of_slurm(limit: str, seconds: int) -> None:
    assert seconds_of(limit) == seconds
