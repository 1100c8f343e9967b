"""my_ddp.py grows with the student's functions, holds nothing of the lab's, and trains as labkit does."""

from __future__ import annotations

import ast
import inspect
import json
import re
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from labkit.alt_text import alt_text
from labkit.checks.exercise import Verdict
from labkit.cli.exercises import collect as command
from labkit.exercises import catalogue, checking, own, program, record, weeks
from labkit.exercises.collecting import collect
from labkit.exercises.program import FEATURES, TEMPLATE
from tests.conftest import run, run_python, thorough

PLACES = list(program.places())
EPOCHS = 2
# Each rank runs one program after the other, then looks at what they have imported.
JOB = """
import json, runpy, sys
for words in json.loads(sys.argv[1]):
    sys.argv = words
    print("RUNS", *words, flush=True)
    runpy.run_path(words[0], run_name="__main__")
roots = {name.partition(".")[0] for name in sys.modules}
assert not roots & {"labkit", "mpiwatch", "ipyparallel"}, roots
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(record.FILE, str(tmp_path / "progress.json"))
    return tmp_path


def collected(folder: Path, name: str, kept: dict[str, str]) -> Path:
    """Collect these answers, and return the program under a name of its own."""
    for exercise, text in kept.items():
        record.note(exercise, True, text)
    collect(folder)
    record.path().unlink(missing_ok=True)
    return (folder / "my_ddp.py").rename(folder / f"{name}.py")


def losses(output: str) -> dict[str, list[float]]:
    """Return the losses that each program has printed, by the words that started it."""
    parts = re.split(r"^RUNS (.*)\n", output, flags=re.MULTILINE)[1:]
    found: dict[str, list[float]] = {}
    for words, text in zip(parts[::2], parts[1::2], strict=True):
        found.setdefault(words, []).extend(float(loss) for loss in re.findall(r": loss (\S+)\n", text))
    return found


@pytest.fixture(scope="module")
def labkits(tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    """Return labkit's losses with the program's settings, on one rank."""
    out = tmp_path_factory.mktemp("run") / "run"
    run_python("-m", "labkit", "train", "--model", "mlp", "--epochs", str(EPOCHS), "--out", out)
    return [row["global_loss"] for row in json.loads((out / "run.json").read_text())["epochs"]]


def answers(*notebooks: str) -> dict[str, str]:
    """Return the references of these notebooks as a student's answers, of all notebooks if none is named."""
    return {
        name: f"# my own comment\n{exercise.text}\nprint('done')\n"
        for name, exercise in program.places().items()
        if not notebooks or exercise.notebook in notebooks
    }


def text_with(kept: dict[str, str]) -> str:
    """Return the program with these answers."""
    return program.program(program.fitting(kept))


