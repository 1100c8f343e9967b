"""Requests: track which are under way, and wait for them so that a report can end the wait."""
