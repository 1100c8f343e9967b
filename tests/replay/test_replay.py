"""Replays as pictures, words and steps: functions of a recording, without MPI."""

from __future__ import annotations

import base64
import json
import re
from itertools import pairwise
from xml.etree import ElementTree

import pytest

from labkit.replay.axis import Axis
from labkit.replay.page import MOST_BYTES, Replay
from labkit.replay.picture import WIDEST, Picture
from labkit.replay.steps import data_for_script, line_in_cell
from labkit.replay.words import cost_sentence, event_lines, event_text, notes, short_line, traffic_rows
from mpiwatch.trace import Kind, Trace, merge
from tests.replay.recordings import (
    deadlock,
    many,
    missing_rank,
    ranks,
    ring,
    slow_link,
    straggler,
    trace_of,
)

SVG = "{http://www.w3.org/2000/svg}"
ALL = {
    "ring": ring(),
    "a rank": ring(1, 0),
    "straggler": straggler(),
    "deadlock": deadlock(),
    "missing rank": missing_rank(),
    "slow link": slow_link(),
    "many": many(),
    "nothing": trace_of(ranks(3)),
}


def drawn(trace: Trace) -> ElementTree.Element:
    return ElementTree.fromstring(Picture(trace).svg())


def picture_in(html: str) -> str:
    """Return the picture of a page, which is there as an image."""
    (encoded,) = re.findall(r"data:image/svg\+xml;base64,([^\"]+)", html)
    return base64.b64decode(encoded).decode()


def words_in(picture: ElementTree.Element) -> list[str]:
    return [text.text or "" for text in picture.iter(f"{SVG}text")]


# Words


def test_the_sentence_names_the_straggler_and_the_line() -> None:
    expected = "rank 3 computed 80 ms while ranks 0–2 waited for it in Allreduce (line 9)."
    assert cost_sentence(straggler()) == expected
    assert cost_sentence(straggler(late=0)).startswith("rank 0 computed 80 ms while ranks 1–3 waited")


def test_the_sentence_names_the_rank_for_which_one_other_waits() -> None:
    said = "rank 3 computed 38.5 ms before Send (line 5) while rank 0 waited for it in Wait (line 7)."
    assert cost_sentence(ring()) == said


def test_the_sentence_follows_waits_to_the_rank_that_waited_for_nobody() -> None:
    first, second, third = those = ranks(3)
    first.send(1, 60.0, 60.5)
    second.receive(0, 5.0, 61.0)
    second.send(2, 61.5, 62.0)
    third.receive(1, 2.0, 62.5)
    said = cost_sentence(trace_of(those, 65.0))
    assert said.startswith("rank 0 computed 59 ms before Send (line 5) while rank 2 waited for it in Recv"), (
        said
    )
    assert said.endswith("(line 6), through rank 1."), said


def test_the_sentence_says_that_a_rank_began_later() -> None:
    early, late = ranks(2)
    early.receive(1, 2.0, 61.0)
    late.send(0, 60.0, 60.5)
    logs = [early.log(65.0), late.log(65.0)._replace(begin_s=58.0 * 1e-3)]
    said = "rank 0 waited in Recv (line 6) for rank 1, which began 56 ms later."
    assert cost_sentence(merge(logs)) == said


def test_the_legend_explains_a_request_that_was_never_waited_for() -> None:
    those = ranks(2)
    line = "cell line 4: `request = comm.Isend(part, right)`"
    those[0].add(Kind.START_SEND, "Isend", 10.0, 10.1, peer=1, nbytes=800, request=1, line=line)
    those[1].receive(0, 5.0, 20.0)
    assert "request that was never waited for" in words_in(drawn(trace_of(those)))
    assert "request that was never waited for" not in words_in(drawn(ring()))


def test_the_sentence_names_a_slow_link() -> None:
    said = cost_sentence(slow_link())
    assert said.startswith("The 2 messages from rank 1 to rank 2 took about 10 times as long"), said
    assert "rank 0 to rank 1" in cost_sentence(slow_link(slow=(0, 1)))


def test_a_link_with_one_fast_message_is_not_called_slow() -> None:
    """The others have waited for a core."""
    assert "slow link" not in cost_sentence(slow_link(fast_messages=1))


