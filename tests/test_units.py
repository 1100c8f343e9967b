"""Sizes, times and bandwidths: parsing, exact formatting and rounding."""

from __future__ import annotations

import subprocess
import sys

import pytest

from labkit import units


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("4B", 4),
        ("1000B", 1000),
        ("1KiB", 1024),
        ("1536KiB", 3 << 19),
        ("64MiB", 64 << 20),
        ("1GiB", 1 << 30),
    ],
)
def test_a_size_is_parsed_and_formatted_as_the_same_text(text: str, size: int) -> None:
    assert units.parse_size(text) == size and units.format_size(size) == text


def test_a_size_may_have_any_case_a_fraction_or_no_unit() -> None:
    assert [units.parse_size(text) for text in ("64mib", " 0.5 KIB", "20")] == [64 << 20, 512, 20]
    assert units.format_size(0) == "0B"


@pytest.mark.parametrize("text", ["", "5 sheep", "-4B", "1.5B", "1e3B", "MiB", "1,5KiB"])
def test_other_sizes_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected a size such as 4B") as error:
        units.parse_size(text)
    assert repr(text) in str(error.value)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("2s", 2), ("1.5s", 1.5), ("5ms", 0.005), ("50us", 5e-5), ("0.5us", 5e-7), ("0s", 0)],
)
def test_a_time_is_parsed_and_formatted_as_the_same_text(text: str, seconds: float) -> None:
    assert units.parse_time(text) == pytest.approx(seconds, rel=1e-12)
    assert units.format_time(seconds) == text == units.format_time(units.parse_time(text))


def test_a_time_is_formatted_in_the_largest_unit_that_it_fills() -> None:
    assert units.format_time(units.parse_time("5000us")) == "5ms"
    assert units.parse_time("50µs") == units.parse_time("50μs") == units.parse_time("50 US")


@pytest.mark.parametrize("text", ["", "5", "ms", "-1ms", "5min"])
def test_other_times_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected a time such as 50us"):
        units.parse_time(text)


@pytest.mark.parametrize(
    ("text", "bits"), [("8bit", 8), ("10kbit", 1e4), ("100mbit", 1e8), ("2.5gbit", 2.5e9), ("40gbit", 4e10)]
)
def test_a_bandwidth_is_parsed_and_formatted_as_the_same_text(text: str, bits: float) -> None:
    assert units.parse_bandwidth(text) == bits and units.format_bandwidth(bits) == text


@pytest.mark.parametrize("text", ["", "fast", "0gbit", "1", "-1gbit", "1e3bit", "1gb"])
def test_other_bandwidths_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected a bandwidth such as 100mbit"):
        units.parse_bandwidth(text)


def test_approximate_amounts_have_three_digits_and_the_unit_that_suits_them() -> None:
    sizes = [units.approx_size(size) for size in (0, 20, 1000, 1500, 64 << 20, 1.5 * 2**30)]
    assert sizes == ["0 B", "20 B", "1000 B", "1.46 KiB", "64 MiB", "1.5 GiB"]
    times = [units.approx_time(t) for t in (2.5, 0.0705, 1.234e-3, 2e-5, 3e-7, 0.0)]
    assert times == ["2.5 s", "70.5 ms", "1.23 ms", "20 µs", "0.3 µs", "0 µs"]
    assert [units.approx_throughput(rate) for rate in (1.43e9, 9e6, 12.0)] == [
        "1.43 GB/s",
        "9 MB/s",
        "0.01 kB/s",
    ]
    padded = [units.approx_time(t, trailing_zeros=True) for t in (2.5, 0.07, 0.25, 2e-5)]
    assert padded == ["2.50 s", "70.0 ms", "250 ms", "20.0 µs"]


def test_rounding_goes_on_to_the_next_unit() -> None:
    assert units.approx_time(0.99996e-3) == "1 ms" and units.approx_time(0.0009994) == "999 µs"
    assert units.approx_time(9.996e-3) == "10 ms" and units.approx_time(1000.0) == "1000 s"
    assert units.approx_throughput(2.5e12) == "2500 GB/s"


def test_units_load_without_numpy() -> None:
    program = "import sys, labkit.units; print('numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
