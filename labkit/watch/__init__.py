"""Watched communicators: a call that a rank never joins ends with a report instead of a hang."""

HANG_EXIT_CODE = 86  # of an engine or a program that ends because of a hang
STRICT_EXIT_CODE = 87  # of a program without a hang in which strict mode has found errors
