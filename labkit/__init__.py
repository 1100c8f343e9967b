"""Allreduce Lab: data-parallel training by hand, in NumPy, on real MPI ranks."""

import mpiwatch
from mpiwatch.report import advise

__version__ = "0.1.0"

mpiwatch.register("labkit")
advise(
    more_time="`rc = connect(n={ranks}, deadline_s={seconds})`, or `comm.deadline_s = {seconds}` in a `%%px` "
    "cell",
    end_of_call="`connect(restart=True)`",
)
