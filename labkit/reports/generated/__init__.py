"""Generated reports on training runs, each with one planted fault or none: the unseen case of notebook 10."""
