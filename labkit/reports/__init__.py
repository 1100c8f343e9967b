"""The five students' reports: their figures as data; and generated reports with a planted fault. No MPI."""

from labkit.reports.figures import TABLES, checklist, read
from labkit.reports.generated import KINDS, Unseen, unseen
