"""The alternative text of a figure of matplotlib's: what a screen reader says in its place.

It goes into the output's metadata, where nbconvert looks for it; JupyterLab gets it from the lab's extension
(labkit/cli/labextension). The kernel and the ranks of a notebook make it when they show a figure.
"""

from __future__ import annotations

from typing import Any

MOST_LABELS = 8  # of a legend; a longer list tells a listener little


def register(shell: Any) -> None:
    """Let an IPython shell describe the figures that it shows. matplotlib need not be imported yet."""
    formatter = shell.display_formatter.mimebundle_formatter
    formatter.for_type_by_name("matplotlib.figure", "Figure", described)


def described(figure: Any, **_: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return no data, and metadata for the picture that another formatter makes."""
    return {}, {"image/png": {"alt": alt_text(figure)}}


def alt_text(figure: Any) -> str:
    """Return what a figure shows: for each panel its title, its axes and what its legend names."""
    panels = list(filter(None, map(_panel, figure.axes)))
    labels = [text.get_text() for legend in figure.legends for text in legend.get_texts()]
    parts = [*panels, *_listed(labels)]
    return f"Figure: {'; '.join(parts)}." if parts else "Figure."


def _panel(axes: Any) -> str:
    """Return the text of one panel; empty if nothing is written at it."""
    x, y, title = axes.get_xlabel(), axes.get_ylabel(), axes.get_title()
    parts = [title] if title else []
    if x and y:
        parts.append(f"{y} over {x}")
    elif x or y:
        parts.append(x or y)
    legend = axes.get_legend()
    if legend is not None:
        parts += _listed([text.get_text() for text in legend.get_texts()])
    return ", ".join(" ".join(part.split()) for part in parts)


def _listed(labels: list[str]) -> list[str]:
    """Return a list with one text that names the labels; an empty list without labels."""
    if not labels:
        return []
    shown = ", ".join(labels[:MOST_LABELS])
    more = len(labels) - MOST_LABELS
    return [f"with {shown}" + (f" and {more} more" if more > 0 else "")]
