"""Sizes, times and bandwidths: parsing, exact formatting and rounding."""

from __future__ import annotations

import pytest

from labkit import units

SIZES = {
    "4B": 4,
    "1000B": 1000,
    "1KiB": 1024,
    "1536KiB": 3 << 19,
    "64MiB": 64 << 20,
    "1GiB": 1 << 30,
    "0B": 0,
}
TIMES = {"2s": 2, "1.5s": 1.5, "5ms": 0.005, "50us": 5e-5, "0.5us": 5e-7, "0s": 0}
BANDWIDTHS = {"8bit": 8, "10kbit": 1e4, "100mbit": 1e8, "2.5gbit": 2.5e9, "40gbit": 4e10}
KINDS = {  # how to parse, how to format, amounts, and what is none
    "size": (
        units.parse_size,
        units.format_size,
        SIZES,
        ["", "5 sheep", "-4B", "1.5B", "1e3B", "MiB", "1,5KiB"],
    ),
    "time": (units.parse_time, units.format_time, TIMES, ["", "5", "ms", "-1ms", "5min"]),
    "bandwidth": (
        units.parse_bandwidth,
        units.format_bandwidth,
        BANDWIDTHS,
        ["", "fast", "0gbit", "1", "-1gbit", "1e3bit", "1gb"],
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_an_amount_is_parsed_and_formatted_as_the_same_text_and_others_are_refused(kind: str) -> None:
    parse, form, amounts, refused = KINDS[kind]
    for text, amount in amounts.items():
        assert parse(text) == pytest.approx(amount, rel=1e-12)
        assert form(amount) == text == form(parse(text))
    for text in refused:
        with pytest.raises(ValueError, match=f"expected a {kind} such as") as error:
            parse(text)
        assert repr(text) in str(error.value)


def test_units_may_have_any_case_sizes_a_fraction_or_no_unit() -> None:
    assert [units.parse_size(text) for text in ("64mib", " 0.5 KIB", "20")] == [64 << 20, 512, 20]
    assert units.parse_time("50µs") == units.parse_time("50μs") == units.parse_time("50 US")
    assert units.format_time(units.parse_time("5000us")) == "5ms", "the largest unit that it fills"


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


def test_rounding_goes_on_to_the_next_unit() -> None:
    assert units.approx_time(0.99996e-3) == "1 ms" and units.approx_time(0.0009994) == "999 µs"
    assert units.approx_time(9.996e-3) == "10 ms" and units.approx_time(1000.0) == "1000 s"
    assert units.approx_throughput(2.5e12) == "2500 GB/s"
