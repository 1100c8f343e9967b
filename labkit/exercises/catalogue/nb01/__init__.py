"""The exercises of notebook 01: backpropagation by hand."""

from labkit.exercises.catalogue.nb01 import layers, model, ranks

EXERCISES = [*layers.EXERCISES, *model.EXERCISES, *ranks.EXERCISES]
