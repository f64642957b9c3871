"""Declarations about the data are compared with the batches, so that no run silently trains another problem."""

import warnings
from contextlib import nullcontext
from math import comb

import pytest
import torch
from lightning.pytorch import Trainer
from torch import nn
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset, TensorDataset

from fcco_lightning import (
    AUC,
    SGD,
    SONEX,
    SOX,
    AveragePrecision,
    CoxPartialLikelihood,
    Criterion,
    CrossEntropy,
    CVaRGroupDRO,
    Engine,
    EqualizedOdds,
    Execution,
    GlobalContrastive,
    IndexedDataset,
    InfoNCE,
    RobustLogistic,
    ViewContrastive,
)
from fcco_lightning.data import BalancedSampling, BatchDraws, Drawn, UniformBatches, UniformSampling
from fcco_lightning.engine.arrivals import WATCHED
from fcco_lightning.engine.probability import owner_presence
from fcco_lightning.errors import CheckpointError, ConfigError, DataError
from fcco_lightning.models.outputs import Embeddings
from fcco_lightning.training.posing import contents_of_some
from tests.conftest import QUIET
from tests.contracts import declared_jobs as jobs
from tests.contracts.declared_jobs import BATCH, N, X, Y, indexed, trained
from tests.jobs import SoftRank
from tests.launch import Ended, launch, values

pytestmark = pytest.mark.filterwarnings("ignore:You defined a `validation_step`", "ignore:.*no logger configured")


def engine_for(objective=None, algorithm=None, sampling=None, n=N):
    algorithm, network = algorithm or SOX(), nn.Linear(3, 1)
    problem = algorithm.pose(objective or AveragePrecision(), num_samples=n, sampling=sampling)
    engine = Engine(network, problem, algorithm)
    return engine, torch.optim.SGD(engine.params, lr=0.1)


def batch_of(index, **columns):
    return {"x": X[index], "y": Y[index], "index": index} | columns


def train(made, batches, *, ends=True):
    engine, optimizer = made
    batches = list(batches)
    for number, batch in enumerate(batches, 1):
        engine.train_batch(batch, optimizer, last_batch=ends and number == len(batches))
    return engine


def shuffled(size=BATCH, n=N):
    return torch.randperm(n, generator=torch.Generator().manual_seed(0)).split(size)


# ----------------------------------------------------------------------------------------------- several processes


def refused(function, *args):
    """What every process says that refuses by itself."""
    ended = launch(function, 2, *args)
    assert all(isinstance(one, Ended) for one in ended), ended
    return [one.message for one in ended if one.error == "DataError"]


@pytest.mark.parametrize("objective", ["auc", "average precision"])
def test_processes_that_draw_the_same_samples_are_refused(objective):
    said = refused(jobs.fit_shared, False, objective)
    assert said
    assert all("holds 32 samples, of which 16 are different" in text for text in said)
    assert all("use_distributed_sampler=True" in text for text in said)


def test_processes_with_the_same_samples_are_warned_of_where_nothing_is_declared():
    first, second = values(launch(jobs.fit_shared, 2, False, "auc", False))
    assert sum("given the same 16 samples, so that a batch holds 16" in text for text in first) == 1
    assert not any("given the same" in text for text in second)


def test_samples_that_are_shared_out_are_as_declared():
    assert not any(
        "samples" in text for said in values(launch(jobs.fit_shared, 2, True, "average precision")) for text in said
    )


def test_a_batch_size_counts_the_samples_of_all_processes():
    said = refused(jobs.criterion_told_of, BATCH, BATCH)
    assert said
    assert all("of all 2 processes together hold 32 samples, and were declared to hold 16" in text for text in said)
    assert values(launch(jobs.criterion_told_of, 2, 2 * BATCH, BATCH)) == [WATCHED - 7] * 2


# ----------------------------------------------------------------------------------------------- sizes and numbers


@pytest.mark.parametrize(("declared", "given"), [(64, 16), (16, 64), (16, 15)])
def test_a_size_of_batches_that_was_not_declared_is_refused(declared, given):
    made = engine_for(sampling=indexed().drawn(declared))
    with pytest.raises(DataError, match=f"hold {given} samples, and were declared to hold {declared}"):
        train(made, [batch_of(i) for i in shuffled(given)])


def test_short_last_batches_are_as_declared():
    made = engine_for(sampling=indexed().drawn(48))
    engine = train(made, [batch_of(i) for _ in range(3) for i in shuffled(48)], ends=False)
    assert engine.arrivals.left == WATCHED - 15


