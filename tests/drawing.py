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
