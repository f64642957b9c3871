"""Reports of a run whose outputs are not scores of classes, although the label has two values."""

import pytest
import torch

from fcco_lightning import (
    CoxPartialLikelihood,
    EventSampling,
    FCCOModule,
    ListNet,
    QuerySampling,
    TabularMLP,
    TensorDataModule,
)
from fcco_lightning.reports.summary_table import report_pictures


def tables():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(120, 3, generator=generator)
    event = (torch.rand(120, generator=generator) < 0.6).long()
    columns = {"x": x, "y": event, "event": event, "time": torch.rand(120, generator=generator) + x[:, 0].exp()}
    return dict.fromkeys(("train", "val", "test"), columns | {"query": torch.arange(120) % 12})


@pytest.mark.parametrize(
    ("objective", "batches"),
    [(CoxPartialLikelihood(), EventSampling(8, 8)), (ListNet(), QuerySampling(4, 3, 3))],
    ids=["risks", "lists"],
)
def test_log_risks_and_places_in_lists_decide_nothing(objective, batches, make_trainer):
    module, data = FCCOModule(TabularMLP(hidden=[4]), objective), TensorDataModule(tables(), batches=batches)
    trainer = make_trainer(max_epochs=1)
    trainer.fit(module, data)
    test = module.evaluate(data.evaluation_loaders()["test"])
    details = module.details(test)
    assert details == module.evaluation.details(*test)
    assert ("calibration" in details) == isinstance(objective, CoxPartialLikelihood)
    assert not module.rule.known
    prediction = trainer.predict(module, data)[0]
    assert not {"decisions", "probabilities"} & prediction.keys()


def test_the_picture_of_survival_is_not_drawn_over():
    bins = [{"samples": 9, "predicted": 0.4, "observed": 0.5}]
    assert "calibration.png" in report_pictures({"test": {"calibration": bins, "calibration_error": 0.1}})
    assert "calibration.png" not in report_pictures({"test": {"calibration": bins, "calibration_time": 3.0}})
