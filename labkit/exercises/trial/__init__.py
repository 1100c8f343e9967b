"""Run a student's function in a job of its own, and bring back as data what it did."""
