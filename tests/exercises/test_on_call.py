"""Incidents: each cause shows in the probes of the table, on ranks; the score; a class's table; a kernel."""

from __future__ import annotations

import inspect
import itertools
import json
import random
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from labkit import cli
from labkit.exercises import on_call, record
from labkit.exercises.on_call import CAUSES, ON_A_RANK, POINTS, PROBES, TICKETS, Diagnosis, ProbeResult
from tests.cluster_fixtures import Kernel, World
from tests.conftest import thorough


@pytest.mark.parametrize("p", [3, thorough(4), thorough(5)])
def test_each_cause_shows_in_the_probes_of_the_table(
    run: Callable[..., subprocess.CompletedProcess[str]], p: int
) -> None:
    done = run(p, "-m", "tests.exercises.on_call")
    counts = json.loads(done.stdout.splitlines()[-1])
    assert done.returncode == 0 and counts == {"right": len(CAUSES)} | {
        name: count for name, count in counts.items() if name == "too busy"
    }, done.stdout


def test_causes_differ_in_the_table_and_five_seeds_in_a_row_have_five_tickets() -> None:
    assert set(on_call._SHOWS) == set(CAUSES)
    for one, other in itertools.combinations(CAUSES, 2):
        assert on_call._SHOWS[one] != on_call._SHOWS[other], (one, other)
    assert {on_call.ticket(seed) for seed in range(7, 12)} == set(TICKETS)
    assert {cause for ticket in TICKETS for cause in ticket.causes} == set(CAUSES)


def test_every_cause_of_a_ticket_occurs_on_every_rank() -> None:
    counts = Counter[tuple[str, int | None]]()
    for seed in range(3000):
        setting = on_call._drawn(seed, 5)
        assert setting.cause in on_call.ticket(seed).causes
        assert (setting.rank is not None) == (setting.cause in ON_A_RANK)
        assert setting.cause == on_call._drawn(seed, 3).cause
        counts[setting.cause, setting.rank] += 1
    assert {cause for cause, _ in counts} == set(CAUSES)
    assert {rank for cause, rank in counts if cause == "branch"} == set(range(5))


@pytest.mark.parametrize("p", [3, 4, 7, 40])
def test_local_batches_differ_and_a_job_needs_three_ranks(p: int) -> None:
    batches = on_call.setting_of(1, "none", 0, p).batches
    assert len(batches) == p and len(set(batches)) > 1 and min(batches) > 0
    with pytest.raises(ValueError, match="expected 3 ranks or more, got 2"):
        on_call.setting_of(1, "none", 0, 2)


def test_a_busy_machine_names_no_rank() -> None:
    quiet, busy = np.full((3, 4), 30.0), np.full((3, 4), 30.0)
    assert on_call.settled("parts", quiet, 1.2 * quiet)[0, 0] == 30
    busy[1, 1] = 90
    with pytest.raises(on_call.TooBusy, match=r"differ by a factor of 3\.0") as raised:
        on_call.settled("parts", quiet, busy)
    assert "rank" not in str(raised.value)
    busy[1] = [30, 30, 90, 30]  # a wait for others
    on_call.settled("parts", quiet, busy)


def ideal(probe: str, cause: str, rank: int | None, p: int) -> ProbeResult:
    """Return what a probe measures on a quiet machine."""
    rows: list[list[Any]] = [[0] for _ in range(p)]
    if probe == "parts":
        rows = [[0.1, 32.0, 160.0 if cause == "slow link" else 40.0, 0.1] for _ in range(p)]
        if cause == "slow rank" and rank is not None:
            rows[rank][1] = 128.0
    elif probe == "pings":
        slow = rank if cause == "slow link" else None
        rows = [[0 if a == b else 32.0 if slow in (a, b) else 4.0 for b in range(p)] for a in range(p)]
    elif probe == "sums":
        rows = [[11, 22 + k * (cause == "late average")] for k in range(p)]
        if cause == "other start" and rank is not None:
            rows[rank] = [12, 23]
    elif probe in on_call._SHOWS[cause]:
        rows = [[1 if rank in (None, k) else 0] for k in range(p)]
    return ProbeResult(probe, rows)


@pytest.mark.parametrize("cause", CAUSES)
def test_ideal_measurements_show_what_the_table_says(cause: str) -> None:
    healthy = {probe: ideal(probe, "none", None, 4).rows for probe in PROBES}
    rank = 2 if cause in ON_A_RANK else None
    shown = {
        probe for probe in PROBES if on_call.shows(probe, ideal(probe, cause, rank, 4).rows, healthy[probe])
    }
    assert shown == on_call._SHOWS[cause]


SLOW = on_call.Setting(0, "slow link", 3, (1, 2, 3, 4))
TUESDAY = TICKETS[0].causes
PINGS, PARTS = ideal("pings", "slow link", 3, 4), ideal("parts", "slow link", 3, 4)
SUMS = ideal("sums", "slow link", 3, 4)
FILED = Diagnosis("slow link", 3, "slow rank", "pings", 32.1, "all pairs with rank 3")


