"""`python -m labkit` is `labkit`."""

from labkit.cli import main

main(prog_name="labkit")
