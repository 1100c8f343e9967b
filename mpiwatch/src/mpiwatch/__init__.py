"""Watched communicators: a call that a rank never joins ends with a report instead of a hang.

`mpiwatch.communicators.watch` makes a watched communicator; its calls raise
`mpiwatch.waiting.HangError`.
"""

__version__ = "0.1.0"

__all__ = ["FLIGHT_RECORDER", "HANG_EXIT_CODE", "STRICT_EXIT_CODE", "libraries", "wrappers"]

HANG_EXIT_CODE = 86  # of an engine or a program that ends because of a hang
STRICT_EXIT_CODE = 87  # of a program without a hang in which strict mode has found errors
FLIGHT_RECORDER = "mpiwatch-flight-recorder-"  # of its file's name; its creator's pid follows

# Packages whose lines are not the program's own: a report names the line that called them. A library on top
# of this one adds its name. `wrappers`: those whose methods have the names of mpi4py's methods and call them.
libraries = ["mpiwatch"]
wrappers = ["mpiwatch"]
