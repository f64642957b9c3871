"""Batches of bags, beyond the contract of every batch plan."""

import numpy as np
import pandas as pd
import pytest
import torch

from fcco_lightning.data import BagSampling, Columns, Splits
from fcco_lightning.data.datamodules import TabularDataModule
from fcco_lightning.errors import ConfigError, DataError
from tests.plans import BagBatches

BAGS = torch.arange(48) // 6
LABELS = (BAGS % 4 == 0).long()  # two of eight


def test_a_batch_holds_instances_of_bags_of_both_classes():
    plan = BagBatches(BAGS, LABELS, 1, 3, 2)
    assert (plan.batch_size, plan.num_batches) == (8, 2)
    batches = [batch.view(2, 4) for batch in plan.batches(0)]  # slot by slot, one column a bag
    for batch in batches:
        assert (BAGS[batch[0]] == BAGS[batch[1]]).all()
        assert LABELS[batch[0]].tolist() == [1, 0, 0, 0]
        assert len(batch.unique()) == 8
    assert sorted(BAGS[torch.cat(batches, dim=1)[0]].tolist()) == list(range(8))  # an epoch goes through all


def test_the_second_half_is_as_likely_to_lack_instances_as_is_said():
    counts = torch.tensor([3, 0, 0, 0, 0, 0, 0, 0])
    assert BagBatches(BAGS, LABELS, 1, 3, 4).absence(counts, share=0.5) == pytest.approx(
        1 - 1 / 2 * (1 - 3 / 6 * 2 / 5)
    )


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((BAGS, LABELS, 3, 3, 2), ConfigError, "positive_bags=3 exceeds the 2 positive bags among 8"),
        (
            (BAGS.view(2, -1), LABELS, 1, 3, 2),
            DataError,
            "one number of the column 'bag' for every row",
        ),
    ],
)
def test_bags_that_cannot_be_drawn(arguments, error, message):
    with pytest.raises(error, match=message):
        BagBatches(*arguments)


def test_the_sampling_counts_the_instances_of_all_processes():
    plan = BagSampling(1, 3, 2).plan({"index": BAGS, "bag": BAGS, "y": LABELS}, seed=0, world_size=2)
    batch = next(plan.batches(0)).view(4, 4)  # instance by instance, one column a bag
    assert LABELS[batch].tolist() == [[1, 0, 0, 0]] * 4
    with pytest.raises(ConfigError, match="drawn by bags, but the training table has no whole numbers"):
        BagSampling().plan({"index": BAGS}, 0, 1)


def test_a_table_of_instances_is_divided_by_bags():
    table = pd.DataFrame({"x": np.linspace(0, 1, 48), "scan": BAGS + 100, "ill": LABELS})
    data = TabularDataModule(
        table,
        columns=Columns("ill", positive=1, extra={"bag": "scan"}),
        splits=Splits(test_fraction=0.5, whole="bag", seed=1),
        batches=BagSampling(1, 1, 3),
    )
    data.setup()
    train, test = (data.tables[split].columns["bag"].unique().tolist() for split in ("train", "test"))
    assert sorted(train + test) == list(range(100, 108))
    batch = next(iter(data.train_dataloader()))
    assert (batch["x"].shape, batch["bag"].unique(return_counts=True)[1].tolist()) == ((6, 1), [3, 3])
    assert sorted(batch["y"].tolist()) == [0, 0, 0, 1, 1, 1]
