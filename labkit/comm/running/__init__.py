"""Running schedules on ranks, and counting their traffic."""
