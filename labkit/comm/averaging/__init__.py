"""Averaging gradients over ranks: the algorithms, and what they compute."""
