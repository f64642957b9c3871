"""Pictures that tests look into."""

import matplotlib.pyplot as plt
import pytest
from matplotlib.figure import Figure


@pytest.fixture
def drawn(monkeypatch):
    """Figures in the order in which they were saved; every one is still written, as a PNG."""
    figures, save = [], Figure.savefig

    def saved(figure, path, **options):
        figures.append(figure)
        save(figure, path, **options)
        assert path.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")

    monkeypatch.setattr(Figure, "savefig", saved)
    yield figures
    assert plt.get_fignums() == []


def heights(axes):
    """Of the bars, from the left."""
    return [bar.get_height() for bar in axes.patches]


def legend(axes):
    """The texts of the legend, in order."""
    return [text.get_text() for text in axes.get_legend().get_texts()]
