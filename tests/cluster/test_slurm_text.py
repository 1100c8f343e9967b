"""The profile `slurm` without a SLURM: settings, the batch script, and the meaning of SLURM's answers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from labkit.cluster import clusters
from labkit.cluster.connection import chosen_by_environment
from labkit.cluster.errors import ClusterError
from labkit.cluster.places.slurm import JobSettings, batch_script, load, parse_settings
from labkit.cluster.places.slurm import parse_job as parse


def test_environment_variables_replace_the_arguments_of_connect(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LABKIT_RANKS", "LABKIT_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    assert chosen_by_environment(4, "mpi") == (4, "mpi", "")
    monkeypatch.setenv("LABKIT_RANKS", "3")
    assert chosen_by_environment(4, "hosts") == (3, "hosts", ", set by LABKIT_RANKS=3")
    monkeypatch.setenv("LABKIT_PROFILE", "slurm")
    assert chosen_by_environment(4, "mpi") == (
        3, "slurm", ", set by LABKIT_RANKS=3 and LABKIT_PROFILE=slurm"
    )  # fmt: skip
    monkeypatch.setenv("LABKIT_RANKS", "four")
    with pytest.raises(ClusterError, match="LABKIT_RANKS=four is set; expected a number"):
        chosen_by_environment(4, "mpi")


def test_settings_have_defaults_and_unknown_names_are_refused() -> None:
    assert parse_settings("", "file") == JobSettings()
    text = "[slurm]\npartition = gpu  # the only one\nlauncher = srun --mpi=pmi2\n"
    assert parse_settings(text, "file") == JobSettings(partition="gpu", launcher="srun --mpi=pmi2")
    for wrong, message in (
        ("partition = main", r"Expected lines as in:\n\[slurm\]"),
        ("[slurm]\npartitions = main", "'partitions', which the profile `slurm` does not know.*partition"),
        ("[slum]\npartition = main", "'slum'"),
        ("[slurm]\nlauncher = srun\n  --mpi=pmi2", "file has launcher on several lines"),
        ("[slurm]\npending = long", "pending = long; expected a number of minutes"),
    ):
        with pytest.raises(ClusterError, match=f"(?s){message}"):
            parse_settings(wrong, "file")


def test_without_slurm_connect_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LABKIT_SLURM", str(tmp_path / "missing"))
    assert load() == JobSettings()
    monkeypatch.setattr(clusters, "profiles", lambda: ["hosts", "slurm"])
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ClusterError, match="this machine has no `sbatch`"):
        clusters.prepare_profile("slurm", 4)


@pytest.mark.parametrize(
    ("launcher", "line"),
    [
        ("mpiexec", "exec /env/mpiexec -n 4 python -m engine"),
        ("mpiexec -bind-to core", "exec /env/mpiexec -bind-to core -n 4 python -m engine"),
        ("srun --mpi=pmi2", "exec srun --kill-on-bad-exit=1 --mpi=pmi2 -n 4 python -m engine"),
        ("/opt/mpirun", "exec /opt/mpirun -n 4 python -m engine"),
    ],
)
def test_the_batch_script_has_the_settings_and_the_launcher(launcher: str, line: str) -> None:
    settings = JobSettings(
        partition="main", nodes="2", launcher=launcher, options="--qos=short --comment='a b'"
    )
    lines = batch_script(settings, 4, ["python", "-m", "engine"], "/env/mpiexec", "log/%j").splitlines()
    assert lines[0] == "#!/bin/sh" and lines[-1] == line
    for option in ("--ntasks=4", "--partition=main", "--nodes=2", "--time=1:00:00", "--qos=short"):
        assert f"#SBATCH {option}" in lines
    assert "#SBATCH '--comment=a b'" in lines
    assert not [each for each in lines if "--account" in each]  # it is not set, so SLURM chooses


def answer(state: str, reason: str = "None", nodes: str = "n[1-4]", code: str = "0:0") -> str:
    """Return what `scontrol show job` prints about a job."""
    return (
        f"JobId=7 JobName=allreduce-lab JobState={state} Reason={reason} Dependency=(null) ExitCode={code} "
        f"TimeLimit=00:01:00 StartTime=2026-11-22T08:00:00 NodeList={nodes} Command=(null)"
    )


def test_a_job_is_described_in_slurms_words_and_a_sentence() -> None:
    pending = parse("7", answer("PENDING", "Resources", ""))
    assert pending.is_pending and not pending.is_over and not pending.never_starts
    assert str(pending) == "SLURM job 7 is pending: Resources; expected start 2026-11-22T08:00:00"
    assert parse("7", answer("PENDING", "PartitionNodeLimit")).never_starts
    running = parse("7", answer("RUNNING"))
    assert str(running) == "SLURM job 7 runs on n[1-4]" and running.cause == "" and not running.is_ending
    timeout = parse("7", answer("TIMEOUT", "TimeLimit"))
    assert timeout.is_over and timeout.cause == "SLURM job 7 has reached its time limit of 00:01:00"
    assert parse("7", answer("CANCELLED")).cause == "SLURM job 7 was cancelled"
    failed = parse("7", answer("FAILED", "NonZeroExitCode", code="1:0"))
    assert failed.is_over and failed.cause == ""  # what a rank did explains more
    forgotten = parse("7", "")
    assert forgotten.is_over and str(forgotten) == "SLURM job 7 has ended (unknown)"


def test_the_cause_of_an_end_is_known_before_all_processes_are_gone() -> None:
    cancelled = parse("7", answer("COMPLETING", code="0:15"))
    assert cancelled.is_ending and not cancelled.is_over
    assert cancelled.cause == "SLURM job 7 was cancelled"
    assert "its time limit" in parse("7", answer("COMPLETING", "TimeLimit", code="0:15")).cause
    assert parse("7", answer("COMPLETING", "NonZeroExitCode", code="137:0")).cause == ""
    # If a rank has ended, the lab ends its job by SIGKILL, and SLURM then calls the job cancelled.
    assert replace(parse("7", answer("CANCELLED", code="0:9")), rank_ended=True).cause == ""
