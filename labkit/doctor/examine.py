"""Run all checks, the slow ones at the same time."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from functools import partial

from labkit.doctor import clusters, machine, mpi, versions
from labkit.doctor.findings import Finding, note
from labkit.doctor.trials import Outcome, Trial, start_probe
from mpiwatch import env, leftovers
from mpiwatch.processes import cores

RANKS = 4  # the number that the notebooks use


def examine(environment: Mapping[str, str], n: int = RANKS) -> list[Finding]:
    """Run all checks for n ranks and return their findings, after some seconds.

    `environment` is the user's own, without the lab's settings. Nothing that is started remains.
    """
    lab_environment = {**environment, **env.settings(), **env.one_machine(environment)}
    forgotten = leftovers.forgotten_segments()
    typed_mpiexec = shutil.which("mpiexec", path=environment.get("PATH"))
    library_probe = start_probe("library", environment)
    lab_threads = start_probe("threads", lab_environment)
    user_threads = start_probe("threads", environment)
    host_probe = start_probe("host", environment)
    version = Trial([typed_mpiexec, "--version"], environment) if typed_mpiexec else None
    engines = start_probe("world", lab_environment, env.mpiexec(), "-n", str(n))

    findings: list[Finding] = []

    def check(name: str, function: Callable[[], Finding]) -> None:
        try:
            findings.append(function())
        except Exception as error:  # a check that fails must not prevent the others
            found = f"could not be checked: {type(error).__name__}: {error}"
            why = "The check needs something that is missing here, or has an error of its own."
            findings.append(note(name, found, why, "Fix the other findings first."))

    check("python", versions.python)
    check("packages", versions.packages)
    check("settings", clusters.settings)
    check("clusters", clusters.stale_files)
    check("segments", partial(clusters.segments, forgotten))
    check("shared memory", partial(machine.shared_memory, n))
    check("temp folder", partial(machine.temporary_folder, environment))

    library = library_probe.finish()
    loaded = library.records[0] if library.records else {"name": "", "file": ""}
    check("mpi", partial(mpi.library, library, environment))
    check("one mpi", lambda: mpi.single_library(mpi.wheels(), loaded["file"], environment))
    version_text = version.finish().output if version else ""
    check("mpiexec", partial(mpi.mpiexec, typed_mpiexec, version_text, loaded["name"], environment))
    engines_outcome = engines.finish()
    if library.records:
        check("engines", partial(mpi.engines, engines_outcome, n, environment))
        if typed_mpiexec:
            other_mpi = mpi.vendor_of(version_text) not in ("", loaded["name"])
            typed_environment = {**environment, **env.OPEN_MPI} if other_mpi else environment
            findings += typed_command(typed_mpiexec, typed_environment, n)
    outcomes = lab_threads.finish(), user_threads.finish()
    check("threads", partial(machine.blas_threads, *outcomes, environment, n, cores()))
    check("host name", partial(machine.host_name, host_probe.finish()))
    return findings


def typed_command(path: str, environment: Mapping[str, str], n: int) -> Iterator[Finding]:
    """Start n ranks as a user types it. If Open MPI refuses, report it, set its variables and try again."""

    def attempt() -> Outcome:
        return start_probe("world", {**environment, **permissions}, path, "-n", str(n)).finish()

    permissions: dict[str, str] = {}
    outcome = attempt()
    refused = mpi.refused_root(outcome)
    yield mpi.root(refused)
    if refused:
        permissions.update(mpi.ALLOW_ROOT)
        outcome = attempt()
    refused = mpi.refused_slots(outcome)
    yield mpi.slots(refused, n, cores())
    if refused:
        permissions.update(mpi.ALLOW_MORE_RANKS)
        outcome = attempt()
    yield mpi.world(outcome, n, path, environment)
