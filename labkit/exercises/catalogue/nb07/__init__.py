"""The exercises of notebook 07: buckets and overlap."""

from labkit.exercises.catalogue.nb07 import buckets, exposed, overlap, sharded

EXERCISES = [*buckets.EXERCISES, *exposed.EXERCISES, *overlap.EXERCISES, *sharded.EXERCISES]
