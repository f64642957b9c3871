"""A fixture and functions to check the contents of matplotlib figures."""

from pathlib import Path

import matplotlib.pyplot as plt
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg


@pytest.fixture
def drawn(monkeypatch):
    """The figures in the order in which they were saved, which are also written as PNG files."""
    figures, write = [], FigureCanvasAgg.print_png

    def written(canvas, file):
        figures.append(canvas.figure)
        write(canvas, file)
        assert Path(file.name).read_bytes().startswith(b"\x89PNG\r\n\x1a\n")

    monkeypatch.setattr(FigureCanvasAgg, "print_png", written)
    yield figures
    assert plt.get_fignums() == []


def heights(axes):
    """The heights of the bars, from left to right."""
    return [bar.get_height() for bar in axes.patches]


def legend(axes):
    """The texts of the legend, in order."""
    return [text.get_text() for text in axes.get_legend().get_texts()]
