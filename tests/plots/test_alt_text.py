"""The alternative text of figures."""

from __future__ import annotations

from types import SimpleNamespace

from IPython.core.formatters import DisplayFormatter
from matplotlib.figure import Figure

from labkit.alt_text import MOST_LABELS, alt_text, register


def test_it_names_panels_axes_and_curves() -> None:
    figure = Figure()
    left, right = figure.subplots(1, 2)
    left.plot([1, 2], label="rank 0")
    left.plot([2, 1], label="rank 1")
    left.set(title="Training", xlabel="Epoch", ylabel="Loss")
    left.legend()
    right.set(ylabel="Accuracy\n(%)")
    expected = "Figure: Training, Loss over Epoch, with rank 0, rank 1; Accuracy (%)."
    assert alt_text(figure) == expected
    assert alt_text(Figure()) == "Figure."


def test_a_long_legend_is_cut() -> None:
    figure = Figure()
    axes = figure.add_subplot()
    for rank in range(MOST_LABELS + 3):
        axes.plot([rank], label=f"rank {rank}")
    figure.legend()
    assert alt_text(figure).endswith(f"rank {MOST_LABELS - 1} and 3 more.")


def test_it_is_in_the_metadata_of_the_picture() -> None:
    shell = SimpleNamespace(display_formatter=DisplayFormatter())
    register(shell)
    figure = Figure()
    figure.add_subplot().set(xlabel="Epoch")
    shell.display_formatter.formatters["image/png"].for_type(Figure, lambda _: "picture")
    data, metadata = shell.display_formatter.format(figure)
    assert data["image/png"] == "picture"
    assert metadata["image/png"] == {"alt": "Figure: Epoch."}
