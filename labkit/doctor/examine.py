"""All checks, the slow ones at the same time."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from functools import partial

from labkit import env, leftovers
from labkit.doctor import clusters, machine, mpi, versions
from labkit.doctor.findings import Finding, note
from labkit.doctor.trials import Outcome, Trial, probing
from labkit.processes import cores

RANKS = 4  # as many as the notebooks ask for


def examine(environment: Mapping[str, str], n: int = RANKS) -> list[Finding]:
    """Run all checks for n ranks and return what they found; takes some seconds, at most some deadlines.

    `environment` is the user's own, before the lab's settings; of all started nothing is left.
    """
    lab = {**environment, **env.settings()}
    forgotten = leftovers.forgotten_segments()  # now: the trials' own watchers remove them
    typed = shutil.which("mpiexec", path=environment.get("PATH"))
    library = probing("library", environment)
    threads = [probing("threads", each) for each in (lab, environment)]
    named = probing("host", environment)
    version = Trial([typed, "--version"], environment) if typed else None
    engines = probing("world", lab, env.mpiexec(), "-n", str(n))

    findings: list[Finding] = []

    def check(name: str, function: Callable[[], Finding]) -> None:
        try:
            findings.append(function())
        except Exception as error:  # one check that cannot be made must not hide the others
            why = "This check needs something that is not here, or has an error of its own."
            said = f"could not be checked: {type(error).__name__}: {error}"
            findings.append(note(name, said, why, "Mend what else stands here first."))

    check("python", versions.python)
    check("packages", versions.packages)
    check("settings", clusters.settings)
    check("clusters", clusters.stale)
    check("segments", partial(clusters.segments, forgotten))
    check("shared memory", partial(machine.shared_memory, n))
    check("temporary", partial(machine.temporary, environment))

    met = library.finish()
    loaded = met.told[0] if met.told else {"name": "", "file": ""}
    check("mpi", partial(mpi.loads, met, environment))
    check("one mpi", lambda: mpi.alone(mpi.wheels(), loaded["file"], environment))
    says = version.finish().said if version else ""
    check("mpiexec", partial(mpi.launcher, typed, says, loaded["name"], environment))
    started = engines.finish()
    if met.told:
        check("engines", partial(mpi.engines, started, n, environment))
        if typed:
            foreign = mpi.kind_of(says) not in ("", loaded["name"])
            findings += as_typed(typed, {**environment, **env.OPEN_MPI} if foreign else environment, n)
    in_lab, own = (trial.finish() for trial in threads)
    check("threads", partial(machine.blas, in_lab, own, environment, n, cores()))
    check("host name", partial(machine.name, named.finish()))
    return findings


def as_typed(mpiexec: str, environment: Mapping[str, str], n: int) -> Iterator[Finding]:
    """Start n ranks as a user types it; where Open MPI refuses, say so, give it leave, and try again."""

    def attempt() -> Outcome:
        return probing("world", {**environment, **leave}, mpiexec, "-n", str(n)).finish()

    leave: dict[str, str] = {}
    outcome = attempt()
    refused = mpi.needs_leave(outcome)
    yield mpi.root(refused)
    if refused:
        leave.update(mpi.LEAVE)
        outcome = attempt()
    refused = mpi.needs_room(outcome)
    yield mpi.slots(refused, n, cores())
    if refused:
        leave.update(mpi.ROOM)
        outcome = attempt()
    yield mpi.world(outcome, n, mpiexec, environment)
