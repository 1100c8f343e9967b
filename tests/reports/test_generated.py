"""Generated reports: one fault each, found by the rule that it breaks and by no other."""

from __future__ import annotations

import re
from collections import Counter
from functools import cache
from typing import Any

import numpy as np
import pytest

from labkit import reports
from labkit.exercises.nb10 import SEEDS, referee, verdicts
from labkit.reports import generated
from labkit.reports.generated import ALGORITHMS, KINDS, answer, remark

MANY = range(80)  # each kind with several numbers of ranks
FEW = range(20)

figures = cache(generated.figures)


def broken(f: dict[str, Any]) -> set[str]:
    """Return which rules the figures break, each named after the fault that breaks it."""
    samples, p = f["samples"], f["ranks"]
    mean = np.average(f["local_loss"], axis=0, weights=samples)
    step = -f["learning_rate"] * np.average(f["bias_gradient"], axis=0, weights=samples)
    counts = f["accuracy_percent"] * samples[:, None] / 100
    per_sample = f["compute_s"].mean(axis=1) / samples
    rules = {
        "left out": all(len(set(epoch)) == 1 for epoch in f["checksum"].T.tolist()),
        "sum": np.abs(f["bias_change"] - step).max() < 1e-3 * np.abs(step).max(),
        "shards": sorted({0, f["training_samples"], *f["start"], *f["stop"]})
        == [*f["start"], f["training_samples"]],
        "count": np.abs(counts - counts.round()).max() < 1e-6,
        "unweighted": np.abs(f["global_loss"] - mean).max() < 1e-6,
        "settings": np.abs(f["global_loss"] - f["other_global_loss"]).max() < 1e-4,
        "straggler": per_sample.max() < 1.1 * per_sample.min(),
        "clock": np.ptp(f["total_s"], axis=0).max() < 0.003 * f["total_s"].max(),
    }
    assert all(len(f[name]) == p for name in ("samples", "checksum", "total_s"))
    assert np.allclose(f["compute_s"] + f["sync_s"], f["total_s"])
    assert min(f["compute_s"].min(), f["sync_s"].min()) > 0
    return {name for name, holds in rules.items() if not holds}


@pytest.mark.parametrize("seed", MANY)
def test_the_figures_break_the_rule_of_the_planted_fault_and_no_other(seed: int) -> None:
    assert broken(figures(seed)) == {answer(seed).kind} - {"none"}


def test_all_reports_have_the_same_form() -> None:
    """The text's words and the figures' names, types and dimensions do not depend on the fault."""
    forms = set()
    for seed in FEW:
        f = figures(seed)
        forms.add(tuple((name, np.ndim(value), np.asarray(value).dtype) for name, value in f.items()))
    assert len(forms) == 1
    assert len({_words(reports.unseen(seed).text) for seed in FEW}) == 1


def _words(text: str) -> frozenset[str]:
    """Return the words of a report without algorithms, checksums, and which algorithm learns better."""
    text = re.sub(
        "|".join([*ALGORITHMS, r"\b[0-9a-f]{8}\b", r": .* learns? (better|equally well)"]), "", text
    )
    return frozenset(re.findall(r"[A-Za-z]+", text))


def test_every_kind_and_every_number_of_ranks_appears() -> None:
    kinds = Counter(answer(seed).kind for seed in MANY)
    assert set(kinds) == set(KINDS)
    assert max(kinds.values()) <= 0.3 * len(MANY)
    assert {figures(seed)["ranks"] for seed in MANY} == set(range(2, 9))
    assert {answer(seed).kind for seed in SEEDS} == set(KINDS)


def test_the_reference_is_right_on_many_seeds() -> None:
    assert [seed for seed in MANY if referee(figures(seed)) != answer(seed)] == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_remark_does_not_name_the_fault(kind: str) -> None:
    seed = next(seed for seed in MANY if answer(seed).kind == kind)
    case = reports.unseen(seed)
    right, rank = answer(seed)
    assert case.judge(right, rank) == f"Right: {right!r}, rank {rank}."
    for other in KINDS:
        if other != kind:
            said = case.judge(other, None)
            assert said.startswith(f"Not right: you answered {other!r}, but ")
            assert repr(kind) not in said and KINDS[kind] not in said


def test_remarks_on_the_rank_and_on_the_form() -> None:
    straggler = next(seed for seed in MANY if answer(seed).kind == "straggler")
    total = next(seed for seed in MANY if answer(seed).kind == "sum")
    rank = answer(straggler).rank
    assert rank is not None
    assert f"on another rank than {rank + 1}" in str(remark(straggler, ("straggler", rank + 1)))
    assert "is on one rank: return its number" in str(remark(straggler, ("straggler", None)))
    assert "return None as the rank" in str(remark(total, ("sum", 0)))
    assert remark(straggler, ["straggler", np.int64(rank)]) is None
    assert "expected two values" in str(remark(0, "none"))
    assert "'lost' is not one of the kinds 'none', 'left out'" in str(remark(0, ("lost", None)))
    assert "is not one of the kinds" in str(remark(0, (None, 1)))


def test_each_sentence_of_the_conclusions_deserves_two_verdicts() -> None:
    found = zip(*(verdicts(figures(seed)) for seed in SEEDS), strict=True)
    network, *others = map(set, found)
    assert network == {"supported", "rejected"}
    assert others == [{"supported", "undecided"}, {"rejected", "undecided"}, {"rejected", "undecided"}]
