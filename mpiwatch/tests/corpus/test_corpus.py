"""A few programs of each category of the corpus; `make corpus` runs all of them."""

from __future__ import annotations

import pytest

from corpus.program import CATEGORIES, Program
from corpus.run_corpus import Outcome, corpus, run, table

# Programs that finish, and what strict mode reports; empty for no report.
ENDING = {
    "p2p-Send-Recv": "",
    "p2p-back-isend-recv": "",
    "coll-Bcast": "",
    "icoll-Iallreduce": "",
    "request-Waitsome": "",
    "leak-Dup": "resource leak: the communicator was never freed",
    "leak-Dup-right": "",
    "request-no-wait-Irecv": "request lifecycle: the request of Irecv from rank 1, tag 7 was never",
    "local-write-Isend": "local concurrency: the program changed the buffer of Isend before",
    "local-write-after-Isend": "",
    "rma-Put-Get": "global concurrency: Put of rank 0 and Get of rank 1 (",
    "rma-apart-Put-Get": "",
    "request-freed-Isend": "",
    "request-freed-Irecv": "request lifecycle: the request of Irecv was freed before it was waited for",
    "request-cancelled": "",
    "request-cancelled-late": "",
    "request-freed-datatype": "",
    "coll-counts-Gatherv-right": "",
    "rma-interleaved-Accumulate": "",
    "rma-interleaved-same": "global concurrency: Put of rank 0 and Put of rank 1 (",
    "local-Get-parts": "",
    "local-Get-parts-same": "local concurrency: Get uses memory that Get (",
    "local-Get-freed-datatype": "",
    "local-Get-Flush_local": "",
    "rma-Put-Get-flushed": "",
    "rma-Put-Get-flushed-told": "",
    "rma-Put-Get-not-flushed-told": "global concurrency: Put of rank 0 and Get of rank 1 (",
    "rma-dynamic": "",
}
# Programs that do not finish.
STOPPED = {
    "buffering-ring2-Send-Recv": "ranks 0 → 1 → 0 wait for each other in a circle: each waits in Send until",
    "p2p-dtype-Send-Recv": "does not fit the message that arrived: Send of 4 × int64 on rank 0, tag 7 (",
    "icoll-root-Ibcast": "different roots. rank 0: Ibcast (4 float64, root 0) at ",
    "invalid-rank-Send": "Exception: ",
    "coll-counts-Gatherv": "Gatherv: rank 0 expects 3 × float64 from rank 1, which sends 2 × float64",
}


def test_strict_mode_reports_a_few_errors_of_each_category_and_no_correct_program() -> None:
    expected, programs = ENDING | STOPPED, corpus()
    outcomes = run([programs[name] for name in expected])
    said = {outcome.program.name: "\n".join(outcome.said) for outcome in outcomes}
    assert {name: text for name, text in said.items() if expected[name] not in text} == {}
    assert {name for name, text in said.items() if text and not expected[name]} == set()


@pytest.mark.parametrize(("after_mpi_corrbench", "number", "correct"), [(False, 591, 217), (True, 478, 109)])
def test_the_corpus_is_as_large_as_its_page_says(
    after_mpi_corrbench: bool, number: int, correct: int
) -> None:
    programs = corpus(after_mpi_corrbench).values()
    assert (len(programs), sum(program.is_correct for program in programs)) == (number, correct)
    for program in programs:
        compile(program.source, program.name, "exec")
        assert "labkit" not in program.source


def test_the_table_counts_verdicts() -> None:
    cases = [
        (CATEGORIES[0], False, "report"),
        (CATEGORIES[0], False, ""),
        (CATEGORIES[0], True, ""),
        (CATEGORIES[1], True, "findings"),
        (CATEGORIES[1], False, "late"),
    ]
    outcomes = [Outcome(Program("", category, right, ""), how, []) for category, right, how in cases]
    rows = table(outcomes).splitlines()
    assert rows[2] == f"| {CATEGORIES[0]} | 3 | 1 | 1 | 1 | 0 | 0.500 | 1.000 |"
    assert rows[4].replace("*", "") == "| all | 5 | 1 | 2 | 1 | 1 | 0.333 | 0.500 |"
