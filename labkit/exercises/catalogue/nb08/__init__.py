"""The exercises of notebook 08: equal replicas, the optimiser, gradient accumulation, the learning rate."""

from labkit.exercises.catalogue.nb08 import averaging, optimiser, replicas

EXERCISES = [*replicas.EXERCISES, *optimiser.EXERCISES, *averaging.EXERCISES]
