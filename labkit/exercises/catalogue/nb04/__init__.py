"""The exercises of notebook 04: averaging gradients."""

from labkit.exercises.catalogue.nb04 import averaging, costs_and_aggregates

EXERCISES = [*averaging.EXERCISES, *costs_and_aggregates.EXERCISES]
