"""Continual learning of CLIP under a Trainer: all algorithms, resume, what is kept of the old model, processes."""

import copy

import pandas as pd
import pytest
import torch
from lightning.pytorch import Callback, seed_everything
from PIL import Image
from torch.nn.functional import cross_entropy

from fcco_lightning import CheckpointError, DataError
from fcco_lightning.callbacks import Report
from tests import jobs
from tests.launch import launch, values
from tests.training.test_resume import everything

CASES = [
    ("SGD", "no"),
    ("SOX", "no"),
    ("SONX", "no"),
    ("SONEX", "no"),
    ("SONEX", "global"),
    ("SONEX", "per_sample"),
    ("ALEXR2", "no"),
    ("ALEXR2", "global"),
    ("MSVR", "no"),
    ("MSVR", "per_sample"),
]
TASKS = ["three", "five", "nine"]


class Watch(Callback):
    """Keeps what the first batches look like and what is known of the old model before them."""

    def __init__(self):
        self.calls, self.batches, self.start, self.first_change = 0, [], {}, None

    def setup(self, trainer, module, stage):
        self.old = copy.deepcopy(module.network)
        module.network.register_forward_hook(self._count)

    def _count(self, *_):
        self.calls += 1

    def on_train_start(self, trainer, module):
        self.calls_before = self.calls
        self.old.adapt(trainer.datamodule)
        self.old.load_state_dict(module.network.state_dict())
        for split, loader in trainer.datamodule.evaluation_loaders().items():
            self.start[split] = module.summarise(split, *module.evaluate(loader))

    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        self.batches.append({part: {n: c.clone() for n, c in columns.items()} for part, columns in batch.items()})
        if len(self.batches) == 1:
            with torch.no_grad():
                functions = module.engine.functions
                outputs = functions.outputs(batch)
                self.first_change = module.constraints[0].inner(outputs["protected"], batch["protected"])


@pytest.mark.parametrize(("algorithm", "learn"), CASES)
def test_every_algorithm_trains_from_where_it_is(algorithm, learn, make_trainer):
    """Before the first step no task has changed, on any split and in any batch; afterwards weights have."""
    watch, module = Watch(), jobs.pairs_module(algorithm, learn)
    data, trainer = jobs.pairs_data({}), make_trainer(max_epochs=1, callbacks=[watch])
    trainer.fit(module, data)
    assert trainer.global_step == (2 if algorithm == "ALEXR2" else 4)
    assert set(watch.start) == {"train", "test"}
    for figures in watch.start.values():
        assert {figures[f"{kind}/{name}"] for kind in ("h", "change", "loss_change") for name in TASKS} == {0.0}
        assert (figures["delta_target"], figures["worst_violation"]) == (0, 0)
    index, change = watch.first_change
    assert index.tolist() == [0, 1, 2]
    assert change.abs().max() < 1e-5
    for split in ("train", "test"):
        table = data.tables[split]
        x = torch.stack([table[i]["x"] for i in range(len(table))])
        with torch.no_grad():
            logits = watch.old.eval()({"x": x}).double()
        y = table.columns["y"]
        expected = {
            "old_loss": cross_entropy(logits, y, reduction="none").float(),
            "old_correct": (logits.argmax(1) == y).long(),
            "protected_loss": cross_entropy(logits, y, reduction="none"),
        }
        torch.testing.assert_close({n: table.columns[n] for n in expected}, expected, rtol=1e-5, atol=1e-5)
    old = dict(watch.old.named_parameters())
    assert {n for n, p in module.network.named_parameters() if torch.equal(p, old[n])} == {"model.logit_scale"}
    assert all(v.isfinite() for v in trainer.callback_metrics.values())
    assert abs(trainer.callback_metrics["train_loss_change/three"]) > 1e-6
    if learn == "global":
        assert module.objective.temperature().item() != pytest.approx(0.1, abs=1e-7)
    if learn == "per_sample":
        rows = module.problem.row_parameters.state.rows
        assert (rows.nan_to_num(0.1) - 0.1).abs().max() > 1e-5


# ------------------------------------------------------------------------------------------------------------- resume

