"""What several ranks print alike is shown once, and each rank's lines keep their order. Without ranks."""

from __future__ import annotations

import random

from labkit.cluster.merged_lines import MOST_LINES, blocks


def test_texts_that_are_alike_are_one_block() -> None:
    assert blocks({rank: ["a", "b"] for rank in range(4)}) == [([0, 1, 2, 3], ["a", "b"])]
    assert blocks({2: ["a"]}) == [([2], ["a"])]
    assert blocks({0: [], 1: []}) == []


def test_forty_epochs_with_a_heading_of_rank_0_take_one_line_each() -> None:
    epochs = [f"epoch {epoch}: loss {1 / (epoch + 1):.3f}" for epoch in range(40)]
    texts = {rank: [*(["the heading"] if rank == 0 else []), *epochs, f"rank {rank}"] for rank in range(4)}
    assert blocks(texts) == [
        ([0], ["the heading"]),
        ([0, 1, 2, 3], epochs),
        *(([rank], [f"rank {rank}"]) for rank in range(4)),
    ]


def test_some_ranks_between_lines_of_all() -> None:
    texts = {rank: ["a", *(["odd"] if rank % 2 else []), "b"] for rank in range(4)}
    assert blocks(texts) == [([0, 1, 2, 3], ["a"]), ([1, 3], ["odd"]), ([0, 1, 2, 3], ["b"])]


def test_empty_lines_do_not_cut_a_text_into_pieces() -> None:
    texts = {rank: [f"{rank}", "", f"{rank + 1}"] for rank in (1, 5)}
    assert blocks(texts) == [([rank], lines) for rank, lines in texts.items()]


def test_no_line_of_a_rank_is_lost_added_or_moved() -> None:
    chance = random.Random(0)
    for _ in range(300):
        texts = {
            rank: [chance.choice(["a", "b", "c", "", f"{rank}"]) for _ in range(chance.randrange(9))]
            for rank in range(chance.randrange(1, 6))
        }
        found = blocks(texts)
        for rank, lines in texts.items():
            assert [line for ranks, part in found if rank in ranks for line in part] == lines, texts


def test_long_texts_that_differ_are_not_compared_line_by_line() -> None:
    texts = {rank: ["x"] * MOST_LINES + [f"{rank}"] for rank in range(4)}
    assert blocks(texts) == [([rank], lines) for rank, lines in texts.items()]
