"""The exercises of notebook 10: five reports."""

from labkit.exercises.catalogue.nb10 import case, contributions, costs, counts, differences

EXERCISES = [
    *contributions.EXERCISES,
    *counts.EXERCISES,
    *costs.EXERCISES,
    *differences.EXERCISES,
    *case.EXERCISES,
]