def test_the_sentence_of_a_wait_that_never_ended_says_so() -> None:
    assert cost_sentence(missing_rank()) == (
        "ranks 0, 1, 3 waited in Barrier (line 9) for rank 2, and the wait never ended."
    )


def test_the_sentence_of_ranks_that_only_compute() -> None:
    assert cost_sentence(trace_of(ranks(2))).startswith("The ranks computed during 100 %")


def test_the_table_counts_messages_and_bytes_of_each_rank() -> None:
    rows = traffic_rows(ring())
    assert [row[:5] for row in rows[1:]] == [(f"rank {rank}", "1", "800", "1", "800") for rank in range(4)]


def test_the_table_counts_collectives_and_the_notes_say_so() -> None:
    rows = traffic_rows(straggler())
    assert rows[0][5:7] == ("collectives", "bytes given to them")
    assert [row[1:7] for row in rows[1:]] == [("0", "0", "0", "0", "1", "80")] * 4
    assert "A collective counts with the bytes that the rank gives to it" in " ".join(notes(straggler()))
    assert "A collective counts" not in " ".join(notes(ring()))


def raising(*, caught: bool) -> Trace:
    """Return two ranks; the first one's Send raises an error, which it may catch."""
    those = ranks(2)
    error, line = "ValueError: expected a contiguous array", "cell line 5: `comm.Send(x[::2], 1)`"
    those[0].add(Kind.SEND, "Send", 5, 6, peer=1, nbytes=8, has_failed=True, error=error, line=line)
    if not caught:
        those[0].add(Kind.RAISED, "error", 7, 7, error=error, line=line)
    those[1].receive(0, 2, None)
    return trace_of(those)


@pytest.mark.parametrize("caught", [True, False])
def test_an_error_is_a_mark_of_its_own(caught: bool) -> None:
    trace = raising(caught=caught)
    marks = [word for word in words_in(drawn(trace)) if word.startswith("✕")]
    assert marks[1] == "✕ still waiting for rank 0"  # and not the rank that has raised the error
    assert marks[0] == ("✕ ValueError" if caught else "✕ ValueError: expected a contiguous array")
    lines = event_lines(trace)
    assert any("raised ValueError: expected a contiguous array" in line for line in lines)
    texts = data_for_script(Picture(trace), "\n" * 9)["texts"]
    assert any("ValueError: expected" in text for text in texts)
    assert "Send to rank 1, 8 B never ended" not in texts


def test_texts_stand_above_the_lines_of_messages_and_their_backgrounds_below() -> None:
    for trace in ring(), many():
        svg = Picture(trace).svg()
        background = svg.rindex('class="background"')
        assert background < svg.index('class="message"')
        assert svg.rindex('class="message"') < svg.index('font-size="10" opacity="0.85"')


def test_no_label_hides_a_line_that_is_wrong() -> None:
    svg = Picture(deadlock()).svg()
    assert svg.rindex('font-size="10" opacity="0.85"') < svg.index('class="lost"')
    those = ranks(2)
    those[0].add(Kind.START_SEND, "Isend", 10.0, 10.1, peer=1, nbytes=800, request=1, line="cell line 4: `a`")
    those[1].receive(0, 5.0, 20.0)
    svg = Picture(trace_of(those)).svg()
    assert svg.rindex('font-size="10" opacity="0.85"') < svg.index("no wait has seen it complete")


def test_the_list_of_events_is_in_the_order_of_their_times() -> None:
    lines = event_lines(ring())
    assert len(lines) == 16 and lines[0].startswith("10 ms: rank 0: Irecv from rank 3")
    times = [float(line.split(" ms")[0]) for line in lines]
    assert times == sorted(times)


def test_notes_say_what_is_missing() -> None:
    those = ranks(3)
    trace = merge([those[0].log(10, lost=1234), those[1].log(10)])
    said = " ".join(notes(trace))
    assert "Rank 0: recording stopped after 10,000 events; 1,234 are missing." in said
    assert "There is no recording of rank 2." in said and "another run may differ" in said


