"""Commands import only what they need, so that they answer at once; the help of ``fcco fit``."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from fcco_lightning.cli import lightning_cli, run
from fcco_lightning.cli.options import options
from fcco_lightning.cli.shorthands import SHORT

HEAVY = ["torch", "lightning", "sklearn", "scipy", "matplotlib", "timm", "open_clip", "transformers", "datasets"]
TABLES = ["pandas"]
NO_FILE = {
    "fit --data.train none.csv --data.columns.label y": "no such file or folder",
    "fit --data.train t.csv --data.columns.label z": "is not a column of the train table",
    "fit --data.train t.csv --data.columns.label y --config none": "no configuration of that name",
    "test --ckpt_path none.ckpt": "there is no such file",
    "predict none.ckpt t.csv": "there is no such file",
    "export none.ckpt m.onnx": "there is no such file",
    "inspect none.ckpt": "there is no such file",
    "convert none.ckpt out": "there is no such file",
}
LIGHT = ["--help", "--version", "list", "fit --help", "predict --help", "compare --help", "front --help", "nonsense"]
CODE = """
import contextlib, io, json, sys
from fcco_lightning.cli import run

for command in json.loads(sys.argv[1]):
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said), contextlib.suppress(SystemExit):
        run(command.split())
    print(json.dumps([command, said.getvalue(), [name for name in json.loads(sys.argv[2]) if name in sys.modules]]))
"""


def python(code, *args):
    done = subprocess.run([sys.executable, "-c", code, *args], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(("commands", "unneeded"), [(LIGHT, HEAVY + TABLES), ([*NO_FILE], HEAVY)])
def test_an_answer_that_needs_no_training_loads_no_library_of_training(commands, unneeded):
    Path("t.csv").write_text("a,y\n1,no\n2,yes\n")
    answers = [json.loads(line) for line in python(CODE, json.dumps(commands), json.dumps(unneeded)).splitlines()]
    assert [command for command, _, _ in answers] == commands
    for command, said, loaded in answers:
        assert NO_FILE.get(command, "fcco") in said, command
        assert not loaded, command


@pytest.mark.slow
@pytest.mark.parametrize("whole", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_lightning_is_loaded_without_what_it_does_not_need_and_torchmetrics_stays_whole(whole):
    code = (
        "import sys\n"
        "from fcco_lightning.cli.loading import quick_loading\n"
        "with quick_loading():\n"
        "    import fcco_lightning.cli.lightning_cli\n"
        "unneeded = {'scipy.signal', 'torchvision', 'transformers', 'timm', 'sklearn'} & set(sys.modules)\n"
        "assert not unneeded, unneeded\n"
        "import torchmetrics\n"
        "from lightning.pytorch.core.module import Metric\n"
        "assert torchmetrics.Metric is Metric\n"
        "assert not hasattr(torchmetrics, 'CompositionalMetric'), 'which jsonargparse looks for here'\n"
        "assert 'scipy.signal' not in sys.modules\n"
        "assert not hasattr(torchmetrics, 'Acuracy')\n"
    )
    rest = (
        "assert issubclass(torchmetrics.Accuracy, Metric) and 'scipy.signal' in sys.modules\n"
        "assert not hasattr(torchmetrics, 'Acuracy')\n"
    )
    python(code + rest * whole)


def test_the_help_of_fit_is_a_page_of_options_that_there_are(capsys):
    assert run(["fit", "--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 60
    assert max(map(len, lines)) <= 80
    short = lines[lines.index("in short") + 1 :][:3]
    assert all(set(re.findall(r"--[a-z_]+", line)) <= set(SHORT) for line in short)
    lines = [line for line in lines[1:] if line not in short]
    named = {word for line in lines for word in re.findall(r"(?<!\S)--([a-z_.]+)", line)}
    others = {
        "decisions",
        "decisions.costs",
        "help",
        "model.algorithm.help",
        "model.constraints.kappa",
    }  # of shorthands, of classes
    assert len(named) > 20
    assert named - others <= options().keys()
    with pytest.raises(SystemExit, match="0"):
        run(["fit", "--help", "all"])
    assert len(capsys.readouterr().out.splitlines()) > 60


def test_a_run_gives_a_sign_of_life_before_anything_is_loaded(monkeypatch, capsys):
    """Of a configuration nothing has to be assumed, and importing takes seconds."""
    said = []
    monkeypatch.setattr(lightning_cli, "start", lambda words: said.append(capsys.readouterr()))
    assert run(["fit", "--config", "configs/roc_fairness/synthetic_sonex.yaml"]) == 0
    (one,) = said
    assert one.err == "Loading PyTorch and Lightning.\n"
    assert one.out == ""  # which --print_config fills