def test_points_for_cause_rank_numbers_and_measurements() -> None:
    def points(filed: Diagnosis, *measured: ProbeResult) -> list[float]:
        return list(on_call.judged(SLOW, TUESDAY, measured, filed).points.values())

    assert points(FILED, PINGS) == [4, 2, 3, 1] == list(POINTS.values())
    assert points(FILED._replace(cause="slow rank"), PINGS) == [0, 0, 0, 0]
    assert points(FILED._replace(rank=1), PINGS) == [4, 0, 3, 1]
    assert points(FILED._replace(number=77.0), PINGS) == [4, 2, 2, 1]
    assert points(FILED._replace(rival="none"), PINGS) == [4, 2, 2, 1]  # not the nearest
    assert points(FILED._replace(probe="parts", number=32.0), PARTS) == [
        4,
        2,
        3,
        1,
    ]  # all compute equally fast
    assert points(FILED._replace(probe="sums", number=11), SUMS) == [4, 2, 0, 1]  # equal for both
    assert points(FILED) == [4, 2, 0, 0]  # a guess


def test_one_measurement_may_decide_nothing() -> None:
    def spare(*probes: str) -> int:
        return on_call.useless(probes, "slow link", TUESDAY)

    assert [spare("pings"), spare("parts", "pings"), spare("sums", "parts")] == [0, 1, 1]
    assert [spare("pings", "pings"), spare("sums", "mean", "pings")] == [0, 2]


def test_nearest_rivals_are_of_the_ticket_and_none_only_if_alone() -> None:
    assert on_call.nearest_rivals("slow link", TUESDAY) == {"slow rank"}
    assert on_call.nearest_rivals("none", TUESDAY) == {"slow rank"}
    assert on_call.nearest_rivals("late average", TICKETS[1].causes) == {"plain mean", "other start"}
    assert on_call.nearest_rivals("branch", ("branch", "none")) == {"none"}


def test_a_script_that_knows_only_the_page_scores_less_than_half() -> None:
    """It files a cause of the ticket and what needs no measurement, and then another cause."""
    rng, totals = random.Random(1), []
    for seed in range(400):
        truth, possible = on_call._drawn(seed, 4), on_call.ticket(seed).causes
        total = 0.0
        for factor, cause in zip((1, on_call.SECOND_TRY), rng.sample(possible, 2), strict=True):
            rank = rng.randrange(4) if cause in ON_A_RANK else None
            rival = min(on_call.nearest_rivals(cause, possible))
            filed = Diagnosis(cause, rank, rival, "parts", 30.0)
            total = max(total, factor * on_call.judged(truth, possible, [], filed).total)
        totals.append(10 * total)
    assert np.mean(totals) < 40


SEED = next(seed for seed in range(999) if on_call._drawn(seed, 4)[1:3] == ("slow link", 3))
ENTRY = f"11-on-call-{SEED}"


def on_ranks(name: str, call: str) -> Any:
    """Measure on four ranks of which rank 3 has a slow link."""
    if name == on_call.JOB:
        return None
    probe = call.split("'")[1]
    rows = ideal(probe, "slow link", 3, 4).rows
    again = rows if PROBES[probe].is_timed else None
    return [{"rows": rows, "again": again, "whose": "the reference's probe"}]


@pytest.fixture
def on_paper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> on_call.Incident:
    """An incident on four ranks that are none."""
    monkeypatch.setenv(record.FILE, str(tmp_path / "progress.json"))
    return on_call.Incident(SEED, ("", 0), 4, on_ranks)


GOOD = {"rival": "slow rank", "probe": "pings", "number": 32.0, "because": "all pairs with rank 3 are slow"}


def test_only_a_complete_diagnosis_is_filed_and_a_second_one_counts_half(
    on_paper: on_call.Incident, capsys: pytest.CaptureFixture[str]
) -> None:
    on_paper.measure("ping")
    assert "Expected a probe" in capsys.readouterr().out
    on_paper.measure("pings")
    assert "the reference's probe" in capsys.readouterr().out
    for cause, rank, changes, words in (
        ("slow", 3, {}, "expected a cause"),
        ("slow link", 4, {}, "a rank is None"),
        ("slow link", 3, {"rival": "slow link"}, "another one as its rival"),
        ("slow link", 3, {"probe": ""}, "expected the probe"),
        ("slow link", 3, {"because": " "}, "say in"),
    ):
        on_paper.diagnose(cause, rank, **{**GOOD, **changes})
        assert words in " ".join(capsys.readouterr().out.split()) and not on_paper.tries
    on_paper.compare()
    assert "Diagnose first" in capsys.readouterr().out
    on_paper.diagnose("slow link", 1, **GOOD)
    said = " ".join(capsys.readouterr().out.split())
    assert "8 of 10 points" in said and "It was" not in said
    on_paper.diagnose("slow link", 1, **GOOD)
    assert "a second one must differ" in " ".join(capsys.readouterr().out.split())
    on_paper.diagnose("slow link", 3, **GOOD)
    said = " ".join(capsys.readouterr().out.split())
    assert "5 of 10 points" in said and "It was: slow link on rank 3" in said
    again = on_call.Incident(SEED, ("", 0), 4, on_ranks)
    again.diagnose("slow rank", 3, **{**GOOD, "rival": "slow link"})
    assert "has its diagnosis" in capsys.readouterr().out and len(again.tries) == 2