RESUMED = [("SONEX", "per_sample"), ("SONEX", "global"), ("ALEXR2", "no"), ("ALEXR2", "global"), ("MSVR", "no")]


class Batches(Callback):
    """All batches, and how often the network was called before the first of them."""

    def __init__(self):
        self.seen, self.calls, self.calls_before = [], 0, None

    def setup(self, trainer, module, stage):
        module.network.register_forward_hook(self._count)

    def _count(self, *_):
        self.calls += 1

    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        self.calls_before = self.calls if self.calls_before is None else self.calls_before
        self.seen.append({part: {n: c.clone() for n, c in columns.items()} for part, columns in batch.items()})


def fit(make_trainer, *, seed=0, ckpt_path=None, save=None, epochs=2, module=None, **data):
    """A trainer after a fit, and what its batches were."""
    seed_everything(seed, verbose=False)
    watch = Batches()
    callbacks = [watch]
    if save is not None:
        epoch, batch, path = save
        callbacks.append(jobs.At(epoch, batch, lambda trainer: trainer.save_checkpoint(path)))
    trainer = make_trainer(max_epochs=epochs, callbacks=callbacks)
    trainer.fit(jobs.pairs_module(**(module or {})), jobs.pairs_data({"data": data}), ckpt_path=ckpt_path)
    return trainer, watch


def old_columns(trainer):
    tables = trainer.datamodule.tables
    names = ("old_loss", "old_correct", "protected_loss")
    return {split: {n: tables[split].columns[n] for n in names} for split in ("train", "test")}


@pytest.mark.parametrize(("algorithm", "learn"), RESUMED)
def test_resume_is_bit_for_bit(algorithm, learn, make_trainer, tmp_path):
    """In the middle of an epoch and of an inner loop; from other weights, with the old model's losses kept."""
    path, module = tmp_path / "at.ckpt", {"algorithm": algorithm, "learn": learn}
    whole, batches = fit(make_trainer, module=module, save=(1, 1, path), num_batches=5)
    resumed, rest = fit(make_trainer, module=module, ckpt_path=path, num_batches=5, seed=9)
    expected, actual = everything(whole), everything(resumed)
    assert expected.keys() == actual.keys()
    assert not [n for n in expected if not torch.allclose(expected[n], actual[n], rtol=0, atol=0, equal_nan=True)]
    assert sum(name.endswith("rows") for name in expected) == 2 + (learn == "per_sample")
    assert (len(batches.seen), len(rest.seen), resumed.global_step) == (10, 3, whole.global_step)
    torch.testing.assert_close(rest.seen, batches.seen[7:], rtol=0, atol=0)
    torch.testing.assert_close(old_columns(resumed), old_columns(whole), rtol=0, atol=0)
    for name, value in whole.callback_metrics.items():
        torch.testing.assert_close(resumed.callback_metrics[name], value, rtol=0, atol=0)
    assert batches.calls_before == 4 + 1  # 200 and 60 images in batches of 64
    assert rest.calls_before == 0


