"""No right variant of a reference is refused."""

from __future__ import annotations

import ast

import pytest

from labkit.exercises import catalogue
from tests.exercises import rewriting
from tests.exercises.variants import FEWEST, LEFT_OUT, TRANSFORMATIONS, Variant, refused, variants

EXERCISES = catalogue.exercises()


@pytest.mark.parametrize(
    ("pattern", "text", "parts"),
    [
        ("A @ B", "x.T @ dy", {"A": "x.T", "B": "dy"}),
        ("A @ B", "x * y", None),
        ("A.sum()", "np.sum()", None),
        ("A * A", "x * x", {"A": "x"}),
        ("A * A", "x * y", None),
        ("X.copy()", "total.copy()", {"X": "total"}),
        ("X.copy()", "plan.copy()", None),
    ],
)
def test_a_pattern_fits(pattern: str, text: str, parts: dict[str, str] | None) -> None:
    trees = [ast.parse(each, mode="eval").body for each in (pattern, text)]
    matched = rewriting.matched(*trees, arrays=frozenset({"total"}))
    assert parts == (matched and {letter: ast.unparse(part) for letter, part in matched.items()})


def test_a_rule_takes_the_remaining_arguments_along() -> None:
    tree = ast.parse("y = dy.sum(0, keepdims=True)")
    rewriting.rewrite(tree, [("A.sum(*R, **K)", "np.sum(A, *R, **K)")])
    assert ast.unparse(tree) == "y = np.sum(dy, 0, keepdims=True)"


def test_what_is_surely_an_array() -> None:
    tree = ast.parse(
        "def f(x, n):\n    y = np.zeros(n)\n    z = y[1:]\n    a = y[1]\n    b, c = x, 0\n    c += x"
    )
    assert rewriting.arrays_of(tree, ["x"]) == {"x", "y", "z", "b"}


@pytest.mark.parametrize(
    ("name", "exercise", "lines"),
    [
        ("persistent", "ring_allgather", ["receiving.Start()", "receiving.Wait()", "receiving.Free()"]),
        ("persistent", "shift_right", ["MPI.Request.Waitall([into_request_1, request_1])"]),
        ("isend with tests", "broadcast", ["while not request_1.Test():", "time.sleep(0.0001)"]),
        ("pickled", "average_by_tree", ["received[...] = comm.recv(source=comm.rank + distance)"]),
        ("while over list", "fusion_cycle", ["while place_1 < len(items_1):", "name = items_1[place_1]"]),
        ("loops for comprehensions", "slow_links", ["built_1.append(rank_of_built_1)", "return built_1"]),
        ("plain assignments", "bucket_plan", []),
        ("plain assignments", "completed", ["t = t + layer_s"]),
        ("ufuncs in place", "momentum_step", ["np.multiply(velocity, momentum, out=velocity)"]),
        ("new array in place", "local_sgd_epoch", ["params[...] = moved"]),
        ("inverted conditions", "broadcast", ["if not comm.rank == root:"]),
        ("early return", "broadcast", ["return", "comm.Recv(x, source=root)"]),
        ("constants beside", "diagnose", ["NUMBER_1 = 0.2", "return ('none', None)"]),
    ],
)
def test_the_transformation_of_a_reference(name: str, exercise: str, lines: list[str]) -> None:
    tree = ast.parse(EXERCISES[exercise].text)
    TRANSFORMATIONS[name](tree, EXERCISES[exercise])
    found = [line.strip() for line in ast.unparse(ast.fix_missing_locations(tree)).splitlines()]
    places = [found.index(line) for line in lines]
    assert places == sorted(places)


@pytest.mark.exercises  # it takes ten seconds of computing time
def test_every_exercise_has_enough_variants() -> None:
    for name, exercise in EXERCISES.items():
        tried = variants(exercise)
        assert len(tried) >= FEWEST, name
        assert len({variant.text for variant in tried}) == len(tried), name
        for variant in tried:
            compile(variant.text, variant.change, "exec")


def test_each_transformation_that_is_left_out_has_a_reason() -> None:
    for name, reasons in LEFT_OUT.items():
        assert name in EXERCISES
        assert reasons.keys() <= TRANSFORMATIONS.keys(), name
        assert all(len(why.split()) > 2 for why in reasons.values())


def findings(name: str) -> list[str]:
    """Return the variants of an exercise that its check refuses, with the findings."""
    return [
        f"{variant.change}: {finding}"
        for variant, finding in refused(EXERCISES[name], variants(EXERCISES[name]))
    ]


@pytest.mark.exercises
def test_a_wrong_variant_is_refused() -> None:
    exercise = EXERCISES["linear_backward"]
    wrong = Variant("a sum over the outputs", exercise.text.replace("axis=0", "axis=1"))
    ((variant, finding),) = refused(exercise, [Variant("", exercise.text), wrong])
    assert variant == wrong
    assert "db" in finding


@pytest.mark.exercises
@pytest.mark.parametrize("name", ["linear_backward", "average_by_root"])
def test_a_sample_of_the_variants_is_accepted(name: str) -> None:
    assert findings(name) == []


@pytest.mark.exercises
@pytest.mark.thorough
@pytest.mark.timeout(1800)  # a variant on four ranks takes one second, or more on a busy machine
@pytest.mark.parametrize("name", EXERCISES)
def test_every_variant_is_accepted(name: str) -> None:
    assert findings(name) == []
