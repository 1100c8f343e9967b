"""Strict mode: errors that show only with other sizes, on other machines, or after hours."""
