"""Completion, asked of bash itself."""

import shutil
import subprocess

import pytest

from fcco_lightning.__main__ import main
from fcco_lightning.catalogue import KINDS
from fcco_lightning.named_configs import named_configs, named_searches


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("fcco co", ["compare", "convert"]),
        ("fcco t", ["test", "tune"]),
        ("fcco fit --config roc_fairness/synthetic", [n for n in named_configs() if n.startswith("roc_fairness/syn")]),
        ("fcco tune --search sox", [n for n in named_searches() if n.startswith("sox")]),
        ("fcco list a", [kind for kind in KINDS if kind.startswith("a")]),
        ("fcco fit x", []),
    ],
)
def test_what_bash_offers(line, expected, capsys):
    main(["--print_completion"])
    script = f"{capsys.readouterr().out}\nCOMP_WORDS=({line}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); _fcco"
    done = subprocess.run(
        ["bash", "-c", f'{script}; printf "%s\\n" "${{COMPREPLY[@]}}"'], capture_output=True, text=True, check=True
    )
    assert sorted(done.stdout.split()) == sorted(expected)
    assert not done.stderr
