"""The exercises of notebook 03: sharding."""

from labkit.exercises.catalogue.nb03 import batches, shards

EXERCISES = [*shards.EXERCISES, *batches.EXERCISES]
