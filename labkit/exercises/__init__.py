"""Check a student's function on ranks: result, traffic, edge cases; and say what is wrong, and where."""
