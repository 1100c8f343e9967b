"""The message tags of the lab, one for each purpose, so that no receive matches another purpose's message.

They are far from the small numbers that students choose, and below 32,767, which every MPI library allows.
"""

PRINT = 26_147
RING_BY_HAND = 26_150
CLOCK = 26_151
SCHEDULE = 27_000  # and the numbers up to 27_999: see mpiwatch.layers.attempt
STARTED = 28_000  # likewise, of schedules that were started and go on besides others
