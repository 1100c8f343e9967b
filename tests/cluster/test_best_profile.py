"""Where the ranks of a notebook run if nobody has said so."""

from __future__ import annotations

from pathlib import Path

import pytest

from labkit import hosts
from labkit.cluster.best_profile import best_profile, slurm_answers
from labkit.cluster.errors import ClusterError


def sinfo(folder: Path, command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a program `sinfo` on PATH that runs a command of the shell."""
    program = folder / "sinfo"
    program.write_text(f"#!/bin/sh\n{command}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


def test_the_environment_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LABKIT_PROFILE", "mpi")
    assert best_profile() == "mpi"
    monkeypatch.setenv("LABKIT_RANKS", "many")
    with pytest.raises(ClusterError, match="expected a number of ranks"):
        best_profile()


def test_a_cluster_is_chosen_if_it_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LABKIT_PROFILE", raising=False)
    sinfo(tmp_path, "exit 0", monkeypatch)
    assert best_profile() == "slurm"
    sinfo(tmp_path, "exit 1", monkeypatch)
    assert not slurm_answers()


def test_without_a_cluster_and_hosts_it_is_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """More hosts than there can be: so none are made, whoever runs the test."""
    monkeypatch.delenv("LABKIT_PROFILE", raising=False)
    monkeypatch.setenv("LABKIT_RANKS", "100000")
    sinfo(tmp_path, "exit 1", monkeypatch)
    try:
        hosts.running()
    except hosts.HostsError:
        assert best_profile() == "mpi"
        assert "this machine alone" in capsys.readouterr().out
    else:
        assert best_profile() == "hosts"
