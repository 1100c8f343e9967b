"""Who owns engines, and under which name a cluster runs, on machines that change or share things."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from labkit.cluster import clusters, ownership
from labkit.cluster.ownership import Claim


def test_a_clock_that_is_set_does_not_end_an_owner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shell = SimpleNamespace(user_ns={}, events=SimpleNamespace(register=lambda event, function: None))
    monkeypatch.setattr(ownership, "get_ipython", lambda: shell)
    (tmp_path / "log").mkdir()
    claim = Claim(str(tmp_path), "")
    assert claim.take(by_force=False)
    created = psutil.Process.create_time
    # psutil computes this time from that of the system's start, which moves with the clock.
    monkeypatch.setattr(psutil.Process, "create_time", lambda process: created(process) + 2)
    owner = claim.owner()
    assert owner is not None and owner.is_me and owner.alive


def test_clusters_of_two_machines_with_one_home_folder_have_two_names() -> None:
    assert f"notebook-{socket.gethostname()}-{os.getpid()}" == clusters.OWN
    assert clusters.belongs_to_another(f"notebook-another-host-{os.getpid()}")
    assert not clusters.belongs_to_another(clusters.OWN)
