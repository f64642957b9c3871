"""Every class for which there is a contract is in a registry, so that the contract is tested."""

import pytest
from jsonargparse import ArgumentParser

from fcco_lightning import SOX
from fcco_lightning.algorithms import Algorithm
from fcco_lightning.ambiguity import AmbiguitySet, DivergencePenalty
from fcco_lightning.constraints import Constraint, OverSides
from fcco_lightning.estimators import Estimator
from fcco_lightning.objectives import Objective
from tests.contracts import registry_ambiguity, registry_constraints, registry_objectives
from tests.contracts.completeness import concrete_classes, unregistered
from tests.contracts.registry_algorithms import ALGORITHMS
from tests.contracts.registry_estimators import ESTIMATORS

REGISTRIES = {
    Algorithm: (ALGORITHMS, ()),
    AmbiguitySet: (registry_ambiguity.MEMBERS, ()),
    Constraint: (registry_constraints.CASES, [OverSides]),
    Estimator: (ESTIMATORS, ()),
    Objective: (registry_objectives.CASES, registry_objectives.BASES),
    DivergencePenalty: (registry_ambiguity.PENALTIES, ()),
}


def missing(base):
    members, bases = REGISTRIES[base]
    return unregistered(base, [getattr(member, "make", member) for member in members.values()], bases)


@pytest.mark.parametrize("base", REGISTRIES)
def test_every_class_is_registered(base):
    assert missing(base) == []


def test_what_nobody_registered_is_noticed(monkeypatch):
    for name in ("Dummy", "_Private"):
        monkeypatch.setattr(f"fcco_lightning.algorithms.sox.{name}", type(name, (SOX,), {}), raising=False)
    assert missing(Algorithm) == ["Dummy"]


@pytest.mark.parametrize("base", REGISTRIES)
def test_the_help_of_every_class_says_what_its_arguments_are(base):
    for made in concrete_classes(base):
        parser = ArgumentParser(exit_on_error=False)
        parser.add_class_arguments(made, "made")
        unexplained = [action.dest for action in parser._actions if not action.help]
        assert not unexplained or made.__name__.startswith("_"), f"{made.__name__}: {unexplained}"