def test_batches_may_be_shorter_where_samples_cannot_be_read():
    ((part, drawn),) = indexed().drawn(48).items()
    short = [batch_of(i[:size]) for i, size in zip(shuffled(48), (48, 45, 47, 47), strict=False)]
    train(engine_for(sampling={part: drawn._replace(shorter=True)}), short)
    with pytest.raises(DataError, match="hold 47 samples, and were declared to hold 48"):
        train(engine_for(sampling={part: drawn}), short)
    longer = [batch_of(i) for i in shuffled(50)]
    with pytest.raises(DataError, match="hold 50 samples, and were declared to hold 48"):
        train(engine_for(sampling={part: drawn._replace(shorter=True)}), longer)


@pytest.mark.parametrize("n", [100, 1000])
def test_a_number_of_samples_other_than_that_of_the_sampling_is_refused(n):
    with pytest.raises(ConfigError, match=f"num_samples={n}, but `sampling` describes a training split of 200 samples"):
        engine_for(sampling=indexed().drawn(BATCH), n=n)
    criterion = Criterion(AveragePrecision(), SOX(), num_samples=n, sampling=indexed().drawn(BATCH))
    with pytest.raises(ConfigError, match=f"num_samples={n}, but"):
        criterion.follow(torch.optim.SGD(nn.Linear(3, 1).parameters(), lr=0.1))


@pytest.mark.parametrize("n", [100, 1000])
def test_a_number_of_samples_other_than_that_of_the_loader_is_refused(n):
    with pytest.raises(ConfigError, match=f"execution.num_samples={n}, and the training split has 200 samples"):
        trained(DataLoader(indexed(), BATCH, shuffle=True), execution=Execution(num_samples=n))


def test_samples_that_end_before_the_declared_number_are_warned_of():
    made = engine_for(SoftRank(), n=1000)
    with pytest.warns(UserWarning, match=r"have the indices 0\.\.199, and num_samples=1000 declares 0\.\.999"):
        train(made, [batch_of(i) for i in shuffled()])
    every = torch.arange(1000)
    in_order = [{"x": X[i % N], "y": Y[i % N], "index": i} for i in every.split(20)]
    train(engine_for(SoftRank(), n=1000), in_order[:20])  # of an epoch that has just begun


# ----------------------------------------------------------------------------------------------- which samples


@pytest.mark.parametrize(
    "made",
    [
        lambda: ConcatDataset([indexed(X[:100], Y[:100]), indexed(X[100:], Y[100:])]),
        lambda: Subset(indexed(), range(50, 150)),
        lambda: torch.utils.data.random_split(indexed(), [150, 50], torch.Generator().manual_seed(0))[0],
        lambda: ConcatDataset([Subset(indexed(), range(100)), indexed()]),
    ],
    ids=["joined", "part", "random split", "joined parts"],
)
def test_data_sets_made_of_indexed_ones_are_refused_before_training(made):
    with pytest.raises(DataError, match=r"has the index \d+ of an IndexedDataset inside it .* Number the whole"):
        trained(DataLoader(made(), BATCH, shuffle=True), AUC(), SGD())


def test_the_way_out_knows_the_labels():
    parts = [TensorDataset(X[:100], Y[:100]), TensorDataset(X[100:], Y[100:])]
    for data, y in (
        (IndexedDataset(ConcatDataset(parts)), Y),
        (IndexedDataset(Subset(ConcatDataset(parts), [3, 150, 20])), Y[[3, 150, 20]]),
        (IndexedDataset(Subset(indexed(), [3, 150, 20])), Y[[3, 150, 20]]),
    ):
        assert torch.equal(data.columns["y"], y)
        assert [data[i]["index"] for i in range(len(data))] == list(range(len(data)))
        assert all(int(data[i]["y"]) == y[i] for i in range(len(data)))
    trained(DataLoader(IndexedDataset(ConcatDataset(parts)), BATCH, shuffle=True))


class Joined(Dataset):
    """Two data sets in a way that nobody can look into."""

    def __init__(self, *parts):
        self.parts = parts

    def __len__(self):
        return sum(map(len, self.parts))

    def __getitem__(self, i):
        first = self.parts[0]
        return first[i] if i < len(first) else self.parts[1][i - len(first)]


@pytest.mark.filterwarnings("error")
def test_two_samples_with_one_index_are_refused_when_they_meet():
    joined = Joined(indexed(X[:100], Y[:100]), indexed(X[100:], Y[100:]))
    torch.manual_seed(0)
    with pytest.raises(DataError, match=r"two samples of a batch have the same index \d+, but the y 0 and 1"):
        trained(DataLoader(joined, 64, shuffle=True), SoftRank(), SOX())


