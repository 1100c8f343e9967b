"""The exercises of notebook 02: convolution, pooling and batch norm."""

from labkit.exercises.catalogue.nb02 import convolution, norm, pooling, statistics

EXERCISES = [*convolution.EXERCISES, *pooling.EXERCISES, *norm.EXERCISES, *statistics.EXERCISES]
