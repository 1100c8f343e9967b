"""Strict mode: errors that do not show until a program runs with other sizes, on other machines, or longer."""
