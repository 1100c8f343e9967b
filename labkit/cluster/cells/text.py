"""The text of a cell as it is sent to the ranks: with the notebook's line numbers and the cell's number."""

from __future__ import annotations

import re
from typing import Any


def engine_text(shell: Any, options: str, body: str) -> str:
    """Return what the ranks run for a cell `%%px options` with this body.

    JupyterLab counts the lines of a cell from its first line, which is the one with `%%px`. A comment takes
    the place of that line (IPython would strip an empty one), so that tracebacks, hang reports and the flight
    recorder all count as JupyterLab does.
    """
    comment = f"# cell [{cell_number(shell)}]: %%px {options}".rstrip()
    return _below(comment, lines_above(shell, body), body)


def _below(comment: str, above: int, body: str) -> str:
    """Return a text with as many comment lines on top as there are lines above it in the notebook's cell."""
    if body.lstrip().startswith("%%"):
        # Another cell magic, which must come first. Some count lines from their own; the body of others may
        # not be Python.
        head, _, rest = body.lstrip().partition("\n")
        above += body[: body.index(head)].count("\n")
        is_python = re.match(r"%%(time|timeit|capture|prun)\b", head)
        return f"{head}\n{_below(comment, above + 1, rest)}" if is_python else body
    # IPython dedents an indented cell by the indentation of its first line.
    indent = re.match(r"(?:[ \t]*\n)*([ \t]*)", body)[1]  # type: ignore[index]
    return "\n".join([indent + comment, *[f"{indent}#"] * (above - 1), body])


def cell_number(shell: Any) -> int:
    """Return the number that the notebook shows for the cell that runs."""
    return len(shell.user_ns.get("In", ())) - 1


def lines_above(shell: Any, body: str) -> int:
    """Return the number of lines of the notebook's cell above the body of its `%%px`: at least 1."""
    parent: dict[str, Any] = getattr(shell, "get_parent", dict)() or {}
    whole = str((parent.get("content") or {}).get("code", "")).rstrip()
    above = whole.removesuffix(body.rstrip())
    return max(1, above.count("\n")) if above != whole else 1
