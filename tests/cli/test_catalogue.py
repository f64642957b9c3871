"""The classes that a configuration can name, and suggestions for misspelt names."""

import inspect

import pytest

from fcco_lightning import public_names
from fcco_lightning.algorithms import Algorithm
from fcco_lightning.ambiguity import AmbiguitySet
from fcco_lightning.cli import run
from fcco_lightning.cli.catalogue import KINDS, close_to, members
from fcco_lightning.constraints import Constraint, Multipliers, Penalty
from fcco_lightning.data.batches import Sampling
from fcco_lightning.evaluation import Evaluation
from fcco_lightning.objectives import Objective, PairLoss, Quantity
from tests.contracts.completeness import concrete_classes
from tests.contracts.registry_objectives import BASES

ROOTS = {
    "algorithms": Algorithm,
    "objectives": Objective,
    "constraints": Constraint,
    "penalties": (Multipliers, Penalty),
    "quantities": Quantity,
    "losses": PairLoss,
    "ambiguity": AmbiguitySet,
    "batches": Sampling,
    "evaluations": Evaluation,
}


@pytest.mark.parametrize("kind", ROOTS)
def test_every_class_is_listed_once_with_its_first_line(kind):
    """Read from the sources, compared with what importing them gives."""
    useless = {base.__name__ for base in BASES} | {"Estimation"}
    classes = {
        c.__name__: inspect.getdoc(c).split("\n")[0]
        for root in (ROOTS[kind] if isinstance(ROOTS[kind], tuple) else (ROOTS[kind],))
        for c in concrete_classes(root)
        if not c.__name__.startswith("_") and not inspect.isabstract(c) and c.__name__ not in useless
    }
    listed = members(kind)
    assert list(listed) == sorted(classes, key=str.lower)
    for name, summary in listed.items():
        words = classes[name].replace("`", "").split()
        assert summary.split() == [word.removeprefix(":class:").removeprefix(":func:") for word in words]


@pytest.mark.parametrize(("kind", "some"), [("data", 8), ("networks", 5), ("optimizers", 2)])
def test_classes_with_bases_of_other_packages_are_listed(kind, some):
    names = members(kind)
    assert len(names) >= some
    public = public_names()
    assert all(name in public for name in names)
    assert {"TabularDataModule", "TabularMLP", "HeavyBall"} & set(names)
    assert not {"SplitDataModule", "BatchNetwork", "ProximalDescent"} & set(names)


@pytest.mark.parametrize(
    ("word", "meant"),
    [("SONX2", "SONX"), ("rocfairness", "ROCFairness"), ("AveragePrecison", "AveragePrecision"), ("Zzzz", None)],
)
def test_a_misspelt_name(word, meant):
    assert (close_to(word) or [None])[0] == meant


def test_the_command(capsys):
    assert run(["list", "algorithms", "losses"]) == 0
    printed = capsys.readouterr().out
    assert "algorithms (model.algorithm)\n  ALEXR " in printed
    assert "\nlosses (" in printed
    assert "objectives (" not in printed
    assert run(["list"]) == 0
    printed = capsys.readouterr().out
    assert [line.split(" (")[0] for line in printed.splitlines() if line.split(" (")[0] in KINDS] == list(KINDS)
    with pytest.raises(SystemExit, match=r"^2$"):
        run(["list", "objectiv"])
    assert "there is no kind 'objectiv'; there are algorithms, objectives" in capsys.readouterr().err
