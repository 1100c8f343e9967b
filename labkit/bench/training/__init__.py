"""`labkit bench training`: the time of an iteration of training on ranks, and its parts."""
