"""Watched communicators: a call that a rank never joins ends with a report instead of a hang."""
