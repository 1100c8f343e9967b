"""Run checks on ranks, and go on with the others when one leaves the ranks stuck. See run_checks.py."""

from __future__ import annotations

import ast
import json
import os
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from tests.conftest import kill_tree, started

HERE = Path(__file__).parent
DEADLINE_S = 60.0  # for one check; none takes more than a few seconds on an idle machine
GRACE_S = 2.0  # for the ranks to write where they are
START_S = 60.0  # until MPI is up and Python has imported everything


def checks_in(files: Sequence[Path]) -> list[str]:
    """Return PATH:NAME of all checks, without importing them: that would make pytest an MPI process."""
    return [
        f"{file}:{node.name}"
        for file in files
        for node in ast.parse(file.read_text()).body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("check_")
    ]


def run_checks(p: int, checks: Sequence[str], deadline_s: float = DEADLINE_S) -> dict[str, str]:
    """Run the checks on p ranks; return what went wrong, rank by rank, for those that failed.

    One job runs all of them. A check that the ranks cannot leave ends it; a new one runs the checks after it.
    """
    faults: dict[str, str] = {}
    while checks:
        parent = os.environ.get("IPYTHONDIR")  # that of a run that is killed is removed by the next run
        with tempfile.TemporaryDirectory(prefix="labkit-checks-", dir=parent) as folder:
            job = _Job(p, checks, Path(folder), deadline_s)
            faults |= job.faults
            checks = job.not_reached
    return faults


class _Job:
    def __init__(self, p: int, checks: Sequence[str], folder: Path, deadline_s: float) -> None:
        self.p, self.folder, self.ending, self.output = p, folder, "", ""
        (folder / "todo").write_text("\n".join(checks))
        self._run(deadline_s)
        rows = [self._rows(rank) for rank in range(p)]
        passed = [{row["passed"] for row in mine if "passed" in row} for mine in rows]
        failed = [{row["failed"]: row["why"] for row in mine if "failed" in row} for mine in rows]
        begun = [{row["begins"] for row in mine if "begins" in row} for mine in rows]
        if not any(begun):
            raise RuntimeError(f"a job of {p} ranks did not begin a check; {self.ending}:\n{self.output}")
        self.faults: dict[str, str] = {}
        self.not_reached: list[str] = []
        for check in checks:
            if not any(check in names for names in begun):
                self.not_reached.append(check)
            elif not all(check in names for names in passed):
                self.faults[check] = "\n".join(
                    f"rank {rank} of {p} "
                    + (
                        "passed"
                        if check in passed[rank]
                        else f"failed:\n{failed[rank][check]}"
                        if check in failed[rank]
                        else f"did not leave the check ({self.ending}):\n{self._stack(rank)}"
                    )
                    for rank in range(p)
                )
        if self.not_reached or self.ending:
            last = next(check for check in reversed(checks) if check not in self.not_reached)
            self.faults[last] = f"{self.faults.get(last, 'all ranks passed')}\n{self.ending}:\n{self.output}"

    def _run(self, deadline_s: float) -> None:
        """Run the job; kill it when no rank has written a line for so long that it must be stuck."""
        with started(self.p, HERE / "run_checks.py", self.folder, str(deadline_s)) as job:
            assert job.stdout
            said: list[str] = []
            reader = threading.Thread(target=lambda stream: said.append(stream.read()), args=[job.stdout])
            reader.start()  # a full pipe would block the ranks
            size, moved = -1, time.monotonic()
            while job.poll() is None:
                time.sleep(0.05)
                now = sum(file.stat().st_size for file in self.folder.glob("*.jsonl"))
                if now != size:
                    size, moved = now, time.monotonic()
                if time.monotonic() - moved > (deadline_s + GRACE_S if size > 0 else START_S):
                    self.ending = f"the ranks were stuck for {deadline_s:g} s, so the job was killed"
                    kill_tree(job)
            reader.join()
            self.output = "".join(said)
            if job.returncode and not self.ending:
                self.ending = f"the job ended with exit status {job.returncode}"

    def _rows(self, rank: int) -> list[dict[str, str]]:
        file = self.folder / f"{rank}.jsonl"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    def _stack(self, rank: int) -> str:
        file = self.folder / f"{rank}.stack"
        return file.read_text() if file.exists() else ""
