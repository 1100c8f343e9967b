"""The five students' reports: their figures as data. No MPI."""

from labkit.reports.figures import TABLES, read

__all__ = ["TABLES", "read"]
