"""Incidents: measuring alone finds each cause on ranks; the judge; a class's table; nothing left behind."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from labkit import cli
from labkit.exercises import on_call, record
from labkit.exercises.on_call import (
    BUDGET_S,
    CAUSES,
    EXPERIMENTS,
    POINTS,
    Evidence,
    Fault,
    Finding,
    ideal,
    price_s,
)
from tests.cluster_fixtures import Kernel, World
from tests.conftest import thorough


@pytest.mark.parametrize("case", [(3, 1), thorough((2, 1)), thorough((5, 1)), thorough((4, 2))])
def test_measuring_alone_finds_each_cause_and_its_rank(
    run: Callable[..., subprocess.CompletedProcess[str]], case: tuple[int, int]
) -> None:
    p, faults = case
    causes = ["--causes"] if faults == 1 else ["--faults", "2", "--first", "40"]
    number = "1" if faults == 1 else "12"
    done = run(p, "-m", "tests.exercises.on_call", number, *causes)
    counts = json.loads(done.stdout.splitlines()[-1].split("}")[0] + "}")
    assert counts.get("wrong", 0) == 0 and done.returncode == 0, done.stdout
    assert counts["right"] >= counts.get("too busy", 0), done.stdout  # else it has tested little


@pytest.mark.parametrize("number", [1, 2])
def test_an_order_that_follows_what_is_possible_finds_all_faults_within_the_budget(number: int) -> None:
    for causes in on_call.explanations(number):
        bought = list[str]()
        faults = {Fault(cause, k if CAUSES[cause].is_on_a_rank else None) for k, cause in enumerate(causes)}
        found = on_call.diagnosed(ideal(causes, bought), number)
        assert found is not None and set(found) == faults, (causes, found)
        assert price_s(bought) == on_call.best_order_s(causes) <= BUDGET_S[number]


def test_all_causes_occur_as_often_as_they_should() -> None:
    found = Counter[str]()
    for seed in range(600):
        for p in (2, 3, 8):
            setting = on_call.drawn(seed, p)
            ((cause, rank),) = setting.faults
            assert (rank is not None) <= CAUSES[cause].is_on_a_rank
            assert rank is None or rank < len(setting.batches)
            assert len(set(setting.batches)) > 1
            found[cause] += 1
    for name, each in CAUSES.items():
        assert found[name] == pytest.approx(60 * each.weight, rel=0.35)


@pytest.mark.parametrize(("ratio", "noise", "expected"), [(1.1, 1.2, []), (3.0, 1.2, [1]), (3.0, 2.0, None)])
def test_a_busy_machine_neither_accuses_nor_clears(
    ratio: float, noise: float, expected: list[int] | None
) -> None:
    if expected is None:
        with pytest.raises(on_call.TooBusy, match="rank 1 decide nothing"):
            on_call.stand_out({0: 0.5, 1: ratio}, noise, 2.0)
    else:
        assert on_call.stand_out({0: 0.5, 1: ratio}, noise, 2.0) == expected


SLOW = Fault("slow rank", 2)
EVEN = {"load ms": 0.1, "load noise": 1.0, "compute noise": 1.0}
ROWS: Mapping[str, list[Mapping[str, Any]]] = {
    "phases": [{**EVEN, "compute / fixed": ratio} for ratio in (1.0, 1.0, 3.0)],
    "threads": [{"all / one": 1.0}] * 3,
    "samples": [{"of others": 0}] * 3,
    "run": [{"loss": 1.0, "states": "equal"}] * 3,
}
RIVALS = ["slow rank", "blas threads"]
OTHERS = sorted(set(CAUSES) - {"same shard"})  # after `samples` has shown nothing


def evidence(name: str, reading: str, left: Sequence[str], probability: float, rows: Any = None) -> Evidence:
    return Evidence(name, rows or ROWS[name], probability, reading, left)


PHASES = evidence("phases", "compute 2", RIVALS, 6.5 / 30)  # 3 + 3 / 2 + 2 of 30 report a word
THREADS = evidence("threads", "nothing", ["slow rank"], 1 / 3)  # BLAS threads: 3 / 2 against 3


def judge(given: Fault, *shown: Evidence, used_s: float = 12.0, truth: Fault = SLOW) -> Mapping[str, int]:
    return on_call.judged([truth], dict([given]), shown, used_s).points


def test_a_proof_that_is_read_right_gets_all_points() -> None:
    assert judge(SLOW, PHASES, THREADS) == POINTS
    score = on_call.judged([SLOW], dict([SLOW]), [PHASES, THREADS], 12.0)
    assert score.total == 100
    assert score.lines[0] == "1 phases: compute 2, read compute 2; probability 0.22, predicted 0.22"


def test_a_proof_counts_as_much_as_the_measurements_make_the_cause_probable() -> None:
    assert judge(SLOW, PHASES)["proof"] == round(POINTS["proof"] * 2 / 3)
    assert judge(SLOW)["proof"] == round(POINTS["proof"] / 10 / 2)  # 3 of 30, and no rank
    assert judge(SLOW)["reading"] == judge(SLOW)["prediction"] == 0
    shown = evidence("run", "state", ["late average", "other start", "stale buffers"], 9 / 30)
    shown.rows = [{"loss": 1.0, "states": "different"}] * 3
    assert (
        judge(Fault("stale buffers", 1), shown, truth=Fault("stale buffers", 1))["proof"] == 2
    )  # 20 / 4 / 2


def test_a_wrong_rank_cause_or_reading_gets_nothing_for_it() -> None:
    assert judge(Fault("slow rank", 1), PHASES, THREADS) == {**POINTS, "rank": 0}
    wrong = judge(Fault("blas threads", 2), PHASES, THREADS)
    assert [wrong[part] for part in ("cause", "rank", "proof", "cost")] == [0, 0, 0, 0]
    misread = evidence("phases", "compute 1", RIVALS, 6.5 / 30)
    assert judge(SLOW, misread, THREADS)["reading"] == 15
    too_much = evidence("phases", "compute 2", ["slow rank"], 6.5 / 30)
    score = on_call.judged([SLOW], dict([SLOW]), [too_much, THREADS], 12.0)
    assert score.points["reading"] == 15 and "left is wrong about blas threads" in score.lines[0]


def test_a_misreading_does_not_spoil_what_follows_from_it() -> None:
    possible = [c for c in CAUSES if c not in ("slow rank", "slow disk")]
    misread = evidence("phases", "nothing", possible, 6.5 / 30)
    after = evidence("samples", "nothing", [c for c in possible if c != "same shard"], 3 / (30 - 3 - 2 - 1.5))
    points = judge(SLOW, misread, after)
    assert points["reading"] == 15 and points["prediction"] == POINTS["prediction"]


def test_predictions_lose_with_the_square_of_their_distance_and_a_repetition_is_none() -> None:
    for off, points in (0.0, 10), (0.1, 8), (0.2, 0), (-0.1, 8):
        assert judge(SLOW, evidence("phases", "compute 2", RIVALS, 6.5 / 30 + off))["prediction"] == points
    again = evidence("phases", "compute 2", RIVALS, 0.9)
    assert judge(SLOW, PHASES, again)["prediction"] == POINTS["prediction"]


def test_cost_asks_for_a_good_order_and_not_for_luck() -> None:
    full = POINTS["cost"]
    mean_s = on_call.mean_best_order_s(1)
    assert mean_s > on_call.best_order_s(("slow rank",)) == price_s(["phases", "threads"])
    assert [judge(SLOW, PHASES, THREADS, used_s=s)["cost"] for s in (12, mean_s, 50)] == [full, full, 0]
    none, proof = Fault("none", None), ["run", "phases", "samples", "threads", "mean", "links", "buckets"]
    assert on_call.best_order_s(("none",)) == price_s(proof) > mean_s
    assert judge(SLOW, used_s=0.0)["cost"] <= 1 and judge(none, used_s=0.0, truth=none)["cost"] <= 2


def test_each_of_two_faults_counts_half_and_a_wrong_one_is_taken_off() -> None:
    truth = [Fault("slow rank", 2), Fault("same shard", 1)]
    assert ("slow rank", "same shard") in on_call.explanations(2)
    right = on_call.judged(truth, dict(truth), [], 0.0).points
    half = on_call.judged(truth, {"slow rank": 2, "tags": 0}, [], 0.0).points
    assert (right["cause"], half["cause"], half["rank"]) == (15, 0, 0)


def test_a_probability_follows_from_the_weights_and_what_was_read() -> None:
    def after(*readings: tuple[str, set[str]]) -> float:
        return on_call.probability_of_a_word("threads", on_call.explanations(1, dict(readings)))

    assert after() == pytest.approx(3 / 30)
    assert after(("phases", {"compute"})) == pytest.approx(1 / 3)  # 3 / 2 against 3
    assert after(("phases", set())) == pytest.approx(1.5 / (30 - 3 - 2 - 1.5))
    assert after(("links", {"link"})) == 0


def on_ranks(name: str, call: str) -> Any:
    """Measure on three ranks of which rank 2 is slow; no cell uses the job."""
    return ROWS[call.split("'")[1]] if call.startswith("measure") else [set[str]()] * 3


SEED = next(seed for seed in range(999) if on_call.drawn(seed, 3).faults == (SLOW,))
ENTRY = f"11-incident-{SEED}-1"


@pytest.fixture
def on_paper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> on_call.Incident:
    """An incident on three ranks that are none."""
    monkeypatch.setenv(record.FILE, str(tmp_path / "progress.json"))
    return on_call.Incident(SEED, 1, 3, on_ranks)


def test_an_experiment_wants_a_prediction_before_it_and_a_reading_after_it(
    on_paper: on_call.Incident, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments, words in (
        (("phases",), "Predict first"),
        (("phases", -0.1), "Predict first"),
        (("phases", 2), "Predict first"),
        (("", 0.5), "expected an experiment"),
    ):
        on_paper.experiment(*arguments)
        assert words in capsys.readouterr().out and not on_paper.evidence
    on_paper.read("nothing", OTHERS)
    assert "no experiment without" in capsys.readouterr().out
    on_paper.experiment("phases", 0.5)
    shown = capsys.readouterr().out
    assert "compute / fixed" in shown and not {"takes", "stands out", "slow"} & set(shown.split())
    on_paper.experiment("threads", 0.5)
    assert "Read phases first" in capsys.readouterr().out
    for words, left, said in (
        ("slow 2", RIVALS, "phases can show"),
        ("compute 3", RIVALS, "phases can show"),
        ("compute 2", [], "left has"),
        ("compute 2", ["slow"], "left has"),
    ):
        on_paper.read(words, left)
        assert said in capsys.readouterr().out and not on_paper.evidence[0].reading
    on_paper.read("compute 2", RIVALS)
    on_paper.experiment("threads", 0.5)
    assert on_paper.used_s == price_s(["phases", "threads"]) and len(on_paper.evidence) == 2
    on_paper.read("nothing", ["slow rank"])
    on_paper.used_s = BUDGET_S[1] - EXPERIMENTS["phases"].price_s + 0.1
    on_paper.experiment("phases", 0.5)
    assert "phases costs" in capsys.readouterr().out and len(on_paper.evidence) == 2


def test_words_that_name_no_rank_are_read_without_one() -> None:
    assert on_call.read_words("start 1, differ", "weights", 3) == {Finding("start", 1), Finding("differ")}
    assert on_call.read_words("nothing", "weights", 3) == set()
    for text in ("differ 1", "start 3", "start x", "hang", ""):
        assert on_call.read_words(text, "weights", 3) is None


def test_a_seed_has_one_budget_and_one_diagnosis_on_any_number_of_ranks(
    on_paper: on_call.Incident, capsys: pytest.CaptureFixture[str]
) -> None:
    at_the_same_time = on_call.Incident(SEED, 1, 3, on_ranks)
    on_paper.experiment("phases", 0.9)
    again, other = on_call.Incident(SEED, 1, 3, on_ranks), on_call.Incident(SEED, 1, 4, on_ranks)
    assert again.evidence[0].rows == on_paper.evidence[0].rows and other.evidence == []
    assert again.used_s == other.used_s == price_s(["phases"])
    assert "This incident continues" in capsys.readouterr().out
    at_the_same_time.experiment("samples", 0.5)
    assert at_the_same_time.used_s == record.load()[ENTRY]["used_s"] == price_s(["phases", "samples"])
    on_paper.read("compute 2", RIVALS)
    on_paper.diagnose({"slow rank": 2}, "the first one")
    at_the_same_time.read("nothing", OTHERS)
    at_the_same_time.diagnose({"nan": 1}, "the second one")
    practice = on_call.Incident(SEED, 1, 3, on_ranks)
    assert practice.used_s == 0
    practice.experiment("samples", 0.1)
    kept = record.load()[ENTRY]
    assert kept["because"] == "the first one" and len(kept["evidence"]) == 1


def test_cells_pay_for_the_parts_of_the_job_that_they_use(
    on_paper: on_call.Incident, capsys: pytest.CaptureFixture[str]
) -> None:
    touched = [{"load", "compute"}, {"ids"}, set()]
    on_paper._on_ranks = lambda name, call: touched if call == "used()" else on_ranks(name, call)
    on_paper.charge()
    assert on_paper.used_s == price_s(["phases", "samples"])
    assert "phases + samples" in capsys.readouterr().out
    assert record.load()[ENTRY]["used_s"] == on_paper.used_s


def filed(case: on_call.Incident) -> None:
    case.experiment("phases", 6.5 / 30)
    case.read("compute 2", RIVALS)
    case.experiment("threads", 1 / 3)
    case.read("nothing", ["slow rank"])
    case.diagnose({"slow rank": 2}, "it takes three times as long, without other threads")


def test_only_a_complete_diagnosis_is_filed(
    on_paper: on_call.Incident, capsys: pytest.CaptureFixture[str]
) -> None:
    for faults, because, words in (
        ({}, "why", "expected 1 cause"),
        ({"slow": 2}, "why", "expected 1 cause"),
        ({"slow rank": 3}, "why", "a rank is"),
        ({"slow rank": 2}, " ", "say in"),
    ):
        on_paper.diagnose(faults, because)
        assert words in capsys.readouterr().out and on_paper.score is None
    filed(on_paper)
    assert "It was slow rank on rank 2. 100 of 100 points" in capsys.readouterr().out
    on_paper.diagnose({"slow rank": 2}, "why")
    assert "has its diagnosis" in capsys.readouterr().out


def test_the_table_of_a_class_computes_scores_from_evidence(
    on_paper: on_call.Incident, tmp_path: Path
) -> None:
    filed(on_paper)
    folder = tmp_path / "class"
    folder.mkdir()
    content = json.loads((tmp_path / "progress.json").read_bytes())
    name = ENTRY

    def hand_in(student: str, **changes: Any) -> None:
        entry = {**content["exercises"][name], **changes}
        (folder / f"{student}.json").write_text(json.dumps({"exercises": {name: entry}}))

    hand_in("ada")
    hand_in("bob", used_s=0, score=99, scores=dict.fromkeys(POINTS, 99), points=99)
    hand_in("max", used_s=0, evidence=content["exercises"][name]["evidence"] * 4)
    even = {**content["exercises"][name]["evidence"][0], "rows": [ROWS["phases"][0]] * 3}
    hand_in("eve", evidence=[even])
    hand_in("odd", evidence=[{**even, "rows": [{}]}])
    hand_in("few", ranks=10**9, evidence=[])
    (folder / "damaged.json").write_text("{")
    (folder / "deep.json").write_text("[" * 100_000)
    (folder / "late.json").write_text('{"exercises": {}}')
    done = CliRunner().invoke(cli.main, ["contest", str(folder), "--incident", str(SEED), "--json"])
    rows = {row["student"]: row for row in json.loads(done.stdout)}
    assert rows["ada"]["score"] == rows["bob"]["score"] == 100
    assert "three times" in rows["ada"]["incidents"][0]["because"] and rows["ada"]["note"] == ""
    assert "evidence 1 is not what" in rows["eve"]["note"] and rows["eve"]["proof"] == 0
    assert rows["few"]["score"] < 50 and rows["max"]["cost"] < 5 < rows["bob"]["cost"]
    assert rows["late"]["note"] == f"no diagnosis of seed {SEED}"
    assert all("cannot be read" in rows[student]["note"] for student in ("damaged", "deep", "odd"))
    several = ["--incident", str(SEED), "--incident", str(SEED + 1)]
    table = CliRunner().invoke(cli.main, ["contest", str(folder), *several]).stdout
    assert table.splitlines()[1].split()[:3] == ["1", "ada", "50"]


@pytest.mark.clusters
def test_an_incident_that_hangs_ends_with_a_report_and_leaves_nothing(kernel: Kernel, world: World) -> None:
    seed = next(seed for seed in range(999) if on_call.drawn(seed, 3).faults[0].cause == "branch")
    kernel.run("from labkit.cluster import connect, last_hang\nrc = connect(3, deadline_s=2)")
    kernel.run(f"from labkit.exercises import incident\ncase = incident({seed})")
    output = kernel.run("case.experiment('run', 0.3)")
    assert "never joined" in output and "Evidence 1" in output, output
    kernel.run("case.read(f'hang {last_hang().missing()[0]}', ['branch'])")
    assert "phases + weights" in kernel.run(
        "get_ipython().run_cell_magic('px', '', 'job.model, job.load()')\ncase.experiment('buckets', 0)"
    )
    kernel.run("case.read('nothing', ['branch'])")
    filed = kernel.run("case.diagnose({'branch': last_hang().missing()[0]}, 'no bucket is missing')")
    assert "proof 20/20, reading 20/20, prediction 10/10" in " ".join(filed.split()), filed
    assert kernel.run("import sys\n'mpi4py.MPI' in sys.modules") == "False\n"
    kernel.end()
    world.wait_until_empty()
