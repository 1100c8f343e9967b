"""JupyterHub with examples/jupyterhub_slurm.py: a student's server, kernel and ranks are a SLURM job."""

from __future__ import annotations

import getpass
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster_fixtures import wait_until
from tests.servers import missing_of_jupyterhub
from tests.slurm.local_cluster import LocalCluster
from tools.browser_tab import Hub, HubServer, Tab

pytestmark = pytest.mark.skipif(missing_of_jupyterhub() != "", reason=missing_of_jupyterhub())

# All nodes are this machine, have little memory, and run jobs of this user alone.
JOBS = """\
c.Spawner.environment["SLURM_CONF"] = "{slurm_conf}"
c.SlurmSpawner.exec_prefix = ""
c.SlurmSpawner.state_exechost_exp = "127.0.0.1"
c.SlurmSpawner.req_memory = "1G"
c.SlurmSpawner.req_homedir = "{home}"
c.SlurmSpawner.req_prologue = "export HOME={home}\\n" + c.SlurmSpawner.req_prologue
"""
CONNECT = (
    "import os\nfrom labkit.cluster import connect\nrc = connect(2)\nprint('job', os.environ['SLURM_JOB_ID'])"
)
RANKS = "%%px\nprint(comm.allreduce(1), 'ranks')"


@pytest.fixture
def hub(slurm: LocalCluster, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    for name in "SLURM_CONF", "PATH":
        monkeypatch.setenv(name, environment[name])
    folder = Path(tempfile.mkdtemp(prefix="hub-", dir="/tmp"))
    home = folder / getpass.getuser()
    home.mkdir()
    jobs = JOBS.format(slurm_conf=environment["SLURM_CONF"], home=home)
    hub = Hub(folder, "jupyterhub_slurm.py", jobs)
    try:
        hub.wait_until_it_answers()
        yield hub
    finally:
        hub.end()
        left = hub.wait_for_the_end()
        shutil.rmtree(folder, ignore_errors=True)
    assert left == []


def test_a_students_server_and_ranks_are_a_job(hub: Hub, slurm: LocalCluster) -> None:
    server = HubServer(hub.home / getpass.getuser(), hub)
    try:
        server.wait_until_it_answers()
        (job,) = slurm.jobs()
        assert (server.home / "my-notebooks" / "00_meet_the_cluster.ipynb").exists()
        tab = Tab(server, "my-notebooks/00_meet_the_cluster.ipynb")
        reply = tab.run(CONNECT, 120)
        assert reply.status == "ok" and f"job {job}\n" in reply.text, reply.text
        assert "2 ranks" in tab.run(RANKS, 60).text
    finally:
        server.end()
    wait_until(lambda: not slurm.jobs(), "the job has ended", 60)
    assert server.wait_for_the_end() == []
