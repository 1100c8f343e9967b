"""Watched communicators: a call that a rank never joins ends with a report instead of a hang.

`labkit.watch.communicators.watch` makes a watched communicator; its calls raise
`labkit.watch.errors.HangError`.
"""

__all__ = ["HANG_EXIT_CODE", "STRICT_EXIT_CODE"]

HANG_EXIT_CODE = 86  # of an engine or a program that ends because of a hang
STRICT_EXIT_CODE = 87  # of a program without a hang in which strict mode has found errors