def test_every_call_in_the_program_fits_the_references_signature() -> None:
    called = set()
    for node in ast.walk(ast.parse(TEMPLATE.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in PLACES:
            names = [keyword.arg for keyword in node.keywords]
            reference = catalogue.find(node.func.id).reference
            inspect.signature(reference).bind(*node.args, **dict.fromkeys(filter(None, names)))
            called.add(node.func.id)
    in_table = set(re.findall(r"weighted\((average_by_\w+)\)", TEMPLATE.read_text()))
    for name in in_table:
        inspect.signature(catalogue.find(name).reference).bind("comm", "gradient", "weight")
    used_elsewhere = {"im2col"}  # by the student's own convolution
    assert called | in_table | used_elsewhere == set(PLACES), "a place that nothing uses, or without a place"


def test_every_function_with_a_place_belongs_to_a_feature_and_the_other_way_round() -> None:
    assert {name for feature in FEATURES.values() for name in feature.functions} == set(PLACES)


# The weeks of the course; the last one is complete.
WEEKS = [
    (),
    ("00",),
    ("00", "01"),
    ("00", "01", "03"),
    ("00", "01", "03", "04"),
    ("00", "01", "03", "04", "05"),
]
WEEKS += [("00", "01", "03", "04", "05", "06"), ("all",)]


def week(notebooks: tuple[str, ...]) -> dict[str, str]:
    """Return the answers that a student has written after these notebooks."""
    return {} if not notebooks else answers() if notebooks == ("all",) else answers(*notebooks)


def random_answers(seed: int) -> dict[str, str]:
    """Return about half of the answers."""
    chance = np.random.default_rng(seed)
    return {name: text for name, text in answers().items() if chance.random() < 0.5}


def lint(path: Path) -> None:
    """Fail if the program is not formatted, uses a name that nothing defines, or has something unused."""
    rules = ["check", "--select", "E,F,I,B,UP", "--ignore", "B905", "--line-length", "110", str(path)]
    for words in (rules, ["format", "--diff", "--line-length", "110", str(path)]):
        run_python("-m", "ruff", *words, "--isolated")


@pytest.mark.parametrize("kept", [*map(week, WEEKS), *map(random_answers, range(12))])
def test_the_program_is_formatted_and_complete_with_any_answers(folder: Path, kept: dict[str, str]) -> None:
    path = collected(folder, "program", kept)
    lint(path)
    text = path.read_text()
    used = program.fitting(kept).used
    assert [
        name for name in PLACES if f"\ndef {name}(" in text and f"# Yours: {name}, notebook" in text
    ] == used
    assert text.count("# my own comment\n") == len(used)


@pytest.mark.parametrize("notebooks", WEEKS[:-1])
def test_nothing_of_a_reference_stands_in_the_program(notebooks: tuple[str, ...]) -> None:
    kept = week(notebooks)
    written = {ast.dump(node) for text in kept.values() for node in ast.walk(ast.parse(text))}
    joined = {ast.dump(node) for node in ast.walk(ast.parse(text_with(kept)))} - written
    for name in set(PLACES) - set(kept):
        function = ast.parse(catalogue.find(name).text).body[-1]
        assert isinstance(function, ast.FunctionDef)
        body = [node for node in function.body if not isinstance(node, ast.Return)]
        same = [
            ast.unparse(node) for node in body if ast.dump(node) in joined and len(ast.unparse(node)) > 40
        ]
        assert same == [], name


def test_it_trains_in_every_week(folder: Path) -> None:
    """The programs of all weeks run one after the other on the same ranks."""
    paths = [collected(folder, f"week-{number}", week(notebooks)) for number, notebooks in enumerate(WEEKS)]
    done = run(3, "-c", JOB, json.dumps([[str(path)] for path in paths]))
    assert done.returncode == 0, done.stdout
    accuracies = list(map(float, re.findall(r"test accuracy (\S+) %", done.stdout)))
    for notebooks, accuracy in zip(WEEKS, accuracies, strict=True):
        knows_shuffling = "03" in notebooks or notebooks == ("all",)
        assert accuracy > (96 if knows_shuffling else 91), (notebooks, done.stdout)


AVERAGES = "mpi", "ring", "tree", "root", "allgather", "reduce", "overlapped", "sharded", "gather"
AVERAGES += "two-level", "ring-reduce", "my-allreduce", "zero-2", "zero-3"


@pytest.mark.parametrize("p", [1, thorough(2), 3, thorough(4), thorough(5)])
def test_it_trains_to_labkits_losses(p: int, folder: Path, labkits: list[float]) -> None:
    path = str(collected(folder, "whole", answers()))
    jobs = [[path, "--no-shuffle", "--average", name, "--epochs", str(EPOCHS)] for name in AVERAGES]
    jobs += [[path, "--no-shuffle", "--accumulate", "3", "--epochs", str(EPOCHS)]]
    done = run(p, "-c", JOB, json.dumps(jobs))
    assert done.returncode == 0, done.stdout
    found = losses(done.stdout)
    assert len(found) == len(jobs)
    for words, each in found.items():
        np.testing.assert_allclose(each, labkits, rtol=1e-5, err_msg=words)


@pytest.mark.parametrize("notebooks", [(), ("all",)])
@pytest.mark.parametrize("option", ["--epochs", "--batch"])
def test_a_number_below_1_gets_a_message_that_says_what_was_expected(
    option: str, notebooks: tuple[str, ...], folder: Path
) -> None:
    path = collected(folder, "whole" if notebooks else "empty", week(notebooks))
    done = run_python(path, option, "0", code=2)
    assert f"error: {option}: expected 1 or more, got 0" in done.stderr, done.stderr


def test_with_shuffled_digits_the_losses_do_not_depend_on_the_number_of_ranks(folder: Path) -> None:
    path = str(collected(folder, "whole", answers()))
    (alone,), (together,) = (
        losses(run(p, "-c", JOB, json.dumps([[path, "--epochs", str(EPOCHS)]])).stdout).values()
        for p in (1, 3)
    )
    np.testing.assert_allclose(together, alone, rtol=1e-5)


def changed(name: str, *changes: tuple[str, str]) -> str:
    """Return the reference with parts of its text replaced."""
    text = catalogue.find(name).text
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    return text


NEIGHBOURS = """
def neighbours(comm):
    return (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
"""
# Correct answers as students write them.
UNUSUAL = {
    # Other names inside, comments between, a check in the cell.
    "linear_backward": """
# what comes back from the next layer
def linear_backward(g, inputs, weights):
    back = g @ weights.T  # to the layer below

    # the parameters
    return back, inputs.T @ g, g.sum(axis=0)
    # (nothing else)


linear_backward = check(linear_backward)
print(linear_backward(np.ones((1, 1)), np.ones((1, 1)), np.ones((1, 1))))
""",
    # Helpers below, one of which calls another.
    "average_by_root": changed("average_by_root", ("range(1, comm.size)", "others(comm)"))
    + """
def others(comm):
    return range(1, end(comm))

def end(comm):
    return comm.size

def not_needed():
    return undefined
""",
    # A class, and the same helper in two cells.
    "ring_reduce_scatter": f"""
{NEIGHBOURS.replace("    return", "    'Return both.'; return")}
class Ring:
    def __init__(self, comm):
        self.left, self.right = neighbours(comm)

{changed("ring_reduce_scatter", ("(rank + 1) % p", "Ring(comm).right"))}""",
    "ring_allgather": NEIGHBOURS
    + changed("ring_allgather", ("dest=(rank + 1) % p", "dest=neighbours(comm)[1]")),
    # Lambdas, imports of its own, and two statements in a line.
    "views": f"""
import numpy as np
from math import prod, pi
from functools import reduce as fold

size = lambda shape: fold(lambda a, b: a * b, shape, 1); other = prod
{changed("views", ("math.prod(shape)", "max(size(shape), other(shape))"))}""",
    # Default arguments and a keyword; a constant that changes.
    "momentum_step": """
DAMPING = 1.0
DAMPING *= 0

def momentum_step(params, velocity, grads, lr, momentum, weight_decay, *, damping=DAMPING):
    velocity[:] = momentum * velocity + (1 - damping) * (grads + weight_decay * params)
    params -= lr * velocity
""",
    # A decorator.
    "average_gradients": f"""
from functools import wraps

CALLS = {{}}
CALLS["average_gradients"] = 0

def counted_calls(function):
    @wraps(function)
    def call(*arguments):
        CALLS[function.__name__] += 1
        return function(*arguments)
    return call

@counted_calls
{changed("average_gradients")}
np.random.seed(3)
""",
    # A table that statements fill, and a function written twice.
    "weights_equal": f"""
import hashlib

KINDS = []
for kind in ("sha256", "md5"):
    KINDS.append(getattr(hashlib, kind))

def weights_equal(comm, weights):
    return True

{changed("weights_equal", ("hashlib.sha256", "KINDS[0]"))}""",
    # Imports of the lab.
    "my_allreduce": "from labkit.schedules import copy_round, merge_rounds, reduce_round\n"
    + changed("my_allreduce"),
    # A loop that averages a copy.
    "train_epoch": changed("train_epoch", ("comm, grads,", "comm, grads := grads * 1,")),
}


def test_unusual_answers_are_carried_over(folder: Path, labkits: list[float]) -> None:
    kept = answers() | UNUSUAL
    assert program.fitting(kept).left_out == {}
    path = collected(folder, "unusual", kept)
    assert "not_needed" not in path.read_text() and "check(" not in path.read_text()
    for once in "def neighbours(", "dest=neighbours(", "other = prod":
        assert path.read_text().count(once) == 1
    averages = "mpi", "root", "ring", "my-allreduce", "overlapped"
    jobs = [[str(path), "--no-shuffle", "--average", name, "--epochs", str(EPOCHS)] for name in averages]
    done = run(3, "-c", JOB, json.dumps(jobs))
    assert done.returncode == 0, done.stdout
    found = losses(done.stdout)
    assert len(found) == len(jobs)
    for words, each in found.items():
        np.testing.assert_allclose(each, labkits, rtol=1e-5, err_msg=words)


RING = changed("ring_allgather")
MY_ITEMS = f"def mine(n): return n\n\n{changed('my_items')}    mine(n)\n"


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("ring_allgather", "def ring_allgather(", "the kept answer is damaged; check yours again"),
        ("ring_allgather", "x = 3", "the kept answer is damaged; check yours again"),
        ("ring_allgather", RING.replace("n, p, rank =", "n, p, rank = ready and"), "it uses `ready`, which"),
        ("ring_allgather", f"import scipy.linalg as numbers\n{RING}    numbers", "it imports scipy, and the"),
        ("ring_allgather", f"{RING}    import labkit", "it imports labkit, and the program needs only"),
        ("ring_allgather", f"def chunk(n, p, i): return 3\n{RING}", "the program has another `chunk`; give"),
        (
            "ring_allgather",
            f"def mine(n): return 3\n{RING}    mine(n)",
            "the program has another `mine`; give",
        ),
        ("ring_allgather", f"def main(): return 3\n{RING}    main()", "the program has another `main`; give"),
        ("conv_forward", f"im2col = max\n{changed('conv_forward')}", "its cell has a `im2col` of"),
        ("ring_allgather", f"@my_items\n{RING}", "its cell calls `my_items` before the program has"),
    ],
)
def test_what_cannot_be_carried_over_is_left_out_and_says_why(
    name: str, text: str, why: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = collected(folder, "program", {name: text, "my_items": MY_ITEMS}).read_text()
    compile(text, "my_ddp.py", "exec")
    said = " ".join(capsys.readouterr().out.split())
    assert f"Left out: {name}: {why}" in said
    assert "New: each rank takes every p-th digit (my_items)." in said
    assert "def my_items(" in text and f"def {name}(" not in text


def test_an_answer_that_calls_a_function_which_is_not_there_is_left_out() -> None:
    kept = answers("01")
    del kept["softmax_cross_entropy"]
    why = "it calls `softmax_cross_entropy` of notebook 01, which is not there yet"
    assert program.fitting(kept).left_out == {"mlp_gradient": why}


def test_a_function_that_nothing_uses_yet_waits_and_what_comes_next_is_named(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    collected(folder, "first", {"ring_allgather": RING})
    said = " ".join(capsys.readouterr().out.split())
    assert "Not used yet: ring_allgather: `--average ring` needs ring_reduce_scatter, too." in said
    assert "Next: each rank takes every p-th digit, with my_items (notebook 00)." in said


def test_only_what_is_new_since_the_last_time_is_named(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, text in answers("00", "05").items():
        record.note(name, True, text)
        collect(folder)
    *_, last = capsys.readouterr().out.split("my_ddp.py: ")
    assert [line for line in last.splitlines() if line.startswith("New: ")] == [
        "New: `--average my-allreduce` (my_allreduce)."
    ]


@pytest.mark.parametrize("name", ["softmax_cross_entropy", "max_pool"])  # whose results have changed
def test_an_answer_to_an_earlier_version_of_the_exercise_is_left_out(
    name: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    entry = {"state": "done", "cell": catalogue.find(name).text, "stub": "that of another docstring"}
    record.path().write_text(json.dumps({"exercises": {name: entry}}))
    collect(folder)
    said = " ".join(capsys.readouterr().out.split())
    assert f"Left out: {name}: the exercise has changed since you wrote it; check yours again." in said
    assert own(name)[1] is False


def test_a_later_failing_check_leaves_the_kept_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def my_items(n: int, rank: int, size: int) -> list[int]:
        return list(range(n))[rank::size]

    right = my_items

    def my_items(n: int, rank: int, size: int) -> list[int]:  # type: ignore[no-redef]
        return list(range(n))[rank:]

    for passed, function in (True, right), (False, my_items):
        found = Verdict(passed, "wrong")
        monkeypatch.setattr(checking, "judge_text", lambda *arguments, found=found, **named: found)
        checking.check(function)
    assert "[rank::size]" in record.passed_cells()["my_items"]
    function, is_own = own("my_items")
    assert (function(5, 1, 2), is_own) == ([1, 3], True)
    assert own("shard_bounds")[1] is False


def test_a_program_that_the_student_has_changed_is_kept(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    collect(folder)
    record.note("my_items", True, catalogue.find("my_items").text)
    collect(folder)
    assert "You have changed" not in capsys.readouterr().out
    mine = folder / "my_ddp.py"
    mine.write_text(changed := mine.read_text().replace("epochs", "rounds"))
    done = CliRunner().invoke(command, [str(folder)])
    assert "You have changed my_ddp.py: your version is now my_ddp-old.py." in done.output
    assert (folder / "my_ddp-old.py").read_text() == changed
    assert sorted(path.name for path in folder.glob("*.py")) == ["my_ddp-old.py", "my_ddp.py"]


def test_a_folder_that_cannot_be_written_is_an_error(folder: Path) -> None:
    (folder / "digits.npz").mkdir()
    done = CliRunner().invoke(command, [str(folder)])
    assert done.exit_code == 2
    why = f"digits.npz cannot be written to {folder}: expected a plain file, found a folder."
    assert done.output == f"Error: {why}\n"


def test_a_run_on_ranks_is_told_beside_the_one_before(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(2):
        collect(folder, ranks=2)
    first, second = re.findall(r"On 2 ranks: .*\.", capsys.readouterr().out)
    accuracy = re.search(r"test accuracy (\S+ %), a step takes (\S+ ms)\.", first)
    assert accuracy and f"(before: {accuracy[1]}, {accuracy[2]})." in second
    assert len(json.loads((folder / "my_ddp.json").read_text())) == 2


def test_the_weeks_show_the_bytes_of_the_busiest_rank_and_their_figure_has_a_text(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A ring's busiest rank sends 2 (p - 1) / p of the gradient in each step, and receives as much."""
    collect(folder, ranks=2)
    assert "the messages inside the library are not counted" in capsys.readouterr().out
    for name, text in answers("00", "01", "03", "05").items():
        record.note(name, True, text)
    for _ in range(2):
        collect(folder, ranks=2)
    said = capsys.readouterr().out
    steps, parameters = 23, 64 * 64 + 64 + 64 * 10 + 10  # 1,438 digits in mini-batches of 64
    nbytes = 2 * steps * 2 * (2 - 1) * parameters * 4 // 2
    size = f"{nbytes / 1e3:,.1f} kB"
    assert f"With --average ring, the busiest rank sends and receives {size} in an epoch." in said
    assert f"in an epoch (before: {size} with ring)." in said
    rows = json.loads((folder / "my_ddp.json").read_text())
    assert [row["nbytes"] for row in rows] == [None, nbytes, nbytes]
    drawn = weeks.figure([weeks.WeeksRun(**row) for row in rows])
    text = alt_text(drawn)
    assert f"{rows[0]['accuracy']:.5g} → {rows[-1]['accuracy']:.5g}, test accuracy (%) over run" in text
    assert f"{nbytes / 1e3:.5g} → {nbytes / 1e3:.5g}, busiest rank, an epoch (kB) over run" in text


def test_a_program_that_fails_on_ranks_says_so(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record.note("my_items", True, "def my_items(n, rank, size):\n    raise ValueError('no')")
    collect(folder, ranks=2)
    assert "It did not run to its end: `" in capsys.readouterr().out
    assert not (folder / "my_ddp.json").exists()


@pytest.mark.parametrize("content", ["[{}]", "{", '[{"ranks": "x", "accuracy": 1, "step_ms": 1}]', "3"])
def test_a_damaged_list_of_runs_begins_anew(folder: Path, content: str) -> None:
    (folder / "my_ddp.json").write_text(content)
    collect(folder, ranks=1)
    assert len(json.loads((folder / "my_ddp.json").read_text())) == 1
