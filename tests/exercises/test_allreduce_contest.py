"""The contest: scores are those of the simulator, and bad entries get a row."""

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from labkit import cli
from labkit.exercises import allreduce_contest, contest
from labkit.plots.schedules import timelines
from labkit.schedules import (
    ALLREDUCE,
    ScheduleError,
    TimedTransfer,
    Transfer,
    copy_round,
    hierarchical,
    longest_wait,
    lower_bound,
    reduce_round,
    simulate,
)

RING = """
def helper(p):
    return np.arange(p)

def my_ring(p):
    rank = helper(p)
    for k in range(1, p):
        yield reduce_round(rank, (rank + 1) % p, (rank - k) % p)
    for k in range(1, p):
        yield copy_round(rank, (rank + 1) % p, (rank - k + 1) % p)
"""
BAD = {  # the text of an entry → words of its reason
    "too_few": ("def f(p):\n    yield reduce_round(1, 0, 0)\n", "after the last round"),
    "endless": ("def f(p):\n    while True:\n        pass\n", "does not end within 5 s"),
    "syntax": ("def f(p)\n", "SyntaxError"),
    "empty": ("x = 1\n", "it defines no function"),
    "number": ("def f(p):\n    return 7\n", "type int"),
    "forged": (
        "def f(p):\n    made = reduce_round(0, 1, 0)\n    vars(made)['dest'] = 'x'\n    yield made\n",
        "cannot be used",
    ),
    "huge": ("def f(p):\n    yield reduce_round(0, 1, 0, 10**12)\n", "at most 256 chunks"),
    "overwrites": ("def f(p):\n    yield copy_round(0, 1, 0)\n", "overwrites chunk"),
}


@pytest.mark.parametrize("p", [2, 3, 6])
def test_a_score_is_the_lower_bound_over_the_simulated_time(p: int) -> None:
    schedules = [ALLREDUCE["ring"](p), hierarchical(p, tuple((np.arange(p) * 2 // p).tolist()))]
    results = allreduce_contest.simulate_all([(schedule.name, schedule) for schedule in schedules], p)
    for schedule, result in zip(schedules, results, strict=True):
        for name, network in allreduce_contest.networks(p).items():
            seconds = simulate(schedule, allreduce_contest.NBYTES, network).seconds
            assert result.scores[name] == lower_bound(network, allreduce_contest.NBYTES) / seconds
            assert 0 < result.scores[name] <= 1
            assert max(timed.end for timed in result.timelines[name]) == pytest.approx(seconds)


@pytest.mark.thorough
def test_a_folder_of_entries_becomes_a_table(tmp_path: Path) -> None:
    for name, (text, _) in BAD.items():
        (tmp_path / f"{name}.py").write_text(text)
    (tmp_path / "link.py").symlink_to("/etc/passwd")
    for name in "ada", "twin":
        (tmp_path / f"{name}.py").write_text(RING)
    done = CliRunner().invoke(cli.main, ["contest", str(tmp_path), "--ranks", "3", "--json"])
    assert done.exit_code == 0, done.output
    rows = {row["entry"]: row for row in json.loads(done.stdout)}
    compared = {f"[{name}]" for name in allreduce_contest.COMPARED}
    assert rows.keys() == {"ada", "twin", "link", *compared, *BAD}
    for name, (_, words) in BAD.items():
        assert words in rows[name]["reason"] and rows[name]["place"] is None, rows[name]
    assert rows["link"]["reason"].startswith("not judged: ")
    assert {rows["ada"]["place"], rows["twin"]["place"]} <= {1, 2} and rows["ada"]["slow link"] > 0.3
    (tmp_path / "empty").mkdir()
    done = CliRunner().invoke(cli.main, ["contest", str(tmp_path / "empty")])
    assert done.exit_code == 2 and "there is no entry" in done.output


def test_equal_scores_share_a_place() -> None:
    result = allreduce_contest.ContestResult
    scores = {"a": 0.9, "b": 0.5, "c": 0.501, "d": 0.3}
    results = [result(name, "", {"uniform": score}) for name, score in scores.items()]
    rows = allreduce_contest.rows([*results, result("e", "wrong"), result("[ring]", "", {"uniform": 1.0})])
    assert [row["place"] for row in rows] == [1, 2, 2, 4, None, None]
    assert "    2  b" in allreduce_contest.table(results)


def test_contest_prints_scores_and_where_time_was_lost(capsys: pytest.CaptureFixture[str]) -> None:
    result = contest(ALLREDUCE["root"], p=3)
    printed = capsys.readouterr().out
    assert result is not None and set(result.timelines) == set(allreduce_contest.networks(3))
    names = "ring", "two-level", "tree", "recursive-doubling", "halving-doubling"
    assert all(f"[{name}]" in printed for name in names)
    assert "lost most time in round" in printed
    figure = timelines(result.timelines)
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["rank 0", "rank 1", "rank 2"]


def test_a_wrong_schedule_is_told_what_is_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    assert contest(lambda p: iter([reduce_round(1, 0, 0)]), p=2) is None
    assert "after the last round" in capsys.readouterr().out
    forever = iter(lambda: copy_round(0, 1, 0), None)
    with pytest.raises(ScheduleError, match="at most 1,000 rounds"):
        allreduce_contest.schedule_of([next(forever) for _ in range(1001)], 2, "forever")


def test_the_longest_wait_names_rank_round_and_cause() -> None:
    first, second = Transfer(0, 1, 0, 1, True), Transfer(1, 2, 0, 1, True)
    wait = longest_wait([TimedTransfer(1, first, 0.0, 0.25), TimedTransfer(2, second, 0.25, 0.5)])
    assert str(wait) == (
        "rank 2 lost most time in round 2, where it waited for 250 ms until rank 1 reached the round"
    )
    third = Transfer(3, 2, 0, 1, True)
    wait = longest_wait([TimedTransfer(1, second, 0.0, 0.5), TimedTransfer(1, third, 0.5, 1.0)])
    assert wait is not None and (wait.rank, wait.for_peer) == (3, False)
    uniform = allreduce_contest.networks(2)["uniform"]
    assert longest_wait(simulate(ALLREDUCE["ring"](2), 8, uniform, timeline=True).timeline) is None
