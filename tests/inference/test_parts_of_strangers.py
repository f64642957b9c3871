"""Objectives, constraints and evaluations in an untrusted checkpoint: classes of the package, and trusted ones."""

import pytest

import fcco_lightning
from fcco_lightning import CheckpointError, ConfigError, DemographicParity, SoftRate
from fcco_lightning.cli.catalogue import members
from fcco_lightning.inference.networks import part_of, parts

HOSTILE = {"class_path": "pathlib.Path.touch", "init_args": {"self": "ran"}}
INSIDE = {"class_path": "fcco_lightning.MeanAtMost", "init_args": {"quantity": HOSTILE, "kappa": 0.1}}


@pytest.mark.parametrize("kind", ["objectives", "constraints", "penalties", "quantities", "losses", "evaluations"])
def test_all_parts_that_a_configuration_can_name_may_come_from_a_file(kind):
    for name in members(kind):
        assert getattr(fcco_lightning, name) in parts(), name


def test_a_part_is_made_with_what_is_inside_it():
    inner = {"class_path": "fcco_lightning.SoftRate", "init_args": {"temperature": 0.25}}
    described = {"class_path": "fcco_lightning.DemographicParity", "init_args": {"kappa": 0.2, "rate": inner}}
    made = part_of(described, (), "file")
    assert type(made) is DemographicParity
    assert (made.kappa, made.quantity) == (0.2, SoftRate(temperature=0.25))
    assert type(part_of("fcco_lightning.CrossEntropy", (), "file")) is fcco_lightning.CrossEntropy


@pytest.mark.parametrize("described", [HOSTILE, INSIDE, "os.system"])
def test_nothing_else_is_made(described, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"names the class '(pathlib.Path.touch|os.system)'.*--trusted"):
        part_of(described, (), "file")
    assert not [*tmp_path.iterdir()]


def test_arguments_that_fit_no_part_are_told():
    with pytest.raises(CheckpointError, match="file describes a part that cannot be made"):
        part_of({"class_path": "fcco_lightning.SoftRate", "init_args": {"no_such": 1}}, (), "file")


class OwnParity(DemographicParity):
    """A constraint of the user's."""


def test_a_class_of_ones_own_is_trusted_by_its_name():
    name = f"{OwnParity.__module__}.OwnParity"
    described = {"class_path": name, "init_args": {"kappa": 0.2}}
    with pytest.raises(ConfigError, match=rf"names the class '{name}'"):
        part_of(described, (), "file")
    assert type(part_of(described, [name], "file")) is OwnParity
    for other in ("os.system", "json.JSONDecoder", "collections.OrderedDict"):
        with pytest.raises(ConfigError, match=f"trusted='{other}' must be the full name of a class"):
            part_of(described, [other], "file")
