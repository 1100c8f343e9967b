"""The exercise of the job script names what is wrong; `make exercises` tries the reference and mistakes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from labkit.checks import sandbox
from labkit.exercises import job_script as job_script_module
from labkit.exercises.job_script import (
    EXIT_CODE,
    OPTIONS_PART,
    PARTS,
    RESUME,
    SIGNAL,
    faults_by_part,
    option_faults,
    run_faults,
    seconds_of,
)
from labkit.exercises.nb09 import job_script

SCRIPT = job_script()


def findings(script: str) -> list[str]:
    """Return what is wrong with the run of a script."""
    return [text for _, text in run_faults(script)]


def wrong_parts(script: str) -> set[str]:
    """Return the parts of the exercise in which a script has a fault."""
    return {part for part, _ in faults_by_part(script)}


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
        assert findings(begin + end) == []


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
    assert finding in "\n".join(findings(changed(old, new)))


def test_an_mpiexec_that_takes_long_was_not_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a busy machine, where its last second takes several."""
    slow = job_script_module.FAKE_MPIEXEC.replace("left=20", "left=80")
    monkeypatch.setattr(job_script_module, "FAKE_MPIEXEC", slow)
    begin, _, _ = SCRIPT.partition("while kill")
    faults = "\n".join(findings(f"{begin}wait $ranks\n"))
    assert "ended before mpiexec, after SIGUSR1" in faults and "killed" not in faults


@pytest.mark.parametrize(
    ("limit", "seconds"), [("5", 300), ("5:30", 330), ("01:00:00", 3600), ("1-0", 86400), ("1-2:30", 95400)]
)
def test_time_limits_of_slurm(limit: str, seconds: int) -> None:
    assert seconds_of(limit) == seconds


@pytest.fixture(params=["in a sandbox", "without one"])
def machine(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a file that the commands of this machine write to which start jobs elsewhere."""
    if request.param == "without one":
        monkeypatch.setattr(sandbox, "refusal", lambda: "none here")
    elif sandbox.refusal():
        pytest.skip(sandbox.refusal())
    noted = tmp_path / "noted"
    for name in ("sbatch", "srun", "ssh", "scontrol", "crontab", "no-list-has-this"):
        (tmp_path / name).write_text(f"#!/bin/sh\necho {name} >> {noted}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return noted


@pytest.mark.parametrize(
    ("line", "finding"),
    [
        ("sbatch --dependency=afterany:$SLURM_JOB_ID $0", "the script calls `sbatch --dependency=afterany"),
        ("echo '* * * * * job' | crontab -", "the script calls `crontab -`: a job that submits jobs"),
        ("scontrol show job; ssh host true; no-list-has-this", ""),
    ],
)
def test_a_check_starts_no_jobs_elsewhere(line: str, finding: str, machine: Path) -> None:
    """A script that submits itself would do so in the check, and its job again."""
    faults = findings(changed("export OMP", f"{line}\nexport OMP"))
    assert not machine.exists()
    assert finding in "\n".join(faults)
    assert bool(faults) == bool(finding)


def test_ranks_that_another_launcher_starts_are_named(machine: Path) -> None:
    faults = findings(changed("mpiexec -n", "srun -n"))
    assert "without calling mpiexec, but `srun -n 4 labkit train" in faults[0]
    assert not machine.exists()


def test_a_script_of_a_megabyte_is_refused() -> None:
    assert "1,0" in next(faults_by_part(SCRIPT + "#" * 1_000_000))[1]
    assert wrong_parts(SCRIPT + "#" * 1_000_000) == {*PARTS}


@pytest.mark.parametrize(
    ("old", "new", "parts"),
    [
        ("#SBATCH --requeue\n", "", {OPTIONS_PART}),
        ("(--resume", "(--out", {RESUME}),
        ("trap 'kill -USR1 $ranks' USR1", "trap 'true' USR1", {SIGNAL}),
        ("exit $?", "exit 0", {EXIT_CODE}),
        ('options[@]}" &', 'options[@]}" & exit', {EXIT_CODE, SIGNAL}),
        ("mpiexec -n", "srun -n", {RESUME, SIGNAL, EXIT_CODE}),
    ],
)
@pytest.mark.thorough
def test_a_fault_costs_its_part_alone(old: str, new: str, parts: set[str]) -> None:
    assert wrong_parts(changed(old, new)) == parts
