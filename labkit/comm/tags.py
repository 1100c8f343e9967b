"""The message tags of the lab, one for each purpose: no message of one can be taken for another's.

They are far from the small numbers that students choose, and below 32,767, which every MPI library allows.
"""

PRINT = 26_147
SIGN_OF_LIFE = 26_148
SCHEDULE = 26_149
RING_BY_HAND = 26_150
CLOCK = 26_151
