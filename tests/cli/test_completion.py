"""Shell completion in bash itself, and its options against those of the command line's parser."""

import inspect
import shutil
import subprocess

import pytest

import fcco_lightning
from fcco_lightning.cli import run
from fcco_lightning.cli.catalogue import KINDS, SECTIONS, members
from fcco_lightning.cli.named_configs import named_configs, named_searches
from fcco_lightning.cli.options import OF_FIT, options, options_of


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    path = tmp_path_factory.mktemp("completion") / "fcco.sh"
    with pytest.MonkeyPatch.context() as patch:
        written = []
        patch.setattr("sys.stdout.write", written.append)
        run(["--print_completion"])
    path.write_text("".join(written))
    return path


def of(name, place):
    return [f"--{place}.{option.name}" for option in options_of(getattr(fcco_lightning, name))]


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("fcco co", ["compare", "convert"]),
        ("fcco t", ["test", "tune"]),
        ("fcco fit --config roc_fairness/synthetic", [n for n in named_configs() if n.startswith("roc_fairness/syn")]),
        ("fcco fit --config synthetic_alexr", ["synthetic_alexr2"]),
        ("fcco tune --search sox", [n for n in named_searches() if n.startswith("sox")]),
        ("fcco list a", [kind for kind in KINDS if kind.startswith("a")]),
        ("fcco compare --", ["--out", "--picture"]),
        ("fcco list --", ["--copy"]),
        ("fcco predict a.ckpt --th", ["--threshold"]),
        ("fcco tune --tri", ["--trials"]),
        ("fcco tune --se", ["--search", "--seed", "--seed_everything"]),
        ("fcco front --kap", ["--kappas"]),
        ("fcco fit x", []),
        ("fcco fit --mod", ["--model."]),
        ("fcco fit --model.algo", ["--model.algorithm"]),
        ("fcco fit --data.splits.v", ["--data.splits.val_fraction"]),
        ("fcco tune --trainer.max", ["--trainer.max_epochs", "--trainer.max_steps", "--trainer.max_time"]),
        ("fcco fit --model.algorithm SON", ["SONEX", "SONX"]),
        ("fcco fit --model.algorithm = SON", ["SONEX", "SONX"]),  # bash divides words at =
        ("fcco fit --model.algorithm=SON", ["--model.algorithm=SONEX", "--model.algorithm=SONX"]),  # zsh does not
        ("fcco fit --model.constraints+ = Equal", ["EqualOpportunity", "EqualizedOdds"]),
        ("fcco fit --model.algorithm SONEX --model.algorithm.", of("SONEX", "model.algorithm")),
        ("fcco fit --model.execution.compiled t", ["true"]),
        ("fcco fit --report.p", ["--report.pictures"]),
    ],
)
def test_what_bash_offers(line, expected, script):
    asked = f"source {script}; COMP_WORDS=({line}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); _fcco"
    done = subprocess.run(
        ["bash", "-c", f'{asked}; printf "%s\\n" "${{COMPREPLY[@]}}"'], capture_output=True, text=True, check=True
    )
    assert sorted(done.stdout.split()) == sorted(expected)
    assert not done.stderr


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "networks"])  # which pass some on to other packages
def test_options_are_the_arguments_of_the_classes(kind):
    for name in members(kind):
        cls = getattr(fcco_lightning, name)
        kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        signature = {k for k, found in inspect.signature(cls).parameters.items() if found.kind not in kinds}
        assert {option.name.partition(".")[0] for option in options_of(cls)} >= signature, name


@pytest.mark.parametrize("name", members("data"))
def test_arguments_that_datamodules_pass_on_are_options(name):
    found = {option.name for option in options_of(getattr(fcco_lightning, name))}
    assert {"batches", "seed", "eval_batch_size", "num_workers"} <= found
    assert not {"loading", "table", "samples", "numbers", "others"} & found or name == "TensorDataModule"


def test_options_of_all_sections_are_there():
    found = options()
    assert {path.partition(".")[0] for path in found} == {*OF_FIT, *SECTIONS, "data", "model", "trainer"}
    assert found["model.execution.state_layout"] == ["auto", "replicated", "sharded"]  # of an alias
    assert {"EqualStages", "ConcaveStages"} <= set(found["model.algorithm.stages"])  # of a base that no list names
    assert "data.columns.label" in found  # of a dataclass
    assert "model.constraints.kappa" not in found  # there may be several
