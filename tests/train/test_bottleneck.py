"""Bottlenecks and links as text."""

from __future__ import annotations

import math

import pytest

from labkit.comm.emulation import Link, describe, parse_link
from labkit.train.bottleneck import Bottleneck, Straggler, links, parse


def test_a_bottleneck_is_parsed() -> None:
    for text, expected in {
        "3:slow-processor=3": Bottleneck(3, "slow-processor", factor=3),
        "0:slow-processor=1.5": Bottleneck(0, "slow-processor", factor=1.5),
        "12:slow-link=100mbit": Bottleneck(12, "slow-link", link=Link(12.5e6)),
        "1:slow-link=10": Bottleneck(1, "slow-link", factor=10),
        "1:slow-link=100": Bottleneck(1, "slow-link", factor=100),
        "1:jitter=5ms": Bottleneck(1, "jitter", seconds=0.005),
        "2:pause=1.5s@10": Bottleneck(2, "pause", seconds=1.5, step=10),
    }.items():
        assert parse(text) == expected


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "RANK:KIND=AMOUNT"),
        ("3:slow=3", "3:slow-link=100mbit"),
        ("-1:jitter=5ms", "RANK:KIND=AMOUNT"),
        ("3:slow-processor=0.5", "1 to 1,000,000"),
        (f"3:slow-processor={'9' * 400}", "1 to 1,000,000"),
        (f"3:jitter={'9' * 20}s", "expected a time"),
        ("3:slow-processor=nan", "1 to 1,000,000"),
        ("3:slow-link=100furlongs", "100furlongs"),
        ("3:slow-link=0.5", "'0.5'"),
        ("3:jitter=5ms@3", "5ms"),
        ("3:pause=2s", "2s@10"),
        ("3:pause=2s@0", "2s@10"),
    ],
)
def test_other_texts_raise_an_error_that_shows_the_format(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=r"expected") as error:
        parse(text)
    assert words in str(error.value)


def test_a_link_is_parsed_and_formatted_as_the_same_text() -> None:
    for text in "1gbit", "100mbit", "2.5gbit", "10kbit+5ms", "+50us", "8bit":
        assert str(parse_link(text)) == text
        assert parse_link(str(parse_link(text))) == parse_link(text)
    assert parse_link("1gbit") == Link(125e6) and str(Link()) == "no delay"
    assert parse_link("+50us").bytes_per_s == math.inf and parse_link("+50us").s_per_byte == 0
    assert describe([Link(125e6)] * 3 + [Link(12.5e6)]) == "1gbit, rank 3 100mbit"
    for text in "", "+", "1", "gbit", "1gbit+", "1gbit+50", "1gbit+1gbit", "-1gbit", "1e3bit", "0bit":
        with pytest.raises(ValueError, match="expected a bandwidth"):
            parse_link(text)


def test_bottlenecks_that_do_not_fit_the_ranks_are_reported() -> None:
    slow = parse("3:slow-processor=2")
    links([slow], 4)
    with pytest.raises(ValueError, match="ranks 0 … 2, got 3:slow-processor"):
        links([slow], 3)
    with pytest.raises(ValueError, match="got 3:slow-processor twice"):
        links([slow, parse("3:slow-processor=3")], 4)
    links([parse("3:pause=1s@1"), parse("3:pause=1s@2"), slow], 4)
    with pytest.raises(ValueError, match="--link"):
        links([parse("3:slow-link=10")], 4)
    links([parse("3:slow-link=10")], 4, Link(125e6))


def test_factors_and_links_by_rank() -> None:
    found = [parse(text) for text in ("1:slow-processor=3", "2:slow-link=10", "0:slow-link=8mbit")]
    assert [Straggler(found, rank).factor for rank in range(3)] == [1, 3, 1]
    assert links(found[:1], 3) is None
    assert links([], 2, Link(1e6)) == [Link(1e6)] * 2
    assert links(found, 4, Link(125e6, 1e-4)) == [
        Link(1e6), Link(125e6, 1e-4), Link(12.5e6, 1e-3), Link(125e6, 1e-4)
    ]  # fmt: skip
    assert links(found[2:], 2) == [Link(1e6), Link()]
