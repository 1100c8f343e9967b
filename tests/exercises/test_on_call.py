"""Incidents: measuring alone finds each cause on ranks; the judge; a class's table; nothing left behind."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Sequence
from itertools import combinations, permutations
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from labkit import cli
from labkit.exercises import on_call, record
from labkit.exercises.on_call import CAUSES, EXPERIMENTS, POINTS, Evidence, Fault, Finding
from tests.cluster_fixtures import Kernel, World
from tests.conftest import thorough


@pytest.mark.parametrize("case", [(3, 1), thorough((2, 1)), thorough((5, 1)), thorough((4, 2))])
def test_measuring_alone_finds_each_cause_and_its_rank(
    run: Callable[..., subprocess.CompletedProcess[str]], case: tuple[int, int]
) -> None:
    p, faults = case
    causes = ["--causes"] if faults == 1 else ["--faults", "2", "--first", "40"]
    number = "1" if faults == 1 else "12"
    done = run(p, "-m", "tests.exercises.on_call", number, "--on-a-rank", *causes)
    counts = json.loads(done.stdout.splitlines()[-1].split("}")[0] + "}")
    assert counts.get("wrong", 0) == 0 and done.returncode == 0, done.stdout
    assert counts["right"] >= counts.get(on_call.TOO_BUSY, 0), done.stdout  # else it has tested little


def test_each_cause_is_told_from_each_other_by_some_experiment() -> None:
    for one, other in permutations(CAUSES, 2):
        apart = [not on_call.fits([other], name, on_call.makes(one, name)[0]) for name in EXPERIMENTS]
        assert any(apart), (one, other)


@pytest.mark.parametrize("number", [1, 2])
def test_the_budget_buys_what_tells_all_faults_but_not_every_experiment(number: int) -> None:
    assert sum(each.price_s for each in EXPERIMENTS.values()) > on_call.BUDGET_S
    for causes in combinations(CAUSES, number):
        if number == 1 or on_call.can_be_told((causes[0], causes[1])):
            measures_and_tells(causes)


def measures_and_tells(causes: tuple[str, ...]) -> None:
    """Assert that the reference diagnosis finds faults whose experiments read all that they must."""
    faults = {Fault(cause, k if CAUSES[cause].is_on_a_rank else None) for k, cause in enumerate(causes)}
    used_s = 0.0

    def measured(name: str) -> set[Finding]:
        nonlocal used_s
        used_s += EXPERIMENTS[name].price_s
        return {Finding(word, each.rank) for each in faults for word in on_call.makes(each.cause, name)[0]}

    found = on_call.diagnosed(measured, len(causes))
    assert found is not None and set(found) == faults, (causes, found)
    assert used_s <= on_call.BUDGET_S, causes


def test_a_seed_gives_the_same_cause_on_any_number_of_ranks_and_all_causes_occur() -> None:
    found = set()
    for seed in range(150):
        settings = [on_call.drawn(seed, p) for p in (2, 3, 8)]
        assert len({setting.faults[0].cause for setting in settings}) == 1
        for setting in settings:
            ((cause, rank),) = setting.faults
            assert (rank is not None) <= CAUSES[cause].is_on_a_rank
            assert rank is None or rank < len(setting.batches)
            assert len(set(setting.batches)) > 1
        found.add(settings[0].faults[0].cause)
    assert found == set(CAUSES)


def test_two_faults_can_be_told_apart() -> None:
    for seed in range(100):
        one, other = on_call.drawn(seed, 4, 2).faults
        both = CAUSES[one.cause].makes | CAUSES[other.cause].makes
        assert one.rank is None or one.rank != other.rank
        for cause in CAUSES.values():  # none is made up of findings of both
            assert not cause.makes <= both or any(
                cause.makes <= CAUSES[each.cause].makes for each in (one, other)
            )
        assert not CAUSES[one.cause].makes <= CAUSES[other.cause].makes
        assert not CAUSES[other.cause].makes <= CAUSES[one.cause].makes


@pytest.mark.parametrize(("ratio", "noise", "expected"), [(1.1, 1.2, []), (3.0, 1.2, [1]), (3.0, 2.0, None)])
def test_a_busy_machine_accuses_nobody(ratio: float, noise: float, expected: list[int] | None) -> None:
    if expected is None:
        with pytest.raises(on_call.TooBusy, match="rank 1 decide nothing"):
            on_call.stand_out({0: 0.5, 1: ratio}, noise, 2.0)
    else:
        assert on_call.stand_out({0: 0.5, 1: ratio}, noise, 2.0) == expected


def evidence(number: int, experiment: str, *findings: Finding, probability: float = 1.0) -> Evidence:
    """Return an experiment whose prediction came true."""
    return Evidence(number, experiment, frozenset(findings), "", probability, True)


COMPUTE, NO_THREADS = evidence(1, "phases", Finding("compute", 2)), evidence(2, "threads")
MEAN = evidence(3, "mean", Finding("mean"))


def judge(truth: Fault, given: Fault, *cited: Evidence, used_s: float = 30.0) -> on_call.Score:
    return on_call.judged([truth], [(given, cited)], cited, used_s)


def test_proof_gets_all_points_and_names_no_rival() -> None:
    score = judge(Fault("slow rank", 2), Fault("slow rank", 2), COMPUTE, NO_THREADS)
    assert score.rivals == () and score.points == {**POINTS, "cost": 15}  # 30 of the 49 s that can be saved


def test_the_cheapest_proof_gets_all_points_for_its_cost_and_a_guess_none() -> None:
    truth = Fault("slow rank", 2)
    both_s = EXPERIMENTS["phases"].price_s + EXPERIMENTS["threads"].price_s
    assert judge(truth, truth, COMPUTE, NO_THREADS, used_s=both_s).points["cost"] == POINTS["cost"]
    assert judge(truth, truth, COMPUTE, NO_THREADS, used_s=on_call.BUDGET_S).points["cost"] == 0
    assert judge(truth, truth, used_s=0.0).points["cost"] == 0


def test_evidence_that_leaves_a_rival_gets_fewer_points_and_names_it() -> None:
    score = judge(Fault("slow rank", 2), Fault("slow rank", 2), COMPUTE)
    assert score.rivals == ("blas threads",) and 0 < score.points["evidence"] < POINTS["evidence"]
    score = judge(Fault("plain mean", None), Fault("plain mean", None), MEAN)
    assert score.rivals == ("late average", "tags")


def test_without_evidence_all_causes_are_rivals() -> None:
    score = judge(Fault("nan", 0), Fault("nan", 0))
    assert set(score.rivals) == set(CAUSES) - {"nan"}
    assert score.points["evidence"] == score.points["calibration"] == 0


def test_none_needs_every_experiment_but_one_and_what_is_not_needed_costs_points() -> None:
    every = [evidence(number, name) for number, name in enumerate(EXPERIMENTS, 1)]
    enough = [each for each in every if each.experiment != "messages"]  # a mix-up shows in the mean, too
    none = Fault("none", None)
    assert judge(none, none, *enough).points["evidence"] == POINTS["evidence"]
    assert judge(none, none, *every).points["evidence"] < POINTS["evidence"]
    assert judge(none, none, *enough[1:]).rivals == ("slow rank", "slow disk")
    truth = Fault("slow rank", 2)
    assert judge(truth, truth, COMPUTE, NO_THREADS, evidence(4, "run")).points["evidence"] == 17


def test_contradicting_evidence_and_a_wrong_rank_or_cause_get_nothing() -> None:
    truth = Fault("slow rank", 2)
    assert judge(truth, truth, COMPUTE, NO_THREADS, evidence(4, "phases")).points["evidence"] == 0
    assert judge(truth, Fault("slow rank", 1), COMPUTE, NO_THREADS).points["rank"] == 0
    wrong = judge(truth, Fault("blas threads", 2), COMPUTE)
    assert [wrong.points[part] for part in ("rank", "cause", "evidence", "cost")] == [0, 0, 0, 0]


def test_each_of_two_faults_counts_half_and_a_wrong_one_is_taken_off() -> None:
    truth = [Fault("slow rank", 2), Fault("nan", 1)]
    nan = evidence(5, "gradients", Finding("nan", 1))
    first = (truth[0], [COMPUTE, NO_THREADS])
    both = on_call.judged(truth, [first, (truth[1], [nan])], [nan], 0.0)
    assert both.total == 100 and both.rivals == ()
    half = on_call.judged(truth, [first, (Fault("tags", 1), [nan])], [nan], 0.0)
    assert half.points["cause"] == 0


def test_calibration_compares_probabilities_with_the_counted_ones() -> None:
    nan = Fault("nan", 0)
    for probability, counted, came_true, points in (
        (0.8, 0.8, False, POINTS["calibration"]),  # bad luck costs nothing
        (0.9, 0.6, True, POINTS["calibration"]),  # measured by hand
        (0.9, 0.8, False, 8),
        (0.6, 0.9, True, 0),
        (0.9, None, True, 0),  # the result was known
    ):
        one = Evidence(1, "gradients", frozenset({Finding("nan", 0)}), "", probability, came_true, counted)
        assert judge(nan, nan, one).points["calibration"] == points


def test_the_probability_of_a_prediction_is_counted() -> None:
    left = on_call.explanations(1)
    assert on_call.probability_of("nothing", "weights", left) == pytest.approx(13 / 15)
    assert on_call.probability_of("differ", "weights", left) == pytest.approx(2 / 15)
    pair = [("slow rank",), ("blas threads",)]
    assert on_call.probability_of("compute", "phases", pair) == 0.75  # the second may make it
    assert on_call.probability_of("nothing", "phases", pair) == 0.25
    assert on_call.probability_of("nothing", "links", pair) is None


@pytest.fixture
def on_paper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> on_call.Incident:
    """An incident with a slow rank whose ranks measure nothing: each experiment reads that rank 1 is slow."""
    monkeypatch.setenv(record.FILE, str(tmp_path / "progress.json"))
    times = {"load ms": 0.1, "load noise": 1.0, "compute noise": 1.0}
    rows = [{**times, "compute / fixed": ratio} for ratio in (1.0, 3.0)]
    return on_call.Incident(0, 1, 2, lambda name, call: [(row, 0.0) for row in rows])


def test_an_experiment_wants_a_prediction_first(
    on_paper: on_call.Incident, capsys: pytest.CaptureFixture[str]
) -> None:
    refused: Sequence[tuple[tuple[Any, ...], str]] = [
        (("phases",), "Predict first"),
        (("phases", "tags", 0.5), "Predict first"),
        (("phases", "compute", -0.1), "how probable"),
        (("phases", "compute"), "how probable"),
        (("phases", "compute", 2), "how probable"),
        (("nothing", "nothing", 0.5), "expected an experiment"),
    ]
    for arguments, words in refused:
        on_paper.experiment(*arguments)
        assert words in capsys.readouterr().out and not on_paper.evidence
    for prediction in ("compute", "load", "nothing"):
        on_paper.experiment("phases", prediction, 0.5)
    assert [each.came_true for each in on_paper.evidence] == [True, False, False]
    assert [each.counted for each in on_paper.evidence] == [pytest.approx(1.5 / 15), None, None]
    price_s = EXPERIMENTS["phases"].price_s
    assert on_paper.used_s == 3 * price_s
    on_paper.used_s = on_call.BUDGET_S - price_s + 0.1
    on_paper.experiment("phases", "nothing", 0.5)
    assert "phases costs" in capsys.readouterr().out and len(on_paper.evidence) == 3


def test_an_incident_that_is_started_again_costs_what_it_has_cost(
    on_paper: on_call.Incident, capsys: pytest.CaptureFixture[str]
) -> None:
    on_paper.experiment("phases", "nothing", 0.9)
    on_paper.rivals("slow rank", [1])
    again = on_call.Incident(0, 1, 2, on_paper._on_ranks)
    assert again.evidence == on_paper.evidence
    assert again.used_s == EXPERIMENTS["phases"].price_s + on_call.RIVALS_S
    assert "goes on where you left it" in capsys.readouterr().out
    again.diagnose(1, "slow rank", [1], "phases excludes all but more threads")
    assert on_call.Incident(0, 1, 2, on_paper._on_ranks).used_s == 0  # to practise; the first score is kept


def test_the_first_diagnosis_is_kept_and_the_table_of_a_class_shows_it(
    on_paper: on_call.Incident, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (fault,) = on_call.drawn(0, 2).faults
    assert fault.cause == "slow rank"
    on_paper.experiment("phases", "compute", 1.0)
    on_paper.diagnose(fault.rank, "slow", [1], "it is slow")
    on_paper.diagnose(fault.rank, "slow rank", [7], "it is slow")
    assert on_paper.score is None and "there is no evidence 7" in capsys.readouterr().out
    on_paper.diagnose(fault.rank, "slow rank", [1])
    assert on_paper.score is None and "say in `because`" in capsys.readouterr().out
    on_paper.diagnose(fault.rank, "slow rank", [1], "it is slow")
    assert on_paper.score is not None and "does not exclude: blas threads" in capsys.readouterr().out
    folder = tmp_path / "class"
    folder.mkdir()
    for name in ("ada", "bob"):
        (folder / f"{name}.json").write_bytes((tmp_path / "progress.json").read_bytes())
    (folder / "damaged.json").write_text("{")
    (folder / "late.json").write_text('{"exercises": {}}')
    done = CliRunner().invoke(cli.main, ["contest", str(folder), "--incident", "0", "--json"])
    rows = {row["student"]: row for row in json.loads(done.stdout)}
    assert rows["ada"]["score"] == rows["bob"]["score"] == on_paper.score.total
    assert "it is slow" in rows["ada"]["words"]
    assert [rows[name]["place"] for name in ("ada", "bob", "damaged", "late")] == [1, 1, None, None]
    table = CliRunner().invoke(cli.main, ["contest", str(folder), "--incident", "0"]).stdout
    assert "no diagnosis of seed 0" in table and "cannot be read" in table


@pytest.mark.clusters
def test_an_incident_that_hangs_ends_with_a_report_and_leaves_nothing(kernel: Kernel, world: World) -> None:
    kernel.run("from labkit.cluster import connect, last_hang\nrc = connect(3, deadline_s=2)")
    kernel.run("from labkit.exercises import incident\ncase = incident(2)")  # a branch
    output = kernel.run("case.experiment('run', 'hang', 0.5)")
    assert "hang" in output and "right" in output, output
    assert (
        kernel.run("[found.rank for found in case.evidence[0].findings] == last_hang().missing()") == "True\n"
    )
    assert "nothing stands out" in kernel.run("case.experiment('weights', 'nothing', 0.5)")
    kernel.run("case.experiment('buckets', 'nothing', 0.9)")
    filed = kernel.run("case.diagnose(last_hang().missing()[0], 'branch', [1, 3], 'no bucket is missing')")
    assert "cause 20/20, rank 20/20, evidence 25/25" in filed, filed
    assert kernel.run("import sys\n'mpi4py.MPI' in sys.modules") == "False\n"
    kernel.end()
    world.wait_until_empty()
