"""The communicator of strict mode."""
