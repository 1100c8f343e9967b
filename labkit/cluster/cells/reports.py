"""Read the hang reports that ranks have published, from the file to which they append them.

The notebook can read the file on another machine than the ranks', and after the ranks have ended.
"""

from __future__ import annotations

from pathlib import Path

import ipyparallel as ipp

from labkit.leftovers import cluster_files
from mpiwatch.flight_recorder.report import Reason, Report


class Reports:
    """Reads the reports that the ranks of a cluster publish from now on."""

    def __init__(self, cluster: ipp.Cluster) -> None:
        self.file = Path(cluster_files(cluster.profile_dir, cluster.cluster_id)["reports"])
        self.start = self.cell_start = self._size()

    def begin_cell(self) -> None:
        """Note that a cell starts: later reports are about this cell."""
        self.cell_start = self._size()

    def of_this_cell(self) -> Report | None:
        """Return the last report since the cell started; None if there is none."""
        return self._last_since(self.cell_start)

    def last(self) -> Report | None:
        """Return the last report; None if there is none."""
        return self._last_since(self.start)

    def _last_since(self, start: int) -> Report | None:
        if self._size() <= start:
            return None
        with self.file.open("rb") as file:
            file.seek(start)
            lines = file.read().splitlines(keepends=True)
        reports = [Report.from_json(line) for line in lines if line.endswith(b"\n")]
        return next((each for each in reports[::-1] if each.reason is not Reason.INTERRUPTED), None)

    def _size(self) -> int:
        return self.file.stat().st_size if self.file.exists() else 0


def stuck_in_mpi(report: Report | None) -> list[int]:
    """Return the ranks that a report has found inside an MPI call that nothing can interrupt."""
    ranks = report.ranks if report is not None else ()
    return [rank.rank for rank in ranks if rank.mpi_call]
