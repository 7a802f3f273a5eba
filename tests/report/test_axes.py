"""Axes of the page: labels that can be told apart, at the width that a page gives them."""

from __future__ import annotations

import itertools

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from consilience.report.plots.drawing import WIDTH, score_axis


@pytest.mark.parametrize("lowest", [0.0066, 0.05, 0.3])
def test_labels_of_a_score_do_not_touch(lowest: float) -> None:
    """On three fifths of a page's width less the names, as beside the bytes: 0.01 and 0.03 touched in the demo."""
    figure = Figure(figsize=(WIDTH / 72, 3))
    FigureCanvasAgg(figure)
    axes = figure.add_axes((0.3, 0.2, 0.38, 0.7))
    axes.plot([lowest, 3.8], [0, 1])
    axes.tick_params(labelsize=8.5)
    score_axis(axes, "nll", [lowest, 3.8])
    figure.canvas.draw()
    shown = [label for label in axes.get_xticklabels() if axes.get_xlim()[0] <= label.get_position()[0] <= 3.8]
    boxes = [label.get_window_extent() for label in shown]
    assert len(boxes) >= 2
    assert all(left.x1 + 4 < right.x0 for left, right in itertools.pairwise(boxes))
