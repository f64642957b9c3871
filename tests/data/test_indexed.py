"""Data sets of (x, y) samples that get an index, and what training knows about them."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.utils.data import (
    DataLoader,
    DistributedSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from fcco_lightning import (
    AUC,
    SGD,
    SOX,
    AveragePrecision,
    BalancedSampling,
    CrossEntropy,
    CVaRGroupDRO,
    Engine,
    FCCOModule,
    IndexedDataset,
    KLPartialAUC,
    MeanAtMost,
    SoftRate,
)
from fcco_lightning.data import ResumableLoader
from fcco_lightning.data.batches import Drawn, UniformBatches
from fcco_lightning.data.indexed import drawn_by
from fcco_lightning.engine import as_batch
from fcco_lightning.engine.batches import received
from fcco_lightning.errors import DataError
from tests.contracts.test_datamodules import quiet

X, Y = torch.arange(24.0).reshape(12, 2) / 24, torch.tensor([1, 0, 0] * 4)


def test_samples_have_names_and_their_own_numbers():
    subset = IndexedDataset(Subset(TensorDataset(X, Y, Y), [7, 3]), ("x", "y", "group"))
    assert [subset[i]["index"] for i in range(2)] == [0, 1]
    assert torch.equal(subset[1]["x"], X[3])
    assert subset[0].keys() == {"x", "y", "group", "index"}
    assert IndexedDataset([{"x": 1.0}])[0] == {"x": 1.0, "index": 0}
    with pytest.raises(DataError, match="sample 0 has 2 parts"):
        IndexedDataset(TensorDataset(X, Y), ("x",))[0]
    with pytest.raises(DataError, match="has 3 rows"):
        IndexedDataset(TensorDataset(X, Y), columns={"y": [0, 1, 1]})


class WithTargets(list):
    targets = Y.tolist()


class WithTransform(WithTargets):
    @staticmethod
    def target_transform(y):
        return 1 - y

    def __getitem__(self, i):
        x, y = super().__getitem__(i)
        return x, self.target_transform(y)


def fitted(data, folder):
    module = FCCOModule(nn.Linear(2, 1), AveragePrecision(), algorithm=SOX())
    quiet(folder, max_epochs=1).fit(module, DataLoader(data, batch_size=64, shuffle=True))
    (term,) = module.problem.terms
    return term.state


@pytest.mark.filterwarnings("ignore:You defined a `validation_step`")
def test_labels_are_those_after_the_transform(tmp_path):
    data = WithTransform(zip(X, Y, strict=True))
    state = fitted(IndexedDataset(data), tmp_path)
    assert (state.num_rows, state.seen_share()) == (8, 1.0)
    with pytest.raises(
        DataError,
        match="has a row of the objective according to the columns of its batch, but not according to those of",
    ):
        fitted(IndexedDataset(data, columns={"y": Y}), tmp_path)


def test_labels_are_found_and_shuffled_batches_are_known():
    data = IndexedDataset(WithTargets(zip(X, Y, strict=True)))
    assert torch.equal(data.columns["y"], Y)
    drawn = drawn_by(DataLoader(data, batch_size=5, shuffle=True, drop_last=True), 2)["target"]
    assert (drawn.plan.batch_size, drawn.plan.num_batches) == (10, 1)
    assert not drawn.plan.distinct  # DistributedSampler gives some samples twice
    assert drawn_by(DataLoader(data, batch_size=5), 1) is None  # in order
    for sampler in (SubsetRandomSampler(range(12)), WeightedRandomSampler([1.0] * 12, 12, replacement=False)):
        assert drawn_by(DataLoader(data, batch_size=5, sampler=sampler), 1) is None  # they may prefer some samples
    of_process = DistributedSampler(data, 2, 0)
    assert drawn_by(DataLoader(data, batch_size=5, sampler=of_process), 2)["target"].plan.batch_size == 10
    assert drawn_by(DataLoader(IndexedDataset([(0, 0)]), shuffle=True), 1) is None  # of unknown labels
    assert drawn_by(DataLoader(SimpleNamespace(__len__=lambda: 1)), 1) is None
    plan = UniformBatches(12, 5, certain=False)
    assert drawn_by(ResumableLoader(data, plan), 1)["target"] == Drawn(data.columns, plan)
    weighted = BalancedSampling(6, 0.5).plan(data.columns)  # no column of the samples says their weights
    assert drawn_by(ResumableLoader(data, weighted), 1) is None


def step_on(data, objective, algorithm):
    """How a step on all samples changes the weights of a network."""
    network = nn.Linear(2, 1, bias=False)
    nn.init.ones_(network.weight)
    problem = algorithm.pose(objective, num_samples=len(data), sampling=data.drawn(len(data)))
    engine = Engine(network, problem, algorithm)
    engine.train_batch(next(iter(DataLoader(data, len(data)))), torch.optim.SGD(engine.params, lr=1.0))
    return network.weight.detach()


@pytest.mark.filterwarnings("ignore:.*it is a ratio of two estimates")
@pytest.mark.parametrize(
    ("objective", "algorithm"),
    [(AUC, SGD), (CrossEntropy, SGD), (lambda: CVaRGroupDRO(0.5, num_groups=2), SOX)],
    ids=["AUC", "cross-entropy", "groups"],
)
def test_a_sample_with_a_weight_counts_as_so_many_samples(objective, algorithm):
    group, times = torch.arange(12) // 2 % 2, torch.tensor([1, 2, 0, 3] * 3)
    tensors, names = (X.sin(), Y, group), ("x", "y", "group")
    weighted = IndexedDataset(TensorDataset(*tensors, 5.0 * times), (*names, "sample_weight"))
    repeated = IndexedDataset(TensorDataset(*(t.repeat_interleave(times, 0) for t in tensors)), names)
    assert torch.allclose(weighted.columns["sample_weight"], times / times.float().mean())
    expected = step_on(repeated, objective(), algorithm())
    torch.testing.assert_close(step_on(weighted, objective(), algorithm()), expected)
    alike = step_on(IndexedDataset(TensorDataset(*tensors), names), objective(), algorithm())
    assert not torch.allclose(alike, expected, atol=1e-3)


def of_average_precision(loss, positive, weight):
    """Minus the mean over positives i of weight of positives above i / weight of all above i, with l for "above"."""
    (own, everyone) = (loss * (weight * positive)).sum(1), (loss * weight).sum(1)
    return -(weight * positive) @ (own / everyone) / (weight @ positive)


def of_kl_partial_auc(loss, positive, weight):
    """The mean over positives of log mean exp l over negatives."""
    negative = weight * (1 - positive)
    return (weight * positive) @ (loss.exp() @ negative / negative.sum()).log() / (weight @ positive)


@pytest.mark.filterwarnings("ignore:.*it is a ratio of two estimates")
@pytest.mark.parametrize(
    ("objective", "expected"), [(AveragePrecision, of_average_precision), (KLPartialAUC, of_kl_partial_auc)]
)
def test_objectives_with_rows_count_weights_as_their_formula_does(objective, expected):
    """All rows are measured at once, so that the first step is the gradient of the objective itself."""
    weight = torch.linspace(0.2, 3.0, 12)
    data = IndexedDataset(TensorDataset(X.sin(), Y, weight), ("x", "y", "sample_weight"))
    w = torch.ones(1, 2, requires_grad=True)
    scores = (X.sin() @ w.T).flatten().sigmoid()
    loss = (1 - scores.unsqueeze(1) + scores).clamp(min=0).square()
    expected(loss, Y.float(), weight).backward()
    torch.testing.assert_close(step_on(data, objective(), SOX()), 1 - w.grad)


def test_two_kinds_of_weights_are_refused():
    data = IndexedDataset([{"x": 1.0, "weight": 2.0}] * 3, columns={"sample_weight": torch.ones(3)})
    with pytest.raises(
        DataError, match=r"column `weight`, which this data set makes of `sample_weight`.*times how much"
    ):
        data[0]


def test_weights_of_samples_come_as_from_a_data_module():
    weight = torch.arange(1.0, 13)
    data = IndexedDataset(TensorDataset(X, Y, weight), ("x", "y", "sample_weight"))
    plan = UniformBatches(12, 4).of_weighted_samples(weight / weight.mean())
    batch = next(iter(DataLoader(data, 12)))
    torch.testing.assert_close({name: batch[name] for name in plan.columns()}, plan.columns())
    loader = DataLoader(data, batch_size=4, shuffle=True)
    torch.testing.assert_close(drawn_by(loader, 1)["target"].plan.weights(), plan.weights())
    assert as_batch(batch)["target"] is batch


@pytest.mark.parametrize("weight", [[1.0, float("nan")], [1.0, -1.0], [1.0, float("inf")]])
def test_weights_of_samples_that_are_none_are_refused(weight):
    data = TensorDataset(X, Y)
    with pytest.raises(DataError, match="weights of samples of the data set must be finite numbers >= 0, but 6 are"):
        IndexedDataset(data, columns={"y": Y, "sample_weight": torch.tensor(weight).repeat(6)})


def test_columns_that_would_count_in_part_are_refused():
    """Some objectives would count them and others not."""
    batch = {"x": X, "y": Y, "sample_weight": torch.ones(12), "index": torch.arange(12)}
    with pytest.raises(DataError, match=r"`sample_weight` and no `weight`.*IndexedDataset"):
        as_batch(batch)
    with pytest.raises(DataError, match="`sample_weight` and no `weight`"):
        received({"target": batch}, nn.Linear(2, 1), X)
    with pytest.raises(DataError, match="`sample_weight` and no `weight`"):
        received(batch, nn.Linear(2, 1), X)
    with pytest.raises(DataError, match=r"`stratum` and no `stratum_size`.*a column of your own otherwise"):
        received({"x": X, "y": Y, "stratum": Y, "index": torch.arange(12)}, nn.Linear(2, 1), X)


@pytest.mark.filterwarnings("ignore:The number of training batches", "ignore:.*isinstance.treespec")
def test_a_module_finds_the_rows_of_a_data_set(tmp_path):
    module = FCCOModule(nn.Sequential(nn.Linear(2, 1), nn.Flatten(0)), AveragePrecision())
    data = IndexedDataset(TensorDataset(X, Y))
    quiet(tmp_path, max_epochs=1, limit_val_batches=0).fit(
        module, DataLoader(data, batch_size=6, shuffle=True), DataLoader(data)
    )
    assert module.num_samples == len(X)
    (state,) = module.dual_states().values()
    assert state.num_rows == int(Y.sum())  # the positives'
    assert state.seen_share() > 0
    with pytest.raises(DataError, match=r"DataLoader\(IndexedDataset\(dataset\), ...\)"):
        as_batch([X, Y])


@pytest.mark.filterwarnings(
    "ignore:The number of training batches", "ignore:.*isinstance.treespec", "ignore:few batches"
)
def test_a_second_fit_with_other_batches_weighs_rows_anew(tmp_path):
    x, y = torch.randn(40, 3), torch.arange(40) % 8 == 0
    dataset = IndexedDataset(TensorDataset(x, y.long()))

    def fit(module, size):
        loaders = (DataLoader(dataset, batch_size=size, shuffle=True), DataLoader(dataset))
        quiet(tmp_path, max_epochs=1, limit_val_batches=0).fit(module, *loaders)
        return module.problem

    network = nn.Linear(3, 1)
    module = FCCOModule(network, AUC(), [MeanAtMost(SoftRate(), 0.4, where={"y": 1})], algorithm=SOX())
    assert fit(module, 4).direct_weight > 1.2
    rows = module.problem.all_terms[0].state.rows.clone()
    last = module.problem.all_terms[0].mean_weight
    assert float(last(None, {}, torch.ones(1), None)) > 1.2
    second = fit(module, 40)
    assert second.direct_weight == 1
    assert float(second.all_terms[0].mean_weight(None, {}, torch.ones(1), None)) == 1
    assert not torch.equal(second.all_terms[0].state.rows, rows)  # they went on from these
    assert torch.isfinite(rows).all()
