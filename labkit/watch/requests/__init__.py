"""Requests: which are under way, and waiting for them in a way that can be ended with a report."""
