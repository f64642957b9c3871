"""The resumable loader: interruptions within an epoch, numbers of batches, and random state."""

from itertools import chain

import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.utilities.combined_loader import CombinedLoader

from fcco_lightning.data.batches import UniformBatches
from fcco_lightning.data.loader import OrderedShare, ResumableLoader
from fcco_lightning.data.table import TensorTable, collate
from fcco_lightning.errors import CheckpointError
from tests.combinations import every_pair
from tests.contracts.test_datamodules import Plain, quiet

ROWS, BATCH, EPOCHS = 23, 4, 3  # 5 batches an epoch, 3 rows left over


def make_loader(workers=0, **options):
    return ResumableLoader(
        TensorTable({"x": torch.ones(ROWS, 1)}), UniformBatches(ROWS, BATCH, seed=1), num_workers=workers, **options
    )


class SaveAfter(Callback):
    def __init__(self, step, path, hook):
        self.step, self.path, self.hook = step, path, hook

    def _save(self, trainer, hook):
        if hook == self.hook and trainer.global_step == self.step:
            trainer.save_checkpoint(self.path)
            trainer.should_stop = True

    def on_train_batch_end(self, trainer, *args):
        self._save(trainer, "batch")

    def on_validation_end(self, trainer, *args):
        self._save(trainer, "validation")

    def on_train_epoch_end(self, trainer, *args):
        self._save(trainer, "epoch")


def fit(workers, tmp_path, callbacks=(), ckpt=None, save=None, **limits):
    module = Plain()
    trainer = quiet(tmp_path, callbacks=list(callbacks), **({"max_epochs": EPOCHS} | limits))
    validation = torch.utils.data.DataLoader(TensorTable({"x": torch.ones(2, 1)}), collate_fn=collate)
    trainer.fit(module, make_loader(workers), validation, ckpt_path=ckpt)
    if save:
        trainer.save_checkpoint(save)
    return [rows["target"] for rows, _ in module.seen]


def expected(epochs=EPOCHS):
    plan = UniformBatches(ROWS, BATCH, seed=1)
    return [batch.tolist() for epoch in range(epochs) for batch in plan.batches(epoch)]


STOPS = [(2, "batch"), (7, "batch"), (5, "batch"), (10, "batch"), (5, "epoch"), (10, "epoch"), (10, "validation")]


@every_pair(
    "workers, limits, stop",
    {"0 workers": 0, "2 workers": 2},
    {"epochs": {}, "steps": {"max_epochs": -1, "max_steps": 15}},
    {f"{step}-{hook}": (step, hook) for step, hook in STOPS},
)
def test_interrupted_and_resumed_equals_uninterrupted(tmp_path, workers, limits, stop):
    step, hook = stop
    path = tmp_path / "last.ckpt"
    before = fit(workers, tmp_path, [SaveAfter(step, path, hook)], **limits)
    after = fit(workers, tmp_path, ckpt=path, **limits)
    assert before == expected()[:step]
    assert before + after == expected()


@pytest.mark.parametrize("limits", [{}, {"max_epochs": -1, "max_steps": 15}], ids=["epochs", "steps"])
def test_interrupted_three_times(tmp_path, limits):
    stops = [(5, "epoch"), (7, "batch"), (10, "epoch")]
    seen, ckpt = [], None
    for step, hook in stops:
        path = tmp_path / f"{step}.ckpt"
        seen += fit(0, tmp_path, [SaveAfter(step, path, hook)], ckpt=ckpt, **limits)
        ckpt = path
    assert seen + fit(0, tmp_path, ckpt=ckpt, **limits) == expected()


@pytest.mark.parametrize("steps", [2, 5, 7])
def test_more_steps_after_max_steps(tmp_path, steps):
    path = tmp_path / "last.ckpt"
    before = fit(0, tmp_path, save=path, max_epochs=-1, max_steps=steps)
    assert before + fit(0, tmp_path, ckpt=path, max_epochs=-1, max_steps=15) == expected()


def test_resume_of_shortened_epochs(tmp_path):
    limits = {"max_epochs": -1, "max_steps": 9, "limit_train_batches": 3}
    whole = fit(0, tmp_path, **limits)
    assert whole == [batch for epoch in range(3) for batch in expected()[5 * epoch : 5 * epoch + 3]]
    for step, hook in [(3, "epoch"), (3, "batch"), (4, "batch"), (6, "batch")]:
        path = tmp_path / f"{step}.ckpt"
        before = fit(0, tmp_path, [SaveAfter(step, path, hook)], **limits)
        assert before + fit(0, tmp_path, ckpt=path, **limits) == whole


@pytest.mark.parametrize("workers", [0, 2])
def test_prepared_but_undelivered_batches_are_not_counted(workers):
    loader = make_loader(workers)
    batches = iter(loader)
    given = [next(batches)["index"].tolist() for _ in range(2)]
    state = loader.state_dict()
    assert state == {"epoch": 0, "given": 2, "batch_size": BATCH}
    batches.close()
    resumed = make_loader(workers)
    resumed.load_state_dict(state)
    assert resumed.state_dict() == state
    assert given + [batch["index"].tolist() for batch in resumed] == expected(1)
    assert resumed.state_dict()["given"] == 5
    resumed.sampler.set_epoch(1)
    assert resumed.state_dict() == {"epoch": 1, "given": 0, "batch_size": BATCH}
    assert [batch["index"].tolist() for batch in resumed] == expected(2)[5:]


def test_iterating_again_replays_the_epoch_and_len_is_the_whole_epoch():
    loader = make_loader()
    assert [[b["index"].tolist() for b in loader] for _ in range(2)] == [expected(1)] * 2
    loader.load_state_dict({"epoch": 0, "given": 3, "batch_size": BATCH})
    assert len(loader) == 5


def test_iteration_leaves_the_global_random_state_alone():
    before = torch.get_rng_state()
    list(make_loader())
    assert torch.equal(torch.get_rng_state(), before)


def test_lightning_collects_its_state():
    combined = CombinedLoader({"a": make_loader(), "b": make_loader()}, "min_size")
    next(iter(combined))
    assert combined._state_dicts() == [{"epoch": 0, "given": 1, "batch_size": BATCH}] * 2


def test_rejects_another_union_batch():
    table = TensorTable({"x": torch.ones(24, 1)})
    with pytest.raises(CheckpointError, match=r"union batches of 12 rows, this one gives 6.*batch_size \* number"):
        ResumableLoader(table, UniformBatches(24, 6)).load_state_dict({"epoch": 0, "given": 1, "batch_size": 12})


# ---- who is given which samples


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("size", [0, 1, 3, 12, 13])
def test_evaluation_sees_everything_once_and_in_order(size, world_size):
    shares = [OrderedShare(range(size), rank, world_size) for rank in range(world_size)]
    assert list(chain.from_iterable(shares)) == list(range(size))
    assert [len(share) for share in shares] == [len(list(share)) for share in shares]
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
    for share in shares:
        share.set_epoch(5)
    assert list(chain.from_iterable(shares)) == list(range(size))