def test_lines_are_short_where_they_are_labels() -> None:
    assert short_line("cell line 4: `comm.Send(x)`") == "line 4"
    assert short_line("cell line 4: `ring(x)` via dist.py line 7: `comm.Send(x)`") == "dist.py line 7"
    assert short_line("cell line 4: `ring(x)` via cell [3] line 2: `comm.Send(x)`") == "cell [3] line 2"
    assert (
        short_line("cell line 4: `f()` via <reference of ring_sum_of line 10: `comm.Send(x)`")
        == "reference line 10"
    )
    assert short_line("<string> line 3: `f()`") == "string line 3"
    assert short_line("") == ""
    assert line_in_cell("cell line 12: `x`") == 12 and line_in_cell("ring.py line 3: `x`") == 0


def test_a_wait_for_a_send_names_the_rank_that_it_is_sent_to() -> None:
    those = ranks(2)
    those[0].add(Kind.WAIT, "Wait", 1.0, 2.0, peer=1, is_of_send=True)
    those[0].add(Kind.WAIT, "Wait", 3.0, 4.0, peer=1)
    assert [event_text(event) for event in those[0].events] == ["Wait to rank 1", "Wait from rank 1"]


# The axis


def test_the_axis_is_to_scale_where_there_is_room() -> None:
    axis = Axis([0.0, 1.0, 2.0, 4.0], 10.0, 400.0)
    assert [axis.x(time) for time in (0, 1, 2, 4)] == pytest.approx([10, 110, 210, 410], abs=0.01)
    assert not axis.is_stretched and axis.x(-1) == 10 and axis.x(99) == pytest.approx(410, abs=0.01)


def test_the_axis_keeps_close_events_apart() -> None:
    axis = Axis([0.0, 1e-6, 2e-6, 1.0], 0.0, 300.0)
    assert axis.x(1e-6) == pytest.approx(9, abs=0.01) and axis.x(1.0) == pytest.approx(300, abs=0.01)
    assert axis.is_stretched
    places = [place for place, _ in axis.ticks()]
    assert all(before < after for before, after in pairwise(places))


def test_the_ticks_are_evenly_apart_and_say_where_the_axis_is_stretched() -> None:
    for times in [0.0, 1.0, 2.0, 4.0], [0.0, 1e-6, 2e-6, 0.3, 0.300001, 1.0]:
        axis = Axis(times, 10.0, 720.0)
        places = [place for place, _ in axis.ticks()]
        steps = {round(after - before, 3) for before, after in pairwise(places)}
        assert len(steps) == 1, steps
        assert bool(axis.stretched()) is axis.is_stretched
    assert [round(axis.time_at(axis.x(time)), 6) for time in times] == [round(time, 6) for time in times]
    assert axis.stretched() == [
        (10, pytest.approx(28)),
        (pytest.approx(axis.x(0.3)), pytest.approx(axis.x(0.300001))),
    ]


def messages_after(start: float, took: float, count: int) -> Trace:
    """Return messages between two ranks, of a length in ms each, after a start of so many ms."""
    those = ranks(2)
    for number in range(count):
        begin = start + number * took
        sender, receiver = those[number % 2], those[1 - number % 2]
        sender.send(receiver.rank, begin, begin + took)
        receiver.receive(sender.rank, begin, begin + took)
    return trace_of(those, start + count * took)


def test_a_step_with_transfers_that_can_be_seen_is_to_scale() -> None:
    axis = Picture(messages_after(100.0, 10.0, 3)).axis
    assert not axis.is_stretched
    computed, transfer = axis.x(0.1) - axis.x(0.0), axis.x(0.11) - axis.x(0.1)
    assert computed == pytest.approx(10 * transfer, rel=1e-6)


def test_short_messages_after_a_long_start_can_be_told_apart_and_the_axis_says_so() -> None:
    trace = messages_after(100.0, 0.05, 12)
    picture = Picture(trace)
    sent = [message.send.begin_s for message in trace.messages if message.send is not None]
    places = sorted(picture.axis.x(begin_s) for begin_s in sent)
    assert len(places) == 12 and all(after - before >= 5 for before, after in pairwise(places))
    assert any(words.startswith("time (not to scale where grey)") for words in words_in(drawn(trace)))


