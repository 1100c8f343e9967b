"""Lines such as `comm.Allreduce?` in a cell of the ranks: the notebook shows the page, once."""

from __future__ import annotations

import re

from labkit.cluster.completion.cursor import Scan

QUESTION = re.compile(
    r"[ \t]*(?P<before>\?{0,2})[ \t]*(?P<expression>[^\W\d][\w.]*)[ \t]*(?P<after>\?{0,2})[ \t]*\Z"
)
LINE_OF_RANKS = re.compile(r"^([ \t]*)%px[ \t]+(\?{0,2}[ \t]*[\w.]+[ \t]*\?{0,2})[ \t]*(\n?)\Z")


def split_help(code: str) -> tuple[str, list[tuple[str, int]]]:
    """Return code without its lines that ask for help, and the questions: expressions and details (0 or 1).

    Comments take the place of the lines, so that the others keep their numbers.
    """
    questions: list[tuple[str, int]] = []
    if "?" not in code:
        return code, questions
    lines = code.split("\n")
    for start in Scan(code).line_starts:
        number = code.count("\n", 0, start)
        match = QUESTION.match(lines[number])
        if match is not None and bool(match["before"]) != bool(match["after"]):
            detail = 1 if "??" in (match["before"], match["after"]) else 0
            questions.append((match["expression"], detail))
            lines[number] = "#"
    return "\n".join(lines), questions


def has_code(code: str) -> bool:
    """Return whether there is anything but comments and blank lines."""
    return any(line.strip() and not line.lstrip().startswith("#") for line in code.split("\n"))


def keep_help_for_ranks(lines: list[str]) -> list[str]:
    """Return a cell's lines with a call in place of `%px name?`, which IPython would take for its help."""
    return [LINE_OF_RANKS.sub(_as_call, line) if "?" in line else line for line in lines]


def _as_call(match: re.Match[str]) -> str:
    indent, question, end = match.groups()
    return f"{indent}get_ipython().run_line_magic('px', {question!r}){end}"
