"""Averaging gradients over ranks."""
