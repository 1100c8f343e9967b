"""Three reports as students would write them: an honest one passes, two others are caught."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from labkit.cli.report import command
from labkit.exercises import collect, own_report, record

QUESTION = "Does a step with 128 digits take twice as long as one with 64?"
BEGIN = ("--question", QUESTION, "--second", "--batch 128", "--predict", "1.2", "2.5")


def report(*words: object, code: int = 0) -> str:
    result = CliRunner().invoke(command, [str(word) for word in words])
    assert result.exit_code == code, result.output
    return result.output


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a report that was predicted and run, with an honest text."""
    folder = tmp_path_factory.mktemp("own")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(record.FILE, str(folder / "progress.json"))
        collect(folder)
    report("begin", folder / "report", *BEGIN)
    report("run", folder / "report", "--program", folder / "my_ddp.py", "-n", 2, "--rounds", 5)
    write(folder / "report", text_of(folder / "report"))
    return folder / "report"


@pytest.fixture
def honest(made: Path, tmp_path: Path) -> Path:
    """Return a copy of the honest report."""
    copy = tmp_path / "report"
    copy.mkdir()
    for path in made.iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    return copy


def text_of(folder: Path) -> str:
    runs = json.loads((folder / own_report.RUNS).read_text())
    low, high = runs["interval"]
    return f"""# {QUESTION}

I expected between 1.2 and 2.5, since twice the digits are twice the work.

![Times](figure.png)

On 2 ranks, in 5 rounds, the median step took {runs["medians_ms"][0]:.2f} ms with 64 digits and
{runs["medians_ms"][1]:.2f} ms with 128: {runs["ratio"]:.2f} times as long
(95 % interval {low:.3f} to {high:.3f}).

{own_report.OTHERS}

1. The cost of calls, which does not grow with the digits.
2. Another program on the machine.
"""


def write(folder: Path, text: str) -> None:
    (folder / own_report.TEXT).write_text(text)


def test_an_honest_report_passes_and_becomes_a_page(honest: Path) -> None:
    assert "To hand in" in report("check", honest)
    page = (honest / own_report.PAGE).read_text()
    assert "Another program on the machine." in page and "data:image/png;base64" in page


def test_an_invented_number_is_caught(honest: Path) -> None:
    write(honest, text_of(honest).replace("Another program", "A step of 987.65 ms shows another program"))
    assert report("check", honest, code=1) == (
        "- 987.65 stands in no record: a number in the text must be measured, predicted or counted\n"
    )


def test_a_count_and_a_run_that_would_decide_may_have_whole_numbers(honest: Path) -> None:
    text = text_of(honest).replace("I expected", f"{own_report.PREDICTED}\n\nI expected 6 messages and")
    text = text.replace("![Times]", "## What I measured\n\n![Times]")
    text = text.replace("Another program on the machine.", "Others; a run on 16 ranks decides, not 3.")
    write(honest, text)
    assert "To hand in" in report("check", honest)
    write(honest, text.replace("6 messages", "6 messages of 0.4321 ms").replace("median", "median of 77"))
    assert [line.split()[1] for line in report("check", honest, code=1).splitlines()] == ["0.4321", "77"]


def test_a_prediction_made_afterwards_is_caught(honest: Path) -> None:
    """The student has seen the ratio, and begins again with a prediction that fits."""
    runs = (honest / own_report.RUNS).read_bytes()
    (honest / own_report.PREDICTION).unlink()
    report("begin", honest, *BEGIN)
    (honest / own_report.RUNS).write_bytes(runs)
    assert "the prediction is not older than the runs" in report("check", honest, code=1)


def test_an_interval_or_a_figure_of_other_runs_is_caught(honest: Path) -> None:
    path = honest / own_report.RUNS
    runs = json.loads(path.read_text())
    path.write_text(json.dumps(runs | {"interval": [1.9, 2.1]}))
    (honest / own_report.FIGURE).write_bytes(b"another")
    said = report("check", honest, code=1)
    assert "medians, ratio or interval are not those of the times" in said
    assert "figure.png is not the one that was drawn from the runs" in said


def test_a_report_without_alternatives_or_runs_says_what_is_missing(honest: Path, tmp_path: Path) -> None:
    write(honest, text_of(honest).partition(own_report.OTHERS)[0])
    assert "name two other explanations" in report("check", honest, code=1)
    (honest / own_report.RUNS).write_text("[]")
    assert "is damaged" in report("check", honest, code=1)
    (tmp_path / "empty").mkdir()
    assert "prediction.json is missing" in report("check", tmp_path / "empty", code=1)
    assert "has a prediction already" in report("begin", honest, *BEGIN, code=2)


def test_what_is_handed_in_is_one_file_that_can_be_checked_again(honest: Path) -> None:
    report("check", honest)
    handed_in = honest / own_report.NOTEBOOK
    assert report("check", handed_in) == "Nothing is wrong that a machine can see.\n"
    content = json.loads(handed_in.read_text())
    content["cells"][0]["source"] = "".join(content["cells"][0]["source"]).replace(
        "expected", "expected 987.65"
    )
    handed_in.write_text(json.dumps(content))
    assert "987.65 stands in no record" in report("check", handed_in, code=1)
    del content["metadata"][own_report.PACKED]
    handed_in.write_text(json.dumps(content))
    assert "no report is in it" in report("check", handed_in, code=2)
    handed_in.write_text("no notebook")
    assert "expected a report's folder" in report("check", handed_in, code=2)


def test_a_record_holds_no_numbers_besides_those_of_the_runs(honest: Path) -> None:
    """A number that the student adds to the file of the runs is not measured."""
    path = honest / own_report.RUNS
    path.write_text(json.dumps(json.loads(path.read_text()) | {"mine": 987.65}))
    write(honest, text_of(honest).replace("expected", "expected 987.65, not"))
    assert "987.65 stands in no record" in report("check", honest, code=1)


@pytest.mark.parametrize(
    ("file", "changes"),
    [
        (own_report.RUNS, {"times_ms": [[1.0, 2.0]] * 100_000}),
        (own_report.RUNS, {"times_ms": [[1.0, float("nan")]] * 9}),
        (own_report.RUNS, {"times_ms": [[1.0, 0.0]] * 9}),
        (own_report.RUNS, {"times_ms": []}),
        (own_report.RUNS, {"interval": {"low": 1}}),
        (own_report.PREDICTION, {"predicted": [1]}),
        (own_report.PREDICTION, {"forms": 3}),
        (own_report.PREDICTION, {"question": "Is 1.2.3 faster?"}),
    ],
)
def test_a_file_that_was_written_by_hand_is_a_fault_and_no_error(
    file: str, changes: dict[str, object], honest: Path
) -> None:
    path = honest / file
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    assert report("check", honest, code=1).startswith("- ")


def test_a_form_may_have_ranks_of_its_own(tmp_path: Path) -> None:
    assert own_report.ranks_and_options("-n 2 --batch 64", 4) == (2, ["--batch", "64"])
    assert own_report.ranks_and_options("--batch 64", 4) == (4, ["--batch", "64"])
    words = ("--question", "How many ranks are worth it?", "--predict", "0.2", "1")
    for form in ("-n", "-n two", "-n 0", "-n 65", "--model 'mlp"):
        said = report("begin", tmp_path / "new", *words, "--second", form, code=2)
        assert "expected options such as '-n 2 --average ring'" in said
    assert not (tmp_path / "new").exists()