def test_two_samples_with_one_index_and_alike_labels_are_warned_of():
    y = torch.ones(N, dtype=torch.int64)
    joined = Joined(indexed(X[:100], y[:100]), indexed(X[100:], y[100:]))
    said = trained(DataLoader(joined, BATCH, shuffle=True), RobustLogistic(), SOX())[1]
    assert any("have the indices 0..99, and num_samples=200" in text for text in said)


def test_copies_are_refused_where_samples_were_declared_to_be_different():
    index = torch.arange(N).view(-1, BATCH // 2).repeat(1, 2)
    made = engine_for(sampling=indexed().drawn(BATCH))
    with pytest.raises(DataError, match="a batch holds 16 samples, of which 8 are different"):
        train(made, [batch_of(i) for i in index])


def test_labels_that_are_not_those_declared_are_refused():
    order = torch.randperm(N, generator=torch.Generator().manual_seed(1))
    sampling = {"target": Drawn({"y": Y[order], "index": torch.arange(N)}, UniformBatches(N, BATCH))}
    made = engine_for(AUC(), SGD(), sampling)
    with pytest.raises(
        DataError, match=r"of 16 samples of a batch have another y than declared: the sample with index"
    ):
        train(made, [batch_of(i) for i in shuffled()])


def test_declared_are_perhaps_no_columns():
    sampling = {"target": Drawn({}, UniformBatches(N, BATCH))}
    train(engine_for(CrossEntropy(), SGD(), sampling), [batch_of(i) for i in shuffled()])


def test_batches_without_the_declared_classes_are_refused():
    columns = {"y": Y, "index": torch.arange(N)}
    plan = BalancedSampling(BATCH).plan(columns, 0)
    train(engine_for(sampling={"target": Drawn(columns, plan)}), [batch_of(i) for i in plan.batches(0)])
    made = engine_for(sampling={"target": Drawn(columns, plan)})
    with pytest.raises(DataError, match=r"samples of stratum \d .* was declared to hold at most 8"):
        train(made, [batch_of(i) for i in shuffled()])


# ----------------------------------------------------------------------------------------------- what is strange


def sorted_loader(y, shuffle=False, **columns):
    order = y.argsort(stable=True)
    names = ("x", "y", *columns)
    data = TensorDataset(X[order], y[order], *(column[order] for column in columns.values()))
    return DataLoader(IndexedDataset(data, names), 8, shuffle=shuffle)


@pytest.mark.parametrize("shuffle", [False, True])
def test_batches_of_one_class_are_counted(shuffle):
    said = trained(sorted_loader(Y, shuffle), AUC(), SGD())[1]
    empty = sum(len(part.unique()) == 1 for part in Y.sort().values.split(8))
    assert empty == 24
    warned = [text for text in said if "24 of the first 25 batches contain nothing that AUC measures" in text]
    assert len(warned) == (not shuffle)
    assert all("shuffle=True" in text for text in warned)


def test_batches_without_events_are_counted():
    time, event = X[:, 0].exp(), Y
    order = event.argsort(stable=True)
    survival = IndexedDataset(TensorDataset(X, event, time), ("x", "event", "time"))
    made = engine_for(CoxPartialLikelihood(), SOX(), survival.drawn(8))
    batches = [{"x": X[i], "event": event[i], "time": time[i], "index": i} for i in order.split(8)]
    silent = sum(not bool(batch["event"].any()) for batch in batches)
    with pytest.warns(UserWarning, match=f"{silent} of the first 25 batches contain nothing that CoxPartialLikelihood"):
        train(made, batches)


@pytest.mark.parametrize("in_order", [True, False])
def test_batches_of_one_group_are_counted(in_order):
    group = torch.arange(N) * 4 // N
    made = engine_for(CVaRGroupDRO(0.5, num_groups=4), SOX())
    order = torch.arange(N) if in_order else torch.cat(shuffled())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        train(made, [batch_of(i, group=group[i]) for i in order.split(8)])
    said = [
        str(w.message)
        for w in caught
        if "contain one value of `group` only, and together they contain 4" in str(w.message)
    ]
    assert len(said) == in_order
    assert all(text.startswith("22 of the first 25 batches") for text in said)


class Towers(nn.Module):
    def __init__(self, unit):
        super().__init__()
        self.unit, self.image, self.text = unit, nn.Linear(3, 4), nn.Linear(3, 4)

    def forward(self, x):
        both = self.image(x), self.text(x)
        return Embeddings(*(nn.functional.normalize(v, dim=1) for v in both)) if self.unit else Embeddings(*both)


@pytest.mark.parametrize("objective", [InfoNCE, GlobalContrastive, ViewContrastive])
@pytest.mark.parametrize("unit", [True, False])
def test_embeddings_of_another_length_are_named(objective, unit):
    torch.manual_seed(0)
    algorithm, network = SOX() if objective is not InfoNCE else SGD(), Towers(unit)
    engine = Engine(network, algorithm.pose(objective(tau=1.0), num_samples=N), algorithm)
    batch = {"x": 2 * X[:BATCH], "index": torch.arange(BATCH)}
    off = max(float((v.detach().norm(dim=1) - 1).abs().max()) for v in network(batch["x"]))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        engine.train_batch(batch, torch.optim.SGD(network.parameters(), lr=0.0))
    said = [str(w.message) for w in caught if "embeddings of length 1" in str(w.message)]
    assert len(said) == (not unit)
    assert all(f"by up to {off:.3g}" in text for text in said)


# ----------------------------------------------------------------------------------------------- checkpoints


def with_mirrored(x, y):
    """The samples but for their inputs, of which some are others."""
    return TensorDataset(torch.cat([x[:-1], -x[-1:]]), y)


def permuted(x, y):
    order = torch.cat([torch.arange(1, len(x)), torch.tensor([0])])
    return TensorDataset(x[order], y[order])


OTHERS = {
    "one less": (lambda x, y: TensorDataset(x[1:], y[1:]), "rows: 200 there, 199 here"),
    "one more": (lambda x, y: TensorDataset(torch.cat([x, x[:1]]), torch.cat([y, y[:1]])), "rows: 200 there, 201 here"),
    "other inputs": (with_mirrored, "contents or the order of .'16 samples that were looked at'"),
    "permuted": (permuted, "contents or the order of"),
}


def unlabelled_first():
    y = Y.clone()
    y[0] = 0
    return X, y


@pytest.fixture
def saved(tmp_path):
    module, _ = trained(DataLoader(IndexedDataset(TensorDataset(*unlabelled_first())), BATCH, shuffle=True))
    path = tmp_path / "last.ckpt"
    module.trainer.save_checkpoint(path)
    return path


def continued(data, path, **execution):
    loader = DataLoader(IndexedDataset(data), BATCH, shuffle=True)
    options = {"max_epochs": 2, "num_sanity_val_steps": 0}
    return trained(loader, trainer=options, ckpt_path=path, execution=Execution(**execution))[1]


@pytest.mark.parametrize("other", OTHERS)
def test_a_checkpoint_is_not_continued_with_other_samples(saved, other):
    make, told = OTHERS[other]
    with pytest.raises(DataError, match=f"another training split.*{told}.*allow_changed=True"):
        continued(make(*unlabelled_first()), saved)
    continued(TensorDataset(*unlabelled_first()), saved)


def test_a_checkpoint_is_continued_with_other_samples_on_purpose(saved):
    said = continued(with_mirrored(*unlabelled_first()), saved, allow_changed=True)
    assert sum("another training split" in text for text in said) == 1


def test_a_module_is_not_fitted_again_to_other_samples():
    module, _ = trained(DataLoader(IndexedDataset(TensorDataset(X, Y)), BATCH, shuffle=True))
    again = DataLoader(IndexedDataset(with_mirrored(X, Y)), BATCH, shuffle=True)
    with pytest.raises(ConfigError, match="another training split, whose samples are others"):
        Trainer(**QUIET | {"max_epochs": 1, "limit_val_batches": 0}).fit(module, again)


class Noisy(Dataset):
    def __len__(self):
        return N

    def __getitem__(self, i):
        return X[i] + torch.randn(3), int(Y[i])


def test_samples_that_are_drawn_are_not_looked_at_and_draw_nothing():
    loader = DataLoader(IndexedDataset(Noisy(), columns={"y": Y}), BATCH, shuffle=True)
    torch.manual_seed(5)
    assert contents_of_some(loader, N) == {}
    assert torch.equal(torch.rand(3), torch.rand(3, generator=torch.Generator().manual_seed(5)))
    assert contents_of_some(DataLoader(indexed(), BATCH), N)


@pytest.mark.parametrize("other", ["number", "labels"])
def test_engines_and_criteria_refuse_the_state_of_other_samples(other):
    n, y = (N, Y.flip(0)) if other == "labels" else (N - 1, Y[:-1])
    sampling, network = IndexedDataset(TensorDataset(X[:n], y)).drawn(BATCH), nn.Linear(3, 1)

    def criterion(n, sampling, **options):
        made = Criterion(AveragePrecision(), SOX(), num_samples=n, sampling=sampling, **options)
        made.follow(torch.optim.SGD(network.parameters(), lr=0.1))
        return made

    told = "rows: 200 there, 199 here" if other == "number" else "the contents or the order of .'y'"
    state = engine_for(sampling=indexed().drawn(BATCH))[0].state_dict()
    engine = engine_for(sampling=sampling, n=n)[0]
    with pytest.raises(DataError, match=told):
        engine.load_state_dict(state)
    with pytest.warns(UserWarning, match=told):
        engine.load_state_dict(state, allow_changed=True)
    with pytest.raises(CheckpointError, match="data"):
        engine.load_state_dict(state | {"data": {"rows": n}})
    state = criterion(N, indexed().drawn(BATCH)).state_dict()
    with pytest.raises(DataError, match=told):
        criterion(n, sampling).load_state_dict(state)
    if other == "labels":
        with pytest.warns(UserWarning, match=told):
            criterion(n, sampling, allow_changed=True).load_state_dict(state)
    criterion(N, indexed().drawn(BATCH)).load_state_dict(state)


# ----------------------------------------------------------------------------------------------- what it costs


def test_after_the_first_batches_nothing_is_looked_at(monkeypatch):
    engine, optimizer = engine_for(sampling=indexed().drawn(BATCH))
    for index in (shuffled() * 4)[: WATCHED + 1]:
        engine.train_batch(batch_of(index), optimizer)
    monkeypatch.setattr(engine.arrivals, "_compare_size", None)
    for index in shuffled():
        engine.train_batch(batch_of(index), optimizer)
    assert engine.arrivals.left == 0


def test_constraints_that_no_batch_measures_are_told():
    """A group that never comes, in a loop of which nothing is declared: its constraint acts on nothing."""
    x, y, group = torch.randn(256, 3), torch.arange(256) % 2, torch.zeros(256, dtype=torch.int64)
    network, algorithm = torch.nn.Linear(3, 1), SONEX()
    engine = Engine(network, algorithm.pose(CrossEntropy(), [EqualizedOdds()], num_samples=256), algorithm)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    for i in range(8):
        rows = torch.arange(32 * i, 32 * (i + 1))
        batch = {"x": x[rows], "y": y[rows], "group": group[rows], "index": rows}
        told = nullcontext() if i < 7 else pytest.warns(UserWarning, match="none of the first 8 batches contains what")
        with told:
            engine.train_batch(batch, optimizer, last_batch=i == 7)


def test_what_is_drawn_is_given_by_part_or_as_it_comes():
    data = IndexedDataset(TensorDataset(torch.randn(8, 3), torch.arange(8) % 2))
    assert SONEX().pose(AveragePrecision(), num_samples=8, sampling=data.drawn(batch_size=4)).declared
    with pytest.raises(
        ConfigError, match=r"values of `sampling` must be Drawn objects, one for each part of a batch, got a dict"
    ):
        SONEX().pose(AveragePrecision(), num_samples=8, sampling={"target": data.drawn(batch_size=4)})
    mistaken = {"target": data.drawn(batch_size=4)["target"]._replace(plan=UniformSampling(4))}
    with pytest.raises(
        ConfigError, match=r"describes how batches are drawn, got a UniformSampling\. Use the plan of a sampl"
    ):
        SONEX().pose(AveragePrecision(), num_samples=8, sampling=mistaken)


def test_batches_drawn_in_a_way_of_ones_own_are_described_by_what_they_are_without():
    """Of ten samples every batch holds four, and always the first one."""

    class WithTheFirst(BatchDraws):
        @property
        def strata(self):
            return (torch.arange(10) > 0).long()

        def absence(self, counts, share=1.0):
            first, others = counts.tolist()
            return 0.0 if first else comb(9 - others, 3) / comb(9, 3)

    drawn = Drawn({"y": (torch.arange(10) < 3).long(), "index": torch.arange(10)}, WithTheFirst())
    assert owner_presence(drawn.columns["y"] == 1, drawn).tolist() == pytest.approx([1, 1 / 3, 1 / 3])
    assert SONEX().pose(AveragePrecision(), num_samples=10, sampling={"target": drawn}).declared