def test_the_calls_before_a_hang_can_be_told_apart() -> None:
    """The seconds until the report would press them together."""
    those = ranks(3)
    for rank in those:
        rank.collective(1.0, 1.5, "Barrier")
        rank.collective(1.6, 2.0)
    for rank in those[:2]:
        rank.collective(2.5, None)
    axis = Picture(trace_of(those, 2000.0)).axis
    assert axis.is_stretched and axis.x(0.0016) - axis.x(0.001) >= 5


def test_a_rank_that_comes_late_is_drawn_to_scale_though_most_messages_are_short() -> None:
    those = ranks(2)
    those[0].receive(1, 1.0, 100.0)
    those[1].send(0, 99.9, 100.0)
    for number in range(12):
        begin = 100.0 + number * 0.05
        those[0].send(1, begin, begin + 0.05)
        those[1].receive(0, begin, begin + 0.05)
    axis = Picture(trace_of(those, 101.0)).axis
    assert not axis.is_stretched and axis.x(0.05) - axis.x(0.0) == pytest.approx(axis.x(0.1) - axis.x(0.05))


# The picture


@pytest.mark.parametrize("name", ALL)
def test_every_picture_is_well_formed_and_inside_its_frame(name: str) -> None:
    picture = Picture(ALL[name])
    root = ElementTree.fromstring(picture.svg())
    assert picture.width <= WIDEST
    assert root.get("aria-label")
    for rect in root.iter(f"{SVG}rect"):
        x = float(rect.get("x", 0)) if rect.get("x") != "" else 0.0
        assert x >= 0 and x + float(rect.get("width", 0)) <= picture.width
    ranks_drawn = [word for word in words_in(root) if re.fullmatch(r"rank \d+", word)]
    assert ranks_drawn == [f"rank {rank}" for rank in range(ALL[name].size)]


def test_each_message_has_an_arrow() -> None:
    root = drawn(ring())
    arrows = [group for group in root.iter(f"{SVG}g") if group.get("class") == "message"]
    assert len(arrows) == 4
    titles = [title.text or "" for group in arrows for title in group.iter(f"{SVG}title")]
    assert {title.partition(",")[0] for title in titles} == {
        f"rank {k} → rank {(k + 1) % 4}" for k in range(4)
    }
    # Rank 3 asks 40 ms after rank 2 has sent: that arrow is dashed until then.
    dashed = [group for group in arrows if any(path.get("stroke-dasharray") for path in group)]
    assert len(dashed) == 1


def test_a_thicker_arrow_carries_more_bytes() -> None:
    def width(nbytes: int) -> float:
        those = ranks(2)
        those[0].send(1, 1, 3, nbytes)
        those[1].receive(0, 1, 3, nbytes)
        (group,) = (each for each in drawn(trace_of(those)).iter(f"{SVG}g") if each.get("class") == "message")
        return float(group.find(f"{SVG}path").get("stroke-width"))  # type: ignore[union-attr,arg-type]

    assert width(8) < width(1 << 16) < width(1 << 23)


def test_a_message_that_nobody_receives_ends_in_a_ring() -> None:
    root = drawn(deadlock())
    assert sum(group.get("class") == "lost" for group in root.iter(f"{SVG}g")) == 4
    said = words_in(root)
    assert "message that nobody received" in said
    assert [word for word in said if word.startswith("✕")] == [
        f"✕ still waiting for rank {(rank + 1) % 4}" for rank in range(4)
    ]


def test_a_collective_is_a_band_with_each_arrival() -> None:
    root = drawn(straggler())
    assert sum(path.get("class") == "arrival" for path in root.iter(f"{SVG}path")) == 4
    assert words_in(root).count("waits for rank 3") == 3 and "Allreduce" in words_in(root)


def test_a_rank_that_never_came_is_named() -> None:
    root = drawn(missing_rank())
    assert "rank 2 never came" in words_in(root)
    assert sum(path.get("class") == "arrival" for path in root.iter(f"{SVG}path")) == 3


