"""The choice of `auto` without ranks: by which measured times, and where to measure."""

from __future__ import annotations

import pytest

from labkit.comm.auto import LARGEST, Choice, rank, size_near
from labkit.units import KIB, MIB

US = 1e-6


@pytest.mark.parametrize(
    ("nbytes", "size"),
    [(0, 4), (4, 4), (5, 4), (6, 8), (1448, KIB), (1449, 2 * KIB), (MIB, MIB), (10 * LARGEST, LARGEST)],
)
def test_times_are_measured_at_the_nearest_power_of_2(nbytes: int, size: int) -> None:
    assert size_near(nbytes) == size


def test_the_library_is_chosen_unless_another_algorithm_is_faster_by_the_margin() -> None:
    assert rank({"ring": 40 * US, "mpi": 10 * US})[0] == ("mpi", 10 * US)
    for ring, chosen in (9.7 * US, "mpi"), (9.5 * US, "ring"):
        assert rank({"ring": ring, "mpi": 10 * US})[0][0] == chosen
    text = str(Choice(1200, KIB, [("mpi", 10 * US), ("ring", 40 * US)], "measured today"))
    assert text == "auto: mpi for 1.17 KiB, 10 µs at 1 KiB; next ring, 40 µs (measured today)"
