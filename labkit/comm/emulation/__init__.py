"""Emulated links."""
