"""The exercises of notebook 05: the ring."""

from labkit.exercises.catalogue.nb05 import ring, rounds

EXERCISES = [*ring.EXERCISES, *rounds.EXERCISES]
