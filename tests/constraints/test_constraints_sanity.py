"""Constraints that cannot be satisfied or evaluated are refused before training."""

import pytest
import torch
from lightning.pytorch import Trainer

from fcco_lightning import (
    ConfigError,
    CrossEntropy,
    DataError,
    DemographicParity,
    FCCOModule,
    Hinge,
    HingePenalty,
    LogisticLoss,
    MeanAtMost,
    MeanNear,
    NonForgetting,
    Quantity,
    SoftRate,
    TabularDataModule,
    TensorDataModule,
)
from fcco_lightning.constraints import kept_together, require_compatible
from fcco_lightning.data.batches import UniformSampling
from fcco_lightning.data.roles import Columns
from fcco_lightning.reports import Report


class Score(Quantity):
    """The score itself."""

    def __call__(self, outputs, batch):
        return outputs.flatten()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: MeanAtMost(SoftRate(), -0.1, name="fpr"), r"no model can reach .*'fpr'.* at most -0.1.* always >= 0"),
        (lambda: MeanAtMost(LogisticLoss(), -1.0), r"at most -1.* always >= 0"),
        (lambda: MeanNear(SoftRate(), 1.5, 0.2), r"at least 1.3.* always <= 1\. Change kappa or target"),
        (lambda: MeanNear(SoftRate(), -0.5, 0.2), r"at most -0.3.* always >= 0"),
    ],
)
def test_a_kappa_that_no_model_can_reach(make, message):
    MeanAtMost(Score(), -3.0)  # a mean of scores may well have to be negative
    with pytest.raises(ConfigError, match=message):
        make()


def test_constraints_that_contradict_each_other():
    low, high = MeanAtMost(SoftRate(), 0.3, {"y": 0}, "low"), MeanNear(SoftRate(), 0.5, 0.1, {"y": 0}, "high")
    others = [MeanNear(SoftRate(), 0.5, 0.1, {"y": 1}), MeanNear(SoftRate(temperature=0.1), 0.5, 0.1, {"y": 0})]
    require_compatible([low, *others, NonForgetting(names=["a"])])
    require_compatible([MeanAtMost(SoftRate(), 0.4, {"y": 0}), high])  # they touch
    with pytest.raises(ConfigError, match=r"'low' and 'high' contradict.*where y=0 be at least 0.4 and at most 0.3"):
        fit({"train": columns(0), "test": columns(1)}, [low, *others, high])


def columns(seed, *, group=True):
    x = torch.randn(24, 2, generator=torch.Generator().manual_seed(seed))
    found = {"x": x, "y": (x[:, 0] > 0).long()}
    return found | ({"group": torch.arange(24) % 3 % 2} if group else {})


def fit(splits, constraints, *, callbacks=(), batches=8, penalty=None, **options):
    module = FCCOModule(torch.nn.Linear(2, 1), CrossEntropy(), constraints, penalty)
    plain = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "accelerator": "cpu"}
    trainer = Trainer(max_epochs=1, callbacks=list(callbacks), enable_model_summary=False, **plain, **options)
    trainer.fit(module, TensorDataModule(splits, batches=UniformSampling(batch_size=batches)))


@pytest.mark.parametrize("split", ["val", "test"])
def test_a_split_without_a_column_of_a_constraint(split):
    splits = {name: columns(i, group=name != split) for i, name in enumerate(("train", "val", "test"))}
    for constraint in (DemographicParity(), MeanAtMost(SoftRate(), 0.5, {"group": 1}, "selection rate")):
        with pytest.raises(DataError, match=rf"the {split} split lacks a column .*no group.*'selection rate' needs"):
            fit(splits, [constraint])
    fit(splits, [MeanAtMost(SoftRate(), 0.5, {"y": 1})], limit_train_batches=1)  # which needs no group


def test_a_subset_of_which_no_batch_has_a_sample(tmp_path):
    """One batch of two of the 24 samples, of which one is in the subset."""
    splits = {name: columns(i) | {"rare": (torch.arange(24) == 7).long()} for i, name in enumerate(("train", "test"))}
    report = Report(pictures=False, table=False, folder=str(tmp_path))
    limits = [MeanAtMost(SoftRate(), 0.5, {"rare": 1}, "rare"), MeanAtMost(SoftRate(), 0.01, name="everyone")]
    with pytest.warns(
        UserWarning, match=r"the constraint 'rare' is not enforced: no batch of 1 epoch\(s\) has contained samples of"
    ):
        fit(splits, limits, callbacks=[report], batches=2, limit_train_batches=1)
    assert "No weights were found that satisfy all constraints; those of epoch " in report.report["verdict"]
    fit(splits, limits[1:], callbacks=[report], penalty=HingePenalty(0))
    assert "They were only measured, not enforced (rho=0)." in report.report["verdict"]


def test_constraints_that_are_kept_together_are_tightened_as_each_alone():
    """Each has the hinge of h + margin; what h is does not change, and no kappa falls below what can be reached."""

    def make():
        return [MeanAtMost(SoftRate(), kappa, {"y": y}) for kappa, y in ((0.3, 0), (0.4, 1))]

    members, each = make(), make()
    (joint,) = kept_together(members)
    values = torch.rand(2, 1, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    h, margins = joint.violation(values), torch.zeros(2, dtype=torch.float64)
    for i, margin in ((0, 0.1), (1, 0.2), (0, 0.0), (0, 0.15)):
        margins[i] = margin
        for constraint in (members[i], each[i]):
            constraint.tighten(margin)
        found = joint.outer(Hinge(2.0, joint.kappa))(values)
        alone = [c.outer(Hinge(2.0, c.kappa))(v) for c, v in zip(each, values.unsqueeze(1), strict=True)]
        torch.testing.assert_close(found, 2 * (h + margins).clamp(min=0))
        torch.testing.assert_close(found, torch.cat(alone))
        assert torch.equal(joint.violation(values), h)
    members[0].tighten(5.0)
    assert members[0].kappa == 0.0


@pytest.mark.parametrize("column", ["race", "a", "label"])
def test_a_column_unseen_at_prediction(column):
    table = {"a": [0.1, 0.2, 0.3, 0.4] * 4, "race": list("xxyy") * 4, "label": ["no", "yes"] * 8}
    test = {name: cells for name, cells in table.items() if name != column}
    roles = Columns(label="label", positive="yes", sensitive="race", favoured="x")
    with pytest.raises(DataError, match=rf"'{column}' is not a column of the test (table|split)"):
        TabularDataModule(table, test=test, columns=roles).setup("predict")


def test_thousands_of_constraints_are_compared_by_intervals_that_are_read_once(monkeypatch):
    read, allowed = [], MeanAtMost.allowed.fget

    def counted(constraint):
        read.append(constraint)
        return allowed(constraint)

    constraints = [MeanAtMost(SoftRate(), 0.4, {"group": number}) for number in range(30)]
    monkeypatch.setattr(MeanAtMost, "allowed", property(counted))
    require_compatible(constraints)
    assert len(read) == len(constraints)
