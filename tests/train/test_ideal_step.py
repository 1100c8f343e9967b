"""An ideal step: what each stage exposes, and what is said of the blanks of notebook 07b."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

from labkit.exercises.nb07b import gather_ahead, reduce_scatter_overlapped
from labkit.schedules import chunk_bounds
from labkit.train import stages
from labkit.train.ideal_step import GATHER, REDUCE_SCATTER, about_blanks, ideal_step
from labkit.train.stages import LAYER, LAYERS, LR

NOTEBOOK = Path(__file__).parents[2] / "notebooks/07b_everything_sharded.ipynb"
ONE: Any = SimpleNamespace(rank=0, size=1)  # no test process is an MPI process
RIGHT = {
    "plain": (1, 1),
    "ZeRO-1": (LAYERS, LAYERS),
    "ZeRO-2": (1, LAYERS),
    "ZeRO-3": (1, 2),
    "not ahead": (LAYERS, 2 * LAYERS),
}


@pytest.fixture(scope="module")
def names() -> dict[str, Any]:
    """Run the cells of the notebook that define the stages, as one rank does; return what they define."""
    size, rank = 1, 0
    bounds = chunk_bounds(LAYER, size)
    defined: dict[str, Any] = {
        **vars(stages),
        "np": np,
        "MPI": MPI,
        "size": size,
        "rank": rank,
        "bounds": bounds,
        "counts": LAYERS * [np.diff(bounds).tolist()],
        "mine": slice(*bounds),
        "reduce_scatter_overlapped": reduce_scatter_overlapped,
        "gather_ahead": gather_ahead,
    }
    for cell in json.loads(NOTEBOOK.read_text())["cells"]:
        if cell["id"] in ("predict", "time"):
            text = "".join(cell["source"]).removeprefix("%%px\n")
            for statement in text.split("\n\n\n"):
                if statement.startswith(("class ", "STAGES", "EXPOSED", "# How many")):
                    exec(statement, defined)
    defined["kinds"] = {
        **defined["STAGES"],
        "not ahead": defined["NotAhead"],
        "overlapped": defined["Overlapped"],
    }
    return defined


@pytest.mark.parametrize("name", RIGHT)
def test_a_stage_exposes_what_its_code_waits_for(names: dict[str, Any], name: str) -> None:
    exposed = ideal_step(names["kinds"][name], ONE).exposed
    assert (exposed[REDUCE_SCATTER], exposed[GATHER]) == RIGHT[name]


def test_blanks_are_told_apart(names: dict[str, Any]) -> None:
    *of_entries, of_update = about_blanks(names["EXPOSED"], names["kinds"], ONE)
    assert sum("not filled in yet" in line for line in of_entries) == 3
    assert of_update.startswith("Overlapped.update: not written yet")
    right = about_blanks(RIGHT, names["kinds"], ONE)[:-1]
    assert all(line.endswith("is correct") for line in right), right
    wrong = {"ZeRO-1": (LAYERS, 1), "ZeRO-2": (LAYERS, 1), "ZeRO-3": 3}
    said = about_blanks(wrong, names["kinds"], ONE)  # type: ignore[arg-type]
    assert "wrong in the number of gathers." in said[0]
    assert "wrong in the number of reduce-scatters and of gathers." in said[1]
    assert "expected two numbers" in said[2]


def said_of(names: dict[str, Any], update: Any) -> str:
    overlapped = type("Overlapped", (names["Zero1"],), {"update": update})
    return about_blanks({}, {**names["kinds"], "overlapped": overlapped}, ONE)[-1]


def test_an_update_that_overlaps_its_gathers_is_told_from_others(names: dict[str, Any]) -> None:
    def started(training: Any, gradients: Any, layers: range = range(LAYERS)) -> list[Any]:
        requests = []
        for k in layers:
            training.optimisers[k].step(gradients[k], LR)
            whole = [training.params[k], names["counts"][k]]
            requests.append(training.comm.Iallgatherv(MPI.IN_PLACE, whole))
        return requests

    def overlapping(training: Any, gradients: Any) -> None:
        for request in started(training, gradients):
            request.Wait()

    def in_halves(training: Any, gradients: Any) -> None:
        for layers in range(LAYERS // 2), range(LAYERS // 2, LAYERS):
            for request in started(training, gradients, layers):
                request.Wait()

    def without_wait(training: Any, gradients: Any) -> None:
        started(training, gradients)

    def twice(training: Any, gradients: Any) -> None:
        names["Zero1"].update(training, gradients)
        overlapping(training, gradients)

    assert said_of(names, overlapping) == "Overlapped.update: correct"
    assert "at most 4 gathers are under way" in said_of(names, in_halves)
    assert "wait for all" in said_of(names, without_wait)
    assert "for each of the 8 layers, got 16" in said_of(names, twice)


def test_another_collective_is_named(names: dict[str, Any]) -> None:
    def blocking(training: Any, gradients: Any) -> None:
        training.comm.Allgatherv(MPI.IN_PLACE, training.params[0])

    with pytest.raises(AttributeError, match="not Allgatherv"):
        said_of(names, blocking)