def test_the_words_on_a_missing_rank_overlap_no_other_label() -> None:
    those = ranks(4)
    for rank in those[:3]:
        rank.collective(10.0, None, "Barrier")
    for begin in 9.0, 10.1, 12.0, 60.0:
        those[3].receive(0, begin, begin + 0.5)
    labels = list(drawn(trace_of(those)).iter(f"{SVG}text"))
    (missing,) = (label for label in labels if label.text == "rank 3 never came")
    left, right = float(missing.get("x", 0)), float(missing.get("x", 0)) + 6 * len(missing.text or "")
    beside = [label for label in labels if label.get("y") == missing.get("y") and label is not missing]
    assert beside, "the calls that there is room for have labels"
    for label in beside:
        begin = float(label.get("x", 0))
        assert begin >= right or begin + 5 * len(label.text or "") <= left, label.text


def test_names_of_collectives_do_not_overlap() -> None:
    those = ranks(2)
    for begin in 10.0, 10.1, 10.2, 60.0:
        for rank in those:
            rank.collective(begin, begin + 0.05)
    names = [text for text in drawn(trace_of(those)).iter(f"{SVG}text") if text.text == "Allreduce"]
    places = sorted(float(text.get("x", 0)) for text in names)
    assert len(places) > 1 and all(after - before > 50 for before, after in pairwise(places)), places


def test_ticks_that_look_alike_have_one_label() -> None:
    axis = Axis([0.0, *(1.0 + number * 1e-6 for number in range(80)), 2.0], 0.0, 800.0)
    labels = [label for _, label in axis.ticks() if label]
    assert len(labels) == len(set(labels)) < len(axis.ticks()), labels


def test_many_messages_are_bundled() -> None:
    picture = Picture(many(8, 2000))
    bundles = picture.bundles()
    assert len(bundles) < len(picture.messages) > 150
    assert sum(len(bundle.messages) for bundle in bundles) == len(picture.messages)


def test_two_pictures_on_a_page_share_no_names() -> None:
    assert Picture(ring()).key != Picture(straggler()).key and Picture(ring()).key == Picture(ring()).key


# The page


@pytest.mark.parametrize("name", ALL)
def test_a_page_is_small_and_complete_without_its_script(name: str) -> None:
    html = Replay(ALL[name], "%%replay\ncomm.Barrier()")._repr_html_()
    assert len(html.encode()) <= MOST_BYTES
    static = html.partition("<script")[0]
    assert picture_in(static).startswith("<svg") and "<table" in static and "<details>" in static


def test_a_page_stays_below_its_limit_with_very_many_events() -> None:
    html = Replay(many(8, 6_000), "")._repr_html_()
    assert len(html.encode()) <= MOST_BYTES and picture_in(html).endswith("</svg>")


def test_a_failed_cell_shows_its_report_and_begins_with_its_last_step() -> None:
    replay = Replay(deadlock(), "", "ranks 0 → 1 → 2 → 3 → 0 wait for each other.\n  rank 0 <waits>")
    html = replay._repr_html_()
    assert "<strong>ranks 0 → 1 → 2 → 3 → 0 wait for each other.</strong>" in html
    assert "rank 0 &lt;waits&gt;" in html and '"start": 4' in html
    assert repr(replay).startswith("ranks 0 → 1")


def test_text_of_a_program_cannot_end_the_script() -> None:
    html = Replay(ring(), "print('</script><b>')")._repr_html_()
    assert html.count("</script>") == 2 and "<b>" not in html.partition("<script")[0]


def test_steps_say_where_each_rank_is_what_it_holds_and_what_is_under_way() -> None:
    data = data_for_script(Picture(ring()), "\n".join(f"line {number}" for number in range(1, 10)))
    json.dumps(data)
    places = [step[0] for step in data["steps"]]
    assert places == sorted(places) and data["left_out"] == 0
    first = data["steps"][0]
    assert first[1:3] == [0, 4] and data["texts"][first[3]] == "starts Irecv from rank 3"
    sent = next(step for step in data["steps"] if step[2] == 5)
    assert data["texts"][sent[4]].startswith("[1, 1, 1")
    assert len(data["messages"]) == 4
    begin, end, text = data["messages"][0]
    assert 0 < begin < end and text == "0 → 1: 800 B, tag 0"