def test_the_table_of_a_class_computes_scores_from_measurements(
    on_paper: on_call.Incident, tmp_path: Path
) -> None:
    on_paper.measure("pings")
    on_paper.diagnose("slow link", 3, **GOOD)
    folder = tmp_path / "class"
    folder.mkdir()
    entry = json.loads((tmp_path / "progress.json").read_bytes())["exercises"][ENTRY]

    def hand_in(student: str, **changes: Any) -> None:
        (folder / f"{student}.json").write_text(json.dumps({"exercises": {ENTRY: {**entry, **changes}}}))

    hand_in("ada")
    hand_in("bob", score=99, points={"cause": 99})
    hand_in("eve", measured=[["pings", [[0, 4, 4, 4]] * 4]])
    wrong = [["slow link", 1, "slow rank", "pings", 32.0, "first"], *entry["tries"]]
    hand_in("two", tries=wrong)
    hand_in("odd", measured=[["pings", [[{}] * 4] * 4]])
    (folder / "damaged.json").write_text("{")
    (folder / "late.json").write_text('{"exercises": {}}')
    done = CliRunner().invoke(cli.main, ["contest", str(folder), "--incident", str(SEED), "--json"])
    rows = {row["student"]: row for row in json.loads(done.stdout)}
    assert rows["ada"]["score"] == rows["bob"]["score"] == 100 and rows["ada"]["note"] == ""
    assert rows["ada"]["incidents"][0]["because"] == GOOD["because"]
    assert "pings is not what the job" in rows["eve"]["note"] and rows["two"]["score"] == 80
    assert rows["late"]["note"] == f"no diagnosis of seed {SEED}"
    assert all("cannot be read" in rows[student]["note"] for student in ("damaged", "odd"))
    several = ["--incident", str(SEED), "--incident", str(SEED + 1)]
    table = CliRunner().invoke(cli.main, ["contest", str(folder), *several]).stdout
    assert table.splitlines()[1].split()[:3] == ["1", "ada", "50"]


def test_nothing_that_an_incident_or_its_module_holds_tells_the_cause(on_paper: on_call.Incident) -> None:
    held = repr(vars(on_paper)) + repr(on_paper).partition("symptom:")[0]
    assert not any(cause in held for cause in CAUSES)
    public = {name: value for name, value in vars(on_call).items() if not name.startswith("_")}
    for value in public.values():
        if inspect.isfunction(value) and list(inspect.signature(value).parameters)[:2] == ["seed", "p"]:
            raise AssertionError(f"{value} draws an incident")
    assert not any(isinstance(value, on_call.Setting) for value in public.values())
    assert all(not isinstance(value, ModuleType) or value is not on_call for value in public.values())


def test_a_table_is_compared_with_what_was_measured(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    practised = {
        (cause, probe): ideal(probe, cause, 2 if cause in ON_A_RANK else None, 4).rows
        for cause in CAUSES
        for probe in PROBES
        if cause != "branch"
    }
    monkeypatch.setattr(on_call, "_practised", practised)
    on_call.check_table({**on_call._SHOWS, "slow link": {"pings"}})
    said = " ".join(capsys.readouterr().out.split())
    assert "6 of 8 rows" in said and "the numbers of: slow link." in said
    assert "Still to be measured: branch" in said
    on_call.check_table({"slow": {"ping"}})
    assert "Not known: ping, slow." in capsys.readouterr().out


@pytest.mark.clusters
def test_a_job_that_hangs_is_measured_diagnosed_repaired_and_leaves_nothing(
    kernel: Kernel, world: World
) -> None:
    seed = next(seed for seed in range(999) if on_call._drawn(seed, 3)[1:3] == ("branch", 1))
    kernel.run("from labkit.cluster import connect\nrc = connect(3, deadline_s=2)")
    kernel.run(f"from labkit.exercises import incident\ncase = incident({seed})")
    output = kernel.run("case.measure('steps')")
    assert "never joined" in output and "stands for a rank that is missing" in output, output
    filed = kernel.run("case.diagnose('branch', 1, rival='none', probe='steps', number=1, because='missing')")
    assert "measurements 1/1" in filed and "It was: branch on rank 1" in filed, filed
    repair = (
        "def loop(job):\n    for _ in range(job.steps):\n        job.step()\n"
        "        job.world.allreduce(job.loss * job.batch)\njob.repair(loop=loop)"
    )
    kernel.run(f"get_ipython().run_cell_magic('px', '', {repair!r})")
    compared = kernel.run("case.compare()")
    assert "hangs in step 6" in compared and "after (loop)" in compared and "0.0 %" in compared, compared
    assert kernel.run("import sys\n'mpi4py.MPI' in sys.modules") == "False\n"
    kernel.end()
    world.wait_until_empty()
