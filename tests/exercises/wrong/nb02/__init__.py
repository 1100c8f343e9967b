"""Wrong answers to the exercises of notebook 02, and the finding that each must get."""

from tests.exercises.wrong.nb02 import convolution, norm

WRONG = [*convolution.WRONG, *norm.WRONG]
