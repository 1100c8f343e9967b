"""A whole run from its settings to its files, as `labkit train` starts it."""
