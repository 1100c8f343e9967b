"""Copies of the notebooks for students and for instructors, and nbgrader's part of grading."""
