"""The exercises of notebook 06: bottleneck nodes."""

from labkit.exercises.catalogue.nb06 import cures, links, measuring

EXERCISES = measuring.EXERCISES + links.EXERCISES + cures.EXERCISES

__all__ = ["EXERCISES"]
