"""Copies of the notebooks for students and for instructors, and nbgrader's part of grading."""

RECORD = ".origins.json"  # in a folder of a student's copies: what each was made from
