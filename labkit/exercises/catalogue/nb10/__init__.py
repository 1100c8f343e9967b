"""The exercises of notebook 10: five reports."""

from labkit.exercises.catalogue.nb10 import contributions, differences

EXERCISES = [*contributions.EXERCISES, *differences.EXERCISES]
