"""The ranks as `connect()` has found them, without a cluster."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from labkit.cluster.engine_setup import RankInfo
from labkit.cluster.live_view import activity
from labkit.cluster.ranks import Ranks
from mpiwatch.report import Activity, RankState


def ranks_with(tmp_path: Path, *pids: int) -> Ranks:
    """Return the ranks of a cluster with one rank on each machine; all engines are registered."""
    profile = tmp_path / "profile_ssh"
    for folder in "security", "log":
        (profile / folder).mkdir(parents=True)
    file = str(profile / "security" / "cluster-a.json")
    cluster: Any = SimpleNamespace(
        profile_dir=str(profile), cluster_id="a", cluster_file=file, controller=None
    )
    client: Any = SimpleNamespace(ids=list(range(len(pids))))
    infos = [
        RankInfo(rank, len(pids), pid, "", f"host{rank}", "MPICH", "/env") for rank, pid in enumerate(pids)
    ]
    return Ranks(client, cluster, infos, "")


def test_ranks_of_several_machines_may_have_one_process_id(tmp_path: Path) -> None:
    ranks = ranks_with(tmp_path, 7, 8, 7)
    assert ranks.death() is None
    ranks.exits.write_text("7 -9\n")
    ranks.client.ids = []
    died = ranks.death()
    assert died is not None and "rank 0 or 2 was killed by signal 9" in str(died), died


def test_the_live_view_says_that_a_rank_cannot_be_reached() -> None:
    assert activity(RankState(0, Activity.UNREACHABLE)) == "cannot be reached"
