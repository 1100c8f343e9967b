"""The whole corpus."""

from __future__ import annotations

from tests.corpus import collectives, messages, others
from tests.corpus.program import Program


def corpus() -> dict[str, Program]:
    """Return all programs, by name."""
    made = [*messages.programs(), *collectives.programs(), *others.programs()]
    programs = {program.name: program for program in made}
    assert len(programs) == len(made), "two programs have the same name"
    return programs
