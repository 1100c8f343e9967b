"""Wrong answers to the exercises of notebook 08, and the finding that each must get."""

from tests.exercises.wrong.nb08 import optimiser, replicas

WRONG = [*replicas.WRONG, *optimiser.WRONG]
