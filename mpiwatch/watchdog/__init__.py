"""The watchdog: a thread in each rank that notices when all unfinished ranks are stuck in MPI calls."""
