"""mpiwatch.launch recognises worlds of one rank by the variables that launchers set."""

from __future__ import annotations

from pathlib import Path

import pytest

from mpiwatch.launch import as_typed, is_first, node_name, started, world_of_one

SRUN = {"SLURM_JOB_ID": "1", "SLURM_NTASKS": "4", "SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "2"}
PMI2 = {**SRUN, "SLURM_MPI_TYPE": "pmi2", "PMI_SIZE": "4", "PMI_RANK": "2"}
PMIX = {**SRUN, "SLURM_MPI_TYPE": "pmix", "PMIX_RANK": "2"}
BATCH = {"SLURM_JOB_ID": "1", "SLURM_NTASKS": "4", "SLURM_PROCID": "0"}
HYDRA = {"PMI_SIZE": "4", "PMI_RANK": "2"}
PRTERUN = {"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "2", "PMIX_RANK": "2"}


@pytest.mark.parametrize(
    ("environment", "launcher"),
    [
        (SRUN, "srun --mpi=none"),
        (PMI2, "srun --mpi=pmi2"),
        (PMIX, "srun --mpi=pmix"),
        (HYDRA, "MPICH's mpiexec"),
        (PRTERUN, "Open MPI's mpiexec"),
        # These are for an mpiexec inside an allocation. Hydra starts its own processes with srun.
        ({**SRUN, **HYDRA}, "MPICH's mpiexec"),
        ({**SRUN, **PRTERUN}, "Open MPI's mpiexec"),
    ],
)
def test_a_world_of_one_rank_names_its_launcher(environment: dict[str, str], launcher: str) -> None:
    assert started(environment) == (launcher, 4)
    assert not is_first(environment)
    why = world_of_one(1, "MPICH", "/env/bin/mpiexec", environment)
    named = f"`{launcher}`" if launcher.startswith("srun") else launcher
    assert f"{named} has started 4 processes" in why
    assert "`srun --mpi=pmi2` or `/env/bin/mpiexec -n 4`" in why
    assert world_of_one(4, "MPICH", "/env/bin/mpiexec", environment) == ""


def test_a_batch_script_without_a_launcher_gets_the_launchers_to_use() -> None:
    why = world_of_one(1, "Open MPI", "mpiexec", BATCH)
    assert "one process in a SLURM job of 4 tasks" in why
    assert "`srun --mpi=pmix` or `mpiexec -n 4` inside the allocation" in why


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"PMI_SIZE": "1"},
        {"OMPI_COMM_WORLD_SIZE": "1", **SRUN},
        {**SRUN, "PMI_SIZE": "1"},
        {"SLURM_NTASKS": "1"},
    ],
)
def test_a_world_of_one_rank_that_was_asked_for_is_accepted(environment: dict[str, str]) -> None:
    assert world_of_one(1, "MPICH", "mpiexec", environment) == ""


def test_without_a_known_srun_option_the_message_names_only_mpiexec() -> None:
    assert "Start the ranks with `mpiexec -n 4`." in world_of_one(1, "Intel MPI", "mpiexec", HYDRA)


def test_a_program_is_named_as_one_would_type_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "env" / "bin" / "mpiexec"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    (tmp_path / "notebooks").mkdir()
    monkeypatch.chdir(tmp_path / "notebooks")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert as_typed(str(program)) == "../env/bin/mpiexec"
    assert as_typed("mpiexec") == "mpiexec"
    monkeypatch.setenv("PATH", str(program.parent))
    assert as_typed(str(program)) == "mpiexec"


def test_slurm_names_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURMD_NODENAME", raising=False)
    assert node_name("vm") == "vm"
    monkeypatch.setenv("SLURMD_NODENAME", "n3")
    assert node_name("vm") == "n3"
