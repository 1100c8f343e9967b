"""examples/train.sbatch on four nodes: one world, the same weights as on one machine, and runs that go on."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import numpy as np
import pytest

from mpiwatch import launch
from mpiwatch.processes import is_mpich
from tests.cluster_fixtures import wait_until
from tests.slurm.local_cluster import LocalCluster

SCRIPT = Path(__file__).parents[2] / "examples" / "train.sbatch"
SRUN = "srun --mpi=pmi2" if is_mpich(launch.mpiexec()) else "srun --mpi=pmix"
STEPS = 220
RUN = (
    "--model", "softmax", "--data", "digits", "--epochs", "1000", "--batch", "1400", "--lr", "0.01",
    "--iterations", str(STEPS), "--no-contributions",
)  # fmt: skip
# Some seconds for a signal, then a pause until the time limit. Neither changes the weights.
SLOWLY = "--link", "1gbit+20ms", "--bottleneck", f"0:pause=1000s@{STEPS - 20}"
QUICKLY = "--link", "100gbit", "--bottleneck", f"0:pause=1ms@{STEPS - 20}"
JOB_S = 300.0  # on a busy machine


class Jobs:
    """Submit train.sbatch, and wait for what it prints."""

    def __init__(self, slurm: LocalCluster, environment: dict[str, str], folder: Path) -> None:
        self.slurm, self.environment, self.folder = slurm, environment, folder

    def submit(self, *arguments: str, launcher: str = "mpiexec", options: tuple[str, ...] = ()) -> str:
        """Return the id of a new job."""
        done = subprocess.run(
            ["sbatch", "--parsable", *options, SCRIPT, *arguments],
            env={**self.environment, "LAUNCHER": launcher},
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout.strip()

    def output(self, job: str) -> str:
        """Return what a job has printed so far."""
        file = self.folder / f"labkit-train-{job}.out"
        return file.read_text() if file.exists() else ""

    def wait_for(self, job: str, text: str) -> None:
        """Wait until a job has printed a text."""
        wait_until(
            lambda: text in self.output(job) or self.has_ended(job), f"job {job} prints {text!r}", JOB_S
        )
        assert text in self.output(job), self.output(job)

    def has_ended(self, job: str) -> bool:
        return job not in self.slurm.jobs()

    def finish(self, job: str) -> str:
        """Wait until a job has left the queue; return its output."""
        wait_until(lambda: self.has_ended(job), f"job {job} has ended", JOB_S)
        return self.output(job)

    def state(self, job: str) -> dict[str, str]:
        """Return what SLURM says about a job."""
        words = self.slurm.command("scontrol", "--oneliner", "show", "job", job).split()
        return dict(word.partition("=")[::2] for word in words)


@pytest.fixture
def jobs(slurm: LocalCluster, environment: dict[str, str], tmp_path: Path) -> Jobs:
    return Jobs(slurm, environment, tmp_path)


def weights(run: Path) -> np.ndarray:
    with np.load(run / "model.npz") as model:
        return np.concatenate([model[name].reshape(-1) for name in sorted(model.files)])


def on_one_machine(jobs: Jobs, out: str, *options: str) -> np.ndarray:
    """Return the weights of a run with the same options, by this environment's mpiexec and no SLURM."""
    subprocess.run(
        [launch.mpiexec(), "-n", "4", "labkit", "train", "--out", out, *options],
        env={**jobs.environment, launch.OVERSUBSCRIBE: ":oversubscribe"},
        cwd=jobs.folder,
        check=True,
        capture_output=True,
        timeout=JOB_S,
    )
    return weights(jobs.folder / out)


def test_report_a_runs_on_four_nodes_and_gives_the_weights_of_one_machine(jobs: Jobs) -> None:
    expected = on_one_machine(jobs, "here")
    for launcher in ("mpiexec", SRUN):
        run = f"run-{launcher[:4]}"
        output = jobs.finish(jobs.submit(run, launcher=launcher))
        assert "4 ranks on n[1-4]" in output
        assert "rank 0 on n1; rank 1 on n2; rank 2 on n3; rank 3 on n4" in output, output
        record = json.loads((jobs.folder / run / "run.json").read_text())
        assert record["ranks"] == 4 and record["hosts"] == ["n1", "n2", "n3", "n4"]
        assert np.allclose(weights(jobs.folder / run), expected, rtol=1e-6, atol=1e-7)
    output = jobs.finish(jobs.submit(str(SCRIPT.with_name("distributed_training.py")), "--epochs", "2"))
    assert output.count("  rank 3: local loss") == 2, output
    assert np.loadtxt(jobs.folder / "runs/example/weights.txt").shape == (10,)


def test_worlds_of_one_rank_are_refused_with_the_launcher_to_use(jobs: Jobs) -> None:
    job = jobs.submit("run", launcher="srun --mpi=none")
    output = jobs.finish(job)
    assert "`srun --mpi=none` has started 4 processes, but each is an MPI world of one rank" in output
    assert f"Start the ranks with `{SRUN}` or `" in output
    assert output.count("labkit train:") == 1
    assert jobs.state(job)["JobState"] == "FAILED"
    assert not (jobs.folder / "run").exists()


def test_a_run_that_its_time_limit_ends_goes_on_to_the_same_weights(jobs: Jobs) -> None:
    # A minute is the shortest time limit, and the signal for it may come before the training has begun. So
    # the test sends the signal itself, as SLURM does.
    limited = jobs.submit("run", *RUN, *SLOWLY, options=("--time=1", "--signal=B:USR1@1"))
    jobs.wait_for(limited, "] epoch 2:")  # the ranks listen to signals
    jobs.slurm.command("scancel", "--batch", "--signal=USR1", limited)
    jobs.wait_for(limited, "The time limit is near: writing a checkpoint")
    checkpoint = jobs.folder / "run" / "checkpoint.npz"
    wait_until(checkpoint.exists, "the checkpoint before the time limit", JOB_S)
    jobs.finish(limited)
    assert jobs.state(limited)["JobState"] == "TIMEOUT"
    assert 0 < steps_of(checkpoint) < STEPS
    output = jobs.finish(jobs.submit("run", *RUN, *QUICKLY))
    assert "The results are in run." in output, output
    record = json.loads((jobs.folder / "run" / "run.json").read_text())
    assert record["hosts"] == ["n1", "n2", "n3", "n4"]
    expected = on_one_machine(jobs, "here", *RUN)
    assert np.allclose(weights(jobs.folder / "run"), expected, rtol=1e-5, atol=1e-7)


def steps_of(checkpoint: Path) -> int:
    """Return after how many steps a checkpoint was written."""
    with np.load(checkpoint) as stored:
        return int(json.loads(stored["about"].tobytes())["progress"][0]["done"])
