"""The whole corpus."""

from __future__ import annotations

from tests.corpus import after_corrbench, collectives, messages, others
from tests.corpus.program import Program


def corpus(after_corrbench_: bool = False) -> dict[str, Program]:
    """Return all programs of our own, or those after MPI-CorrBench, by name."""
    own = (*messages.programs(), *collectives.programs(), *others.programs())
    made = [*after_corrbench.programs()] if after_corrbench_ else [*own]
    programs = {program.name: program for program in made}
    assert len(programs) == len(made), "two programs have the same name"
    return programs
