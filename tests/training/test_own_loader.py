"""Loaders made by the user: a run resumes exactly, or one warning says how to achieve it."""

import random
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader, Sampler, TensorDataset

from fcco_lightning import (
    AveragePrecision,
    CrossEntropy,
    Execution,
    FCCOModule,
    IndexedDataset,
    LinearWarmUp,
    ResumableLoader,
    Schedule,
    TabularMLP,
    TensorDataModule,
    UniformSampling,
)
from fcco_lightning.data import TensorTable
from fcco_lightning.data.batches import UniformBatches
from fcco_lightning.data.table import collate
from fcco_lightning.errors import ConfigError, DataError
from fcco_lightning.training import module as training_module
from fcco_lightning.training.resuming.random_streams import loader_streams, set_loader_streams
from tests.jobs import everything, save_at

ROWS, BATCHES = 40, 5


def table():
    x = torch.randn(ROWS, 7, generator=torch.Generator().manual_seed(0))
    return TensorTable({"x": x, "y": (x[:, 0] > 0).long(), "group": (x[:, 1] > 0).long()})


def plain(workers=0, **options):
    options |= {"num_workers": workers, "persistent_workers": workers > 0, "collate_fn": collate}
    return DataLoader(table(), ROWS // BATCHES, shuffle=True, **options)


def with_generator():
    return plain(generator=torch.Generator().manual_seed(5))


class Permuted(Sampler):
    """Draws from a stream of its own."""

    def __init__(self, stream):
        self.stream = stream

    def __len__(self):
        return ROWS

    def __iter__(self):
        order = list(range(ROWS))
        self.stream.shuffle(order)
        return iter(order)


def with_sampler(stream):
    return DataLoader(table(), ROWS // BATCHES, sampler=Permuted(stream), collate_fn=collate)


def stateful(workers=0, sampler=None):
    library = pytest.importorskip("torchdata.stateful_dataloader", reason="torchdata is not installed")
    options = {"num_workers": workers, "persistent_workers": workers > 0, "collate_fn": collate, "sampler": sampler}
    return library.StatefulDataLoader(table(), ROWS // BATCHES, shuffle=sampler is None, **options)


class Remembering(DataLoader):
    """Claims to know its place, as torchdata's loader does with any sampler."""

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        """Nothing to do."""


def resumable():
    return ResumableLoader(table(), UniformBatches(ROWS, batch_size=ROWS // BATCHES))


def stopped_and_whole(make_module, make_trainer, make_loader, batch, path, **changes):
    """Names of what differs, and the warnings."""

    def fit(callbacks=(), ckpt_path=None):
        torch.manual_seed(3 if ckpt_path is None else 99)
        network = TabularMLP([8], in_features=7, dropout=0.2)
        module = make_module(execution=Execution(num_samples=ROWS), network=network, **changes)
        trainer = make_trainer(max_epochs=3, callbacks=list(callbacks))
        trainer.fit(module, make_loader(), ckpt_path=ckpt_path)
        return everything(trainer)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        whole, resumed = fit([save_at(1, batch, path)]), fit(ckpt_path=path)
    different = [name for name in whole if not torch.equal(whole[name], resumed[name])]
    return different, [str(w.message) for w in caught if "its place in an epoch" in str(w.message)]


@pytest.mark.parametrize(
    ("make_loader", "batch"),
    [
        (resumable, 2),
        (plain, BATCHES - 1),
        pytest.param(lambda: plain(2), BATCHES - 1, marks=pytest.mark.slow),
        (with_generator, BATCHES - 1),
        (lambda: with_sampler(np.random.default_rng(5)), BATCHES - 1),
        (lambda: with_sampler(np.random.RandomState(5)), BATCHES - 1),
        (lambda: with_sampler(random.Random(5)), BATCHES - 1),  # noqa: S311
        (stateful, 2),
        (lambda: stateful(2), 2),
    ],
    ids=[
        "ours",
        "at the end of an epoch",
        "with workers that stay",
        "a generator",
        "a sampler with NumPy's generator",
        "a sampler with NumPy's old generator",
        "a sampler with Python's generator",
        "torchdata's",
        "torchdata's, workers that stay",
    ],
)
def test_continued_exactly_without_a_warning(make_loader, batch, make_module, make_trainer, tmp_path):
    different, said = stopped_and_whole(make_module, make_trainer, make_loader, batch, tmp_path / "at.ckpt")
    assert not different
    assert not said


@pytest.mark.parametrize("kind", ["MT19937", "PCG64", "PCG64DXSM", "Philox", "SFC64"])
def test_every_kind_of_a_numpy_stream_goes_on(kind, tmp_path):
    def loader(seed):
        return SimpleNamespace(dataset=SimpleNamespace(stream=np.random.Generator(getattr(np.random, kind)(seed))))

    one, other = loader(3), loader(4)
    one.dataset.stream.integers(9, size=5, dtype=np.int32)
    torch.save(loader_streams([one]), tmp_path / "streams")
    set_loader_streams([other], torch.load(tmp_path / "streams", weights_only=True))
    assert (one.dataset.stream.random(9) == other.dataset.stream.random(9)).all()


@pytest.mark.filterwarnings("ignore:You defined a `validation_step`")
def test_rows_of_one_data_set_are_not_those_of_another(make_module, make_trainer):
    x = torch.randn(ROWS, 7)
    whole, half = (IndexedDataset(TensorDataset(x[:n], (x[:n, 0] > 0).long())) for n in (ROWS, ROWS // 2))
    module = make_module(network=TabularMLP([8], in_features=7), objective=AveragePrecision(), constraints=[])
    make_trainer(max_epochs=1).fit(module, DataLoader(whole, ROWS // BATCHES, shuffle=True))
    make_trainer(max_epochs=1).fit(module, DataLoader(whole, ROWS // BATCHES, shuffle=True))
    with pytest.raises(ConfigError, match="a training split of 40 samples, this one has 20"):
        make_trainer(max_epochs=1).fit(module, DataLoader(half, ROWS // BATCHES, shuffle=True))


@pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`", "ignore:You defined a `validation_step`")
@pytest.mark.parametrize("validated", [False, True])
@pytest.mark.parametrize("make_loader", [plain, with_generator, resumable, stateful])
def test_continued_exactly_from_what_lightning_saves_between_epochs(
    make_loader, validated, make_module, make_trainer, tmp_path
):
    def fit(callbacks=(), ckpt_path=None):
        torch.manual_seed(3 if ckpt_path is None else 99)
        module = make_module(execution=Execution(num_samples=ROWS), network=TabularMLP([8], in_features=7, dropout=0.2))
        trainer = make_trainer(
            max_epochs=4, callbacks=list(callbacks), limit_val_batches=1.0, enable_checkpointing=bool(callbacks)
        )
        held_out = DataLoader(table(), ROWS, collate_fn=collate) if validated else None
        trainer.fit(module, make_loader(), held_out, ckpt_path=ckpt_path)
        return everything(trainer)

    whole = fit([ModelCheckpoint(tmp_path, "{epoch}", save_top_k=-1)])
    resumed = fit(ckpt_path=tmp_path / "epoch=1.ckpt")
    assert [name for name in whole if not torch.equal(whole[name], resumed[name])] == []


def test_schedules_that_ask_for_the_number_of_steps_leave_loaders_where_they_were(make_module, make_trainer, tmp_path):
    """Lightning makes the loaders for the answer, before it knows of the checkpoint's places."""
    fits = (make_module, make_trainer, resumable, 2, tmp_path / "at.ckpt")
    different, said = stopped_and_whole(*fits, schedule=Schedule(LinearWarmUp, interval="step"))
    assert not different
    assert not said


def test_in_the_middle_of_an_epoch_one_warning_of_each_run(make_module, make_trainer, tmp_path):
    different, said = stopped_and_whole(make_module, make_trainer, plain, 2, tmp_path / "at.ckpt")
    assert different
    assert len(said) == 2
    assert all("DataLoader does not know" in text and "torchdata's StatefulDataLoader" in text for text in said)


@pytest.mark.parametrize("library", ["torchdata", "its like"])
def test_a_sampler_that_draws_and_remembers_nothing_is_named(library, make_module, make_trainer, tmp_path):
    def loader():
        sampler = Permuted(np.random.default_rng(5))
        if library == "torchdata":
            return stateful(sampler=sampler)
        return Remembering(table(), ROWS // BATCHES, sampler=sampler, collate_fn=collate)

    different, said = stopped_and_whole(make_module, make_trainer, loader, 2, tmp_path / "at.ckpt")
    assert different
    assert len(said) == 2
    assert all("whose sampler Permuted has no load_state_dict, does not know" in text for text in said)


@pytest.mark.filterwarnings("ignore:You defined a `validation_step`")
def test_a_loader_without_a_batch_is_refused(make_module, make_trainer):
    few = DataLoader(table(), 2 * ROWS, drop_last=True, collate_fn=collate)
    with pytest.raises(DataError, match=r"no batch: .* 40 samples, batch_size is 80 and drop_last=True"):
        make_trainer().fit(
            make_module(execution=Execution(num_samples=ROWS), network=TabularMLP([8], in_features=7)), few
        )


def with_one_left(objective, network, *, own, drop_last=False, size=8):
    x = torch.randn(33, 3, generator=torch.Generator().manual_seed(0))
    y = torch.arange(33) % 2
    if own:
        data = IndexedDataset(TensorDataset(x, y))
        return {"train_dataloaders": DataLoader(data, size, shuffle=True, drop_last=drop_last)}
    splits, batches = {"x": x, "y": y}, UniformSampling(size, drop_last=drop_last)
    return {"datamodule": TensorDataModule({"train": splits, "test": splits}, batches=batches)}


@pytest.mark.filterwarnings("ignore:You defined a `validation_step`")
@pytest.mark.parametrize("own", [True, False], ids=["loader", "datamodule"])
@pytest.mark.parametrize("kind", ["batch norm", "pairs"])
def test_a_last_batch_of_one_sample_is_refused_before_anything_is_trained(kind, own, make_trainer):
    def fit(**options):
        torch.manual_seed(0)
        layers = [nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 1)]
        network = nn.Sequential(*layers) if kind == "batch norm" else nn.Linear(3, 1)
        module = FCCOModule(network, CrossEntropy() if kind == "batch norm" else AveragePrecision())
        trainer = make_trainer(max_epochs=1, limit_val_batches=0)
        try:
            trainer.fit(module, **with_one_left(module.objective, network, own=own, **options))
        finally:
            module.updates = trainer.global_step
        return module

    with pytest.raises(
        ConfigError, match=r"contains a single sample.*(Expected more than 1 value|compared with).*drop_last"
    ):
        fit()
    assert fit(drop_last=True).updates == 4
    assert fit(size=11).updates == 3


@pytest.mark.filterwarnings("ignore:You defined a `validation_step`")
def test_a_last_batch_of_one_sample_is_trained_on_where_that_is_possible(make_trainer, monkeypatch):
    def fit():
        torch.manual_seed(0)
        network = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.Linear(4, 1))
        module, trainer = FCCOModule(network, CrossEntropy()), make_trainer(max_epochs=1, limit_val_batches=0)
        trainer.fit(module, **with_one_left(module.objective, network, own=False))
        assert trainer.global_step == 5
        return [p.detach().clone() for p in network.parameters()]

    tried = fit()
    monkeypatch.setattr(training_module, "ends_with_one", lambda trainer: False)
    assert all(torch.equal(a, b) for a, b in zip(tried, fit(), strict=True))  # the trial leaves nothing behind
