"""The notebooks run from top to bottom, and their stored outputs are what they print."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

SHORT = """import lightning.pytorch


class Short(lightning.pytorch.Trainer):
    def __init__(self, **options):
        super().__init__(**options, limit_train_batches=4)


lightning.pytorch.Trainer = Short
"""
NOTEBOOKS = sorted(Path(__file__).parents[1].glob("examples/notebooks/*.ipynb"))


def code_cells(path):
    return [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]


def test_there_are_notebooks():
    assert len(NOTEBOOKS) >= 7


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_outputs_are_of_one_run_without_an_error(path):
    cells = code_cells(path)
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert any(output["output_type"] != "error" for output in outputs)
    assert not any(output["output_type"] == "error" for output in outputs)
    assert not re.search(r"/(home|root|work|tmp|usr)/|Warning", json.dumps(outputs))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_links_lead_somewhere(path):
    for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", path.read_text()):
        assert (path.parent / target).exists(), target


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_it_runs(path, tmp_path):
    """With four batches in an epoch; what comes of all of them is in the outputs that are kept."""
    script = tmp_path / f"{path.stem}.py"
    script.write_text("\n".join([SHORT, *("".join(cell["source"]) for cell in code_cells(path))]))
    done = subprocess.run([sys.executable, script], cwd=tmp_path, capture_output=True, text=True, env=None, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
