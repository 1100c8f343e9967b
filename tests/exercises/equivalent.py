"""Mutants that do what the reference does, by exercise: the changed lines, and why it makes no difference."""

from __future__ import annotations

EQUIVALENT: dict[str, dict[str, str]] = {}
