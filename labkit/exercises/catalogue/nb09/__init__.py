"""The exercises of notebook 09: beyond one machine."""

from labkit.exercises.catalogue.nb09 import hangs, hierarchy, job_script, places, prediction

EXERCISES = [
    *places.EXERCISES,
    *job_script.EXERCISES,
    *hangs.EXERCISES,
    *prediction.EXERCISES,
    *hierarchy.EXERCISES,
]