# ------------------------------------------------------------------------------------------- what is kept of the old


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A checkpoint of one epoch, and the figures at its end."""
    from lightning.pytorch import Trainer

    folder = tmp_path_factory.mktemp("saved")
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    report = Report(pictures=False, table=False, folder=str(folder))
    trainer = Trainer(max_epochs=1, accelerator="cpu", enable_model_summary=False, callbacks=[report], **quiet)
    with torch.random.fork_rng():
        seed_everything(0, verbose=False)
        trainer.fit(jobs.pairs_module(), jobs.pairs_data({}))
    trainer.callbacks.remove(report)  # or Lightning would ask for it wherever the checkpoint is read
    trainer.save_checkpoint(folder / "a.ckpt")
    return folder / "a.ckpt", report.report


@pytest.mark.parametrize(
    ("data", "error", "message"),
    [
        ({"protected": [3, 5]}, CheckpointError, "other tasks or data"),
        ({"protected": [3, 5, 1]}, CheckpointError, "other tasks or data"),
        ({"protected": [5, 3, 9]}, CheckpointError, "other tasks or data"),
        ({"templates": ["a {}."]}, CheckpointError, "other tasks or data.*same data, classes and protected tasks"),
        ({"num_test": 70}, CheckpointError, "other tasks or data: its train split"),
        ({"data_seed": 1}, CheckpointError, "other tasks or data"),
        ({"num_train": 300}, CheckpointError, "other tasks or data"),
        ({"caption_templates": ["a {}."]}, DataError, "other pairs or labelled images"),
    ],
    ids=str,
)
def test_other_tasks_or_data_are_refused(data, error, message, saved, make_trainer):
    seed_everything(5, verbose=False)
    module = jobs.pairs_module()
    before = {n: p.clone() for n, p in module.network.named_parameters()}
    made = jobs.pairs_data({"data": data})
    with pytest.raises(error, match=message):
        make_trainer(max_epochs=2).fit(module, made, ckpt_path=saved[0])
    if "caption" not in str(data):
        assert all(torch.equal(p, before[n]) for n, p in module.network.named_parameters())
        assert all(s.rows.isnan().all() or not s.rows.any() for s in module.dual_states().values())
    assert not any("old_loss" in t.columns for t in made.tables.values())


def test_a_checkpoint_is_evaluated_against_the_old_model(saved, make_trainer):
    path, report = saved
    seed_everything(5, verbose=False)
    (found,) = make_trainer().test(jobs.pairs_module(), jobs.pairs_data({}), ckpt_path=path, verbose=False)
    own = {f"test_{k}": v for k, v in report["test"].items() if isinstance(v, float)}
    own |= {f"test_h/{k}": v for k, v in report["test"]["constraints"].items()}
    assert {"test_delta_target", "test_worst_change", "test_change/nine", "test_h/nine"} <= own.keys()
    assert found == pytest.approx({k: float(v) for k, v in own.items()} | {"test_vacuous": 0.0}, abs=1e-6)
    assert found["test_worst_violation"] > 1e-4
    (found,) = make_trainer().validate(jobs.pairs_module(), jobs.pairs_data({}), ckpt_path=path, verbose=False)
    assert found["train_delta_target"] == pytest.approx(report["train"]["delta_target"])


def test_a_checkpoint_is_not_evaluated_on_other_tasks(saved, make_trainer):
    with pytest.raises(CheckpointError, match="other tasks or data"):
        make_trainer().test(
            jobs.pairs_module(), jobs.pairs_data({"data": {"protected": [3]}}), ckpt_path=saved[0], verbose=False
        )


def test_images_are_predicted_without_an_old_model(saved, make_trainer):
    (first, *_) = make_trainer().predict(jobs.pairs_module(), jobs.pairs_data({}), ckpt_path=saved[0])
    assert first["output"].shape == (60, 10)


def test_without_an_old_model_nothing_is_compared(make_trainer):
    with pytest.raises(DataError, match=r"'protected_loss'.*a checkpoint of a fit"):
        make_trainer().test(jobs.pairs_module(), jobs.pairs_data({}), verbose=False)
    (found,) = make_trainer().test(jobs.pairs_module(constraints=[]), jobs.pairs_data({}), verbose=False)
    assert set(found) == {"test_accuracy", "test_target_accuracy", "test_protected_accuracy"}


# ---------------------------------------------------------------------------------------------------------- processes

CLOSE = {"rtol": 1e-4, "atol": 1e-5}  # float32


def run(job, size):
    return values(launch(jobs.fit_pairs, size, job))


def assert_same(several, one):
    for found in several:
        torch.testing.assert_close(found["weights"], one["weights"], **CLOSE)
        torch.testing.assert_close(found["old"], one["old"], **CLOSE, equal_nan=True)
        assert found["global_step"] == one["global_step"]
    torch.testing.assert_close(jobs.whole_rows(several), jobs.whole_rows([one]), **CLOSE, equal_nan=True)


@pytest.mark.parametrize(
    ("algorithm", "learn", "layout"),
    [
        ("SGD", "no", "replicated"),
        ("SONEX", "per_sample", "sharded"),
        ("ALEXR2", "global", "replicated"),
        ("MSVR", "no", "replicated"),
    ],
)
def test_two_processes_are_one(algorithm, learn, layout):
    """The same union batches of pairs and of protected images, with the same captions."""
    job = {"module": {"algorithm": algorithm, "learn": learn, "state_layout": layout}}
    (one,) = run(job, 1)
    several = run(job, 2)
    assert_same(several, one)
    for found in several:
        assert found["logged"] == pytest.approx(one["logged"], rel=1e-3, abs=1e-4)
    assert one["old"]["train"]["old_loss"].isfinite().all()
    assert one["logged"]["train_worst_violation"] > 1e-3


def test_two_processes_continue_what_one_began(tmp_path):
    job = {"module": {"algorithm": "ALEXR2", "learn": "per_sample"}}
    (one,) = run({**job, "save": (1, 1, str(tmp_path / "at.ckpt"))}, 1)
    assert_same(run({**job, "resume": str(tmp_path / "at.ckpt"), "seed": 7}, 2), one)


# ----------------------------------------------------------------------------------------------------- damaged images


@pytest.fixture
def folder(tmp_path):
    """Images of four classes, each with an own colour; some of them are damaged."""
    rows = []
    for split, size in {"train": 12, "test": 5}.items():
        for number, name in enumerate(["cat", "dog", "owl", "fox"]):
            for i in range(size):
                file = f"{split}-{name}-{i}.png"
                Image.new("RGB", (16, 16), (60 * number, 5 * i, 90)).save(tmp_path / file)
                rows.append((file, split, name))
    pd.DataFrame(rows, columns=["file_name", "split", "label"]).to_csv(tmp_path / "metadata.csv", index=False)
    for file in DAMAGED:
        (tmp_path / file).write_bytes(b"no image")
    return tmp_path


DAMAGED = ["train-cat-3.png", "train-cat-7.png", "train-owl-11.png", "train-fox-0.png", "test-dog-0.png"]


def animals(folder, **changes):
    settings = {"model": "tiny", "root": str(folder), "target": ["cat"], "batch_size": 6, "samples_per_task": 4}
    settings |= {"templates": ["a {}."], "augment": False, "eval_batch_size": 7, "num_batches": 6, "corrupt": "skip"}
    return {"data": settings | changes}


@pytest.mark.filterwarnings("ignore:Row .* cannot be read")
@pytest.mark.parametrize("algorithm", ["SONEX", "ALEXR2", "MSVR"])
def test_damaged_images_are_left_out(algorithm, folder):
    """Batches of two processes get shorter by different numbers; all is as in one process."""
    job = {**animals(folder), "module": {"algorithm": algorithm}}
    (one,) = run(job, 1)
    several = run(job, 2)
    assert_same(several, one)
    assert one["skipped"] == {"train": 4, "test": 1, "pairs": 2}
    names = pd.read_csv(folder / "metadata.csv")
    for split in ("train", "test"):
        files = names["file_name"][names["split"] == split]
        damaged = torch.tensor(files.isin(DAMAGED).to_numpy())
        assert torch.equal(one["old"][split]["old_loss"].isnan(), damaged)
        assert torch.equal(one["old"][split]["protected_loss"].isnan(), damaged)
    rows = jobs.whole_rows([one])["problem.terms.0.state"]
    assert rows.isfinite().all(1).tolist() == [i not in (3, 7) for i in range(12)]
    assert one["logged"]["train_worst_violation"] != 0


@pytest.mark.filterwarnings("ignore:Row .* cannot be read")
def test_references_are_those_of_the_images_that_can_be_read(folder, make_trainer):
    """The row of a damaged image does not shift the rows behind it."""
    data, module = jobs.pairs_data(animals(folder)), jobs.pairs_module()
    watch = Watch()
    make_trainer(max_epochs=1, callbacks=[watch]).fit(module, data)
    for split in ("train", "test"):
        table = data.tables[split]
        y = table.columns["y"]
        for i in (j for j in range(len(table)) if not table.columns["old_loss"][j].isnan()):
            with torch.no_grad():
                logits = watch.old.eval()({"x": table[i]["x"].unsqueeze(0)})
            assert table.columns["old_loss"][i].item() == pytest.approx(
                cross_entropy(logits, y[i : i + 1]).item(), 1e-4
            )
    assert {v for figures in watch.start.values() for k, v in figures.items() if k.startswith(("h/", "change"))} == {0}
