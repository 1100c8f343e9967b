"""The exercises of notebook 00: meet the cluster."""

from labkit.exercises.catalogue.nb00 import hang_report, messages

EXERCISES = [*messages.EXERCISES, *hang_report.EXERCISES]
