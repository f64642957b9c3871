"""The API reference builds, and every public class is in it with its formula."""

import runpy
import warnings
from pathlib import Path

import pytest

from fcco_lightning.cli.catalogue import members

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
def test_it_builds(tmp_path):
    pytest.importorskip("pdoc", reason="uv run --group docs pytest ...")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        runpy.run_path(str(ROOT / "examples/api_reference.py"))["main"](tmp_path)
    for kind in ("algorithms", "objectives", "constraints"):
        page = (tmp_path / f"fcco_lightning/{kind}.html").read_text()
        assert [name for name in members(kind) if f'id="{name}"' not in page] == []
    page = (tmp_path / "fcco_lightning/data.html").read_text()
    assert "mathjax" in page.lower()
    assert r"\mathrm{Bernoulli}(q)" in page
    assert ".. math::" not in page
