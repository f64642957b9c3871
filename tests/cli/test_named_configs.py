"""Configurations by name, from a checkout and from a wheel."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from fcco_lightning.cli import named_configs, run
from fcco_lightning.cli.named_configs import find_config
from fcco_lightning.cli.shorthands import written_out
from fcco_lightning.errors import ConfigError

ROOT = Path(__file__).parents[2]
SYNTHETIC = ROOT / "configs/roc_fairness/synthetic_alexr2.yaml"


@pytest.mark.parametrize(
    "name", ["synthetic_alexr2", "roc_fairness/synthetic_alexr2", "configs/roc_fairness/synthetic_alexr2.yaml"]
)
def test_a_name_stands_for_a_file(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert find_config(name) == SYNTHETIC
    other = ["fit", "--config", name, f"--config={name}", "--name", "x"]
    assert written_out(other) == ["fit", "--config", str(SYNTHETIC), f"--config={SYNTHETIC}", "--name", "x"]
    Path("synthetic_alexr2").touch()  # a file wins
    assert written_out(["fit", "-c", "synthetic_alexr2"]) == ["fit", "-c", "synthetic_alexr2"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("adult_alexr2", "there are group_dro/adult_alexr2 and roc_fairness/adult_alexr2"),
        ("sinthetic_alexr2", "Did you mean synthetic_alexr2"),
        ("nowhere/own.yaml", "no configuration of that name"),
    ],
)
def test_other_names_are_refused(name, message):
    with pytest.raises(ConfigError, match=message):
        find_config(name)


def test_the_list_names_and_copies_them(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    copying = ["--copy", "synthetic_alexr2"]
    for arguments, status in ((["configs"], 0), (copying, 0), (copying, 2)):
        assert run(["list", *arguments]) == status
    printed = capsys.readouterr()
    listed = dict(line.split(maxsplit=1) for line in printed.out.splitlines() if line.startswith("  "))
    assert listed.keys() == named_configs.named_configs().keys()
    assert min(map(len, listed.values())) > 20
    assert Path("synthetic_alexr2.yaml").read_text() == SYNTHETIC.read_text()
    assert "exists already" in printed.err


@pytest.mark.slow
def test_a_wheel_holds_them(tmp_path):
    subprocess.run(["uv", "build", "--wheel", "-o", tmp_path], cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    code = "from fcco_lightning.__main__ import main; main(['list', 'configs'])"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path / "site", capture_output=True, text=True, check=True
    )  # the packages that `list` needs are none
    assert "roc_fairness/adult_alexr2" in done.stdout
    assert (tmp_path / "site/fcco_lightning/configs/xrisk/digits_bags.yaml").exists()
