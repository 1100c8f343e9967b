"""Fitted costs without ranks: prediction between and beyond measured sizes, the choice, what to measure."""

from __future__ import annotations

import pytest

from labkit.comm.auto import LARGEST, predict, rank, sizes_around
from labkit.units import MIB

US = 1e-6
TIMES = {
    1024: {"mpi": 10 * US, "ring": 40 * US},
    4096: {"mpi": 20 * US, "ring": 40 * US, "tree": 5 * US},
    MIB: {"mpi": 1e-3, "ring": 0.6e-3, "tree": 2e-3, "shared-memory": 0.2e-3},
}


@pytest.mark.parametrize(
    ("nbytes", "sizes"),
    [(0, [4]), (4, [4]), (5, [4, 8]), (3000, [2048, 4096]), (MIB, [MIB]), (10 * LARGEST, [LARGEST])],
)
def test_costs_are_measured_at_the_powers_of_2_around_a_size(nbytes: int, sizes: list[int]) -> None:
    assert sizes_around(nbytes) == sizes


def test_costs_are_straight_lines_between_measured_sizes_in_log_log_coordinates() -> None:
    assert predict(TIMES, 1024) == TIMES[1024]
    assert predict(TIMES, 2048) == pytest.approx({"mpi": 200**0.5 * US, "ring": 40 * US})
    assert predict(TIMES, 4) == TIMES[1024]
    assert predict(TIMES, 4 * MIB)["tree"] == pytest.approx(8e-3)


def test_the_library_is_chosen_unless_another_algorithm_is_faster_by_the_margin() -> None:
    assert rank(TIMES, 1024, "").name == "mpi"
    assert rank(TIMES, MIB, "").name == "shared-memory"
    for ring, chosen in (9.7 * US, "mpi"), (9.5 * US, "ring"):
        assert rank({64: {"ring": ring, "mpi": 10 * US}}, 64, "").name == chosen
    text = str(rank(TIMES, 1024, "measured today"))
    assert text == "auto: mpi for 1 KiB, predicted 10 µs; next ring, 40 µs (measured today)"
