"""Judge a function: run it on ranks, watch its messages, compare its results, and name the fault.

Nothing here knows an exercise: `judging.judge_text` takes any `exercise.Exercise`, which may be another
course's. The tasks are in `labkit.exercises`.
"""
