"""Continual learning of CLIP under a Trainer: all algorithms, resuming, the old model, several processes."""

import copy
import json
import re
from pathlib import Path

import pandas as pd
import pytest
import torch
import yaml
from lightning.pytorch import Callback, Trainer, seed_everything
from PIL import Image
from torch.nn.functional import cross_entropy

from fcco_lightning import CheckpointError, CLIPModel, ConfigError, DataError, Execution, UniformSampling, cli
from fcco_lightning.reports import Report
from tests import jobs
from tests.components import CLIP, DIGITS, composed
from tests.conftest import QUIET
from tests.launch import launch, values
from tests.training.conftest import quick

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
    """Keeps the old model, its figures before the first batch, and the change that is measured on that batch."""

    def __init__(self):
        self.start, self.first_change = {}, None

    def setup(self, trainer, module, stage):
        self.old = copy.deepcopy(module.network)

    def on_train_start(self, trainer, module):
        self.old.adapt(trainer.datamodule)
        self.old.load_state_dict(module.network.state_dict())
        for split, loader in trainer.datamodule.evaluation_loaders().items():
            self.start[split] = module.summarise(split, module.evaluate(loader))

    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        if self.first_change is None:
            with torch.no_grad():
                functions = module.engine.functions
                outputs = functions.outputs(batch)
                self.first_change = module.constraints[0].measure(outputs["protected"], batch["protected"])[1]


@pytest.mark.parametrize(("algorithm", "learn"), quick(CASES, ("SONEX", "per_sample"), ("ALEXR2", "global")))
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
    change, weight, *_ = watch.first_change
    assert weight.tolist() == [True] * 3
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
        counts = {n: slice(None) for n in expected} | {"protected_loss": table.columns["task"] >= 0}
        found, expected = ({n: of[n][at] for n, at in counts.items()} for of in (table.columns, expected))
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    old = dict(watch.old.named_parameters())
    assert {n for n, p in module.network.named_parameters() if torch.equal(p, old[n])} == {"model.logit_scale"}
    assert all(v.isfinite() for v in trainer.callback_metrics.values())
    assert abs(trainer.callback_metrics["train_loss_change/three"]) > 1e-6
    if learn == "global":
        assert module.objective.temperature().item() != pytest.approx(0.1, abs=1e-7)
    if learn == "per_sample":
        rows = module.problem.row_parameters.state.rows
        assert (rows.nan_to_num(0.1) - 0.1).abs().max() > 1e-5


@pytest.mark.slow
def test_the_old_model_is_measured_in_the_precision_of_the_run(make_trainer):
    watch = Watch()
    trainer = make_trainer(max_epochs=1, precision="bf16-mixed", callbacks=[watch])
    trainer.fit(jobs.pairs_module(), jobs.pairs_data({}))
    assert {f[f"{kind}/{name}"] for f in watch.start.values() for kind in ("h", "change") for name in TASKS} == {0.0}
    assert trainer.callback_metrics["train_worst_violation"] != 0


@pytest.mark.slow
def test_recomputing_in_the_backward_pass_changes_nothing(make_trainer):
    """SONEX needs inner values at the previous weights, but no gradient there, as MSVR does."""
    trained = []
    for recompute in (False, True):
        seed_everything(0, verbose=False)
        module = jobs.pairs_module(network=CLIPModel("tiny", grad_checkpointing=recompute))
        make_trainer(max_epochs=1).fit(module, jobs.pairs_data({}))
        trained.append(dict(module.network.named_parameters()))
    torch.testing.assert_close(*trained, rtol=1e-5, atol=1e-6)
    module = jobs.pairs_module("MSVR", network=CLIPModel("tiny", grad_checkpointing=True))
    with pytest.raises(ConfigError, match="grad_checkpointing=True of CLIPModel cannot be combined with MSVR"):
        make_trainer(max_epochs=1).fit(module, jobs.pairs_data({}))


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


def old_columns(trainer):
    tables = trainer.datamodule.tables
    names = ("old_loss", "old_correct", "protected_loss")
    return {split: {n: tables[split].columns[n] for n in names} for split in ("train", "test")}


@pytest.mark.parametrize(("algorithm", "learn"), quick(RESUMED, ("SONEX", "per_sample")))
def test_resume_is_bit_for_bit(algorithm, learn, make_trainer, tmp_path):
    """In the middle of an epoch and of an inner loop; from other weights, with the old model's losses kept."""

    def fit(seed, callbacks, ckpt_path=None):
        seed_everything(seed, verbose=False)
        trainer = make_trainer(max_epochs=2, callbacks=callbacks)
        data = jobs.pairs_data({"data": {"batches": UniformSampling(16, num_batches=5)}})
        trainer.fit(jobs.pairs_module(algorithm, learn), data, ckpt_path=ckpt_path)
        return trainer

    path, batches, rest = tmp_path / "at.ckpt", Batches(), Batches()
    whole = fit(0, [batches, jobs.save_at(1, 1, path)])
    resumed = fit(9, [rest], path)
    jobs.require_same(resumed, whole)
    assert sum(name.endswith("state.rows") for name in jobs.everything(whole)) == 2 + (learn == "per_sample")
    assert (len(batches.seen), len(rest.seen)) == (10, 3)
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
    folder = tmp_path_factory.mktemp("saved")
    report = Report(pictures=False, table=False, folder=str(folder))
    trainer = Trainer(max_epochs=1, accelerator="cpu", callbacks=[report], **QUIET)
    with torch.random.fork_rng():
        seed_everything(0, verbose=False)
        trainer.fit(jobs.pairs_module(), jobs.pairs_data({}))
    trainer.callbacks.remove(report)  # or Lightning would ask for it wherever the checkpoint is read
    trainer.save_checkpoint(folder / "a.ckpt")
    return folder / "a.ckpt", report.report


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"protected": [5, 3, 9]}, "other tasks or data"),
        ({"protected": [3, 5, 2]}, "other tasks or data.*same data, classes, protected tasks and loss"),
        ({"num_test": 70}, "other tasks or data: its train split"),
        ({"data_seed": 1}, "other tasks or data"),
        ({"general": 0.5}, "another data set, split"),
    ],
    ids=str,
)
def test_other_tasks_or_data_are_refused(data, message, saved, make_trainer):
    seed_everything(5, verbose=False)
    module = jobs.pairs_module()
    before = {n: p.clone() for n, p in module.network.named_parameters()}
    made = jobs.pairs_data({"data": composed({"num_train": 200, "num_test": 60} | data, DIGITS)})
    with pytest.raises(CheckpointError, match=message):
        make_trainer(max_epochs=2).fit(module, made, ckpt_path=saved[0])
    assert all(torch.equal(p, before[n]) for n, p in module.network.named_parameters())
    assert all(s.rows.isnan().all() or not s.rows.any() for s in module.dual_states().values())
    assert not any("old_loss" in t.columns for t in made.tables.values())


@pytest.mark.slow
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


def test_workers_of_a_test_loader_know_the_old_model(saved, make_trainer):
    data = jobs.pairs_data({"data": {"num_workers": 1}})
    (found,) = make_trainer().test(jobs.pairs_module(), data, ckpt_path=saved[0], verbose=False)
    assert found["test_delta_target"] == pytest.approx(saved[1]["test"]["delta_target"])


def test_old_losses_of_another_scale_are_refused(saved, make_trainer):
    module = jobs.pairs_module(network=CLIPModel("tiny", class_temperature=0.5))
    with pytest.raises(CheckpointError, match=r"with another loss: it is .*CrossEntropyLoss.* class_temperature None"):
        make_trainer().test(module, jobs.pairs_data({}), ckpt_path=saved[0], verbose=False)


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

CLOSE = {"rtol": 1e-6, "atol": 1e-7}  # networks in float64; rows of constraints and temperatures are float32
JOBS = {
    "SONEX": {"module": {"algorithm": "SONEX", "learn": "per_sample", "execution": Execution(state_layout="sharded")}},
    "resumed": {"module": {"algorithm": "ALEXR2", "learn": "per_sample"}},
}
DAMAGED = ["train-cat-3.png", "train-cat-7.png", "train-owl-11.png", "train-fox-2.png", "test-dog-0.png"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Images of four classes, each with a colour of its own; some of them are damaged."""
    path, rows = tmp_path_factory.mktemp("animals"), []
    for split, size in {"train": 20, "test": 5}.items():
        for number, name in enumerate(["cat", "dog", "owl", "fox"]):
            for i in range(size - 3 * (name == "cat")):  # pairs are these and one of each other
                rows.append((f"{split}-{name}-{i}.png", split, name))
                Image.new("RGB", (16, 16), (60 * number, 5 * i, 90)).save(path / rows[-1][0])
    pd.DataFrame(rows, columns=["file_name", "split", "label"]).to_csv(path / "metadata.csv", index=False)
    for file in DAMAGED:
        (path / file).write_bytes(b"no image")
    return path


def animals(folder, **changes):
    return {"data": composed(animal_settings(folder) | changes, CLIP)}


def animal_settings(folder):
    settings = {"model": "tiny", "root": str(folder), "target": ["cat"], "augment": False, "eval_batch_size": 7}
    settings |= {"batch_size": 6, "samples_per_task": 4, "num_batches": 6, "corrupt": "skip", "pair_corrupt": "skip"}
    settings |= {"of_others": 0.05}
    return settings | {"templates": ["a {}."], "caption_templates": ["a {}.", "one {}."]}


def in_float64(job):
    return {**job, "trainer": {"precision": "64-true"}, "epochs": 1}


@pytest.fixture(scope="module")
def damaged(folder):
    """A job on the images of which some cannot be read, and what has come of it in one process."""
    job = in_float64({"module": {"algorithm": "MSVR"}, **animals(folder)})
    with pytest.warns(UserWarning, match="cannot be read"):
        return job, jobs.fit_all_pairs({"damaged": job})["damaged"]


@pytest.fixture(scope="module")
def ran(damaged, tmp_path_factory):
    """All jobs in one process, and then in two."""
    path = str(tmp_path_factory.mktemp("between") / "at.ckpt")
    many = {name: in_float64(job) for name, job in JOBS.items()}
    begun = many.pop("resumed")
    one = jobs.fit_all_pairs(many | {"resumed": {**begun, "save": (0, 1, path)}})
    again = {"damaged": damaged[0], "resumed": {**begun, "resume": path, "seed": 7}}
    return one | {"damaged": damaged[1]}, values(launch(jobs.fit_all_pairs, 2, many | again))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Row .* cannot be read")
def test_every_batch_may_lack_images_that_cannot_be_read(folder):
    found = jobs.fit_pairs({**animals(folder, batch_size=20, num_batches=4), "epochs": 1})  # all pairs in each
    assert found["skipped"]["pairs"] == 2
    assert found["global_step"] == 4


@pytest.mark.slow
@pytest.mark.parametrize("job", [*JOBS, "damaged"])
def test_two_processes_are_one(job, ran):
    """The same union batches, captions and old model; a run goes on in two that began in one; uneven batches."""
    one, several = ran[0][job], [outcomes[job] for outcomes in ran[1]]
    for found in several:
        torch.testing.assert_close(found["weights"], one["weights"], **CLOSE)
        torch.testing.assert_close(found["old"], one["old"], **CLOSE, equal_nan=True)
        assert found["global_step"] == one["global_step"]
        assert found["logged"] == pytest.approx(one["logged"], rel=1e-4, abs=1e-6)
    torch.testing.assert_close(jobs.whole_rows(several), jobs.whole_rows([one]), **CLOSE, equal_nan=True)
    assert abs(one["logged"]["train_worst_violation"]) > 1e-3
    assert {found["processes"] for found in several} == {2}
    if job == "SONEX":
        for name in ("problem.terms.0.state", "problem.row_parameters.state"):
            assert [len(found["rows"][name][2]) for found in several] == [28, 28]


def test_damaged_images_are_left_out(damaged, folder):
    """Neither trained on nor measured; the rows of the others are those of their images."""
    _, found = damaged
    assert found["skipped"] == {"train": 4, "test": 1, "pairs": 2}
    names = pd.read_csv(folder / "metadata.csv")
    for split in ("train", "test"):
        damaged = torch.tensor(names["file_name"][names["split"] == split].isin(DAMAGED).to_numpy())
        for column in ("old_loss", "protected_loss"):
            assert torch.equal(found["old"][split][column].isnan(), damaged)
    rows = jobs.whole_rows([found])["problem.terms.0.state"]
    assert [i for i in range(12) if rows[i].isnan().all() or not rows[i].any()] == [3, 7]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Row .* cannot be read")
def test_references_are_those_of_the_images_that_can_be_read(folder, make_trainer):
    """The row of a damaged image does not shift the rows behind it."""
    data, module, watch = jobs.pairs_data(animals(folder)), jobs.pairs_module(), Watch()
    make_trainer(max_epochs=1, callbacks=[watch]).fit(module, data)
    for split in ("train", "test"):
        table = data.tables[split]
        y, old = table.columns["y"], table.columns["old_loss"]
        for i in old.isfinite().nonzero().flatten().tolist():
            with torch.no_grad():
                logits = watch.old.eval()({"x": table[i]["x"].unsqueeze(0)})
            assert old[i].item() == pytest.approx(cross_entropy(logits, y[i : i + 1]).item(), rel=1e-4)
    assert {v for figures in watch.start.values() for k, v in figures.items() if k.startswith(("h/", "change"))} == {0}


# ------------------------------------------------------------------------------------------------------- command line

BASE = {
    "seed_everything": 0,
    "trainer": {"max_epochs": 1, "accelerator": "cpu", "enable_progress_bar": False},
    "model": {
        "network": {"class_path": "CLIPModel", "init_args": {"name": "tiny"}},
        "objective": {"class_path": "GlobalContrastive", "init_args": {"tau": 0.1}},
        "constraints": [{"class_path": "NonForgetting"}],
        "algorithm": {"class_path": "SONEX"},
    },
}
SMALL = {"target": [8], "protected": [3, 5, 9], "num_train": 200, "num_test": 60, "batch_size": 16, "num_batches": 4}
SMALL |= {"samples_per_task": 4, "eval_batch_size": 64}
SMALL_DIGITS = {"class_path": "DigitsCLIPDataModule", "init_args": composed(SMALL, DIGITS, plain=True)}


@pytest.fixture
def command(tmp_path, monkeypatch, capsys):
    """Runs `fcco fit` with a configuration and further arguments: status and what it wrote to stderr."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments, data=SMALL_DIGITS):
        Path("config.yaml").write_text(yaml.safe_dump({**BASE, "data": data}))
        try:
            status = cli.run(["fit", "--config", "config.yaml", *map(str, arguments)])
        except SystemExit as stop:
            status = stop.code
        return status, capsys.readouterr().err

    return call


def refused(command, *arguments, **data):
    """The only message of a command that must fail and leave nothing behind."""
    before = set(Path.cwd().rglob("*"))
    status, text = command(*arguments, **data)
    assert status == (2 if "ConfigError: " in text else 1), text
    assert "Traceback" not in text
    assert text.count("fcco: ") == 1
    written = {p.suffix for p in set(Path.cwd().rglob("*")) - before if p.is_file()}
    assert written <= {".yaml", ".csv"}  # of the run's configuration, and of the logger
    assert "Error: " in text.splitlines()[-1]  # one line
    return text.splitlines()[-1]


@pytest.mark.filterwarnings("ignore:.*exists and is not empty")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--data.model.name=ViT-B-32"], "image_size is 224, that of 'tiny' is 16.*data.model.name the same"),
        (["--model.algorithm=ALEXR2"], "ALEXR2 needs a convex outer function.*objective_gamma"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_mistakes(arguments, message, command):
    """The parts' own tests have all their messages."""
    assert re.search(message, refused(command, *arguments))


@pytest.mark.filterwarnings("ignore:Row .* cannot be read")
def test_an_image_that_cannot_be_read(command, folder):
    settings = animal_settings(folder) | {"num_batches": 2, "corrupt": "error"}
    data = {"class_path": "ContinualCLIPDataModule", "init_args": composed(settings, CLIP, plain=True)}
    text = refused(command, data=data)
    named = r"train-(cat|owl|fox)-\d+\.png' cannot be read.*set images\.corrupt='skip' to leave it out\."
    assert re.search(named, text)


@pytest.mark.filterwarnings("ignore:The number of training batches")
def test_the_command_trains_and_reports(command):
    status, text = command("--trainer.limit_train_batches=2")
    assert status == 0, text
    report = json.loads(next(Path.cwd().rglob("report.json")).read_text())
    assert {row["name"] for row in report["test"]["tasks"]} == {"target", *TASKS}
    assert list(Path.cwd().rglob("continual.png"))


@pytest.fixture
def colours(tmp_path):
    """Data of a folder for every class, without a table and without pairs from elsewhere."""
    for name, colour in {"red": (250, 0, 0), "green": (0, 250, 0), "blue": (0, 0, 250)}.items():
        for number in range(15):
            path = Path(tmp_path, "colours", "test" if number % 3 == 2 else "train", name, f"{number}.png")
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (16, 16), tuple(max(0, part - number) for part in colour)).save(path)
    settings = {"model": "tiny", "root": "colours", "target": ["green"], "protected": [], "augment": False}
    settings |= {"batch_size": 10}
    return {"class_path": "ContinualCLIPDataModule", "init_args": composed(settings, CLIP, plain=True)}


@pytest.mark.slow
def test_images_of_the_target_alone_are_refused(command, colours):
    assert "All 10 pairs have the same captions" in refused(command, "--model.constraints=[]", data=colours)


@pytest.mark.slow
def test_with_images_of_others_the_target_is_learnt(command, colours):
    quick = ["--trainer.max_epochs=8", "--trainer.check_val_every_n_epoch=8", "--report.folder=out"]
    quick += ["--model.optimizer.init_args.lr=0.001", "--data.pairs.of_others=1", "--model.constraints=[]"]
    status, text = command(*quick, data=colours)
    assert status == 0, text
    figures = json.loads(Path("out/report.json").read_text())
    assert figures["test"]["target_accuracy"] == 1
    assert ("has not improved" in figures["headline"]) == (figures["test"]["delta_target"] <= 0)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*exists and is not empty")
@pytest.mark.filterwarnings("ignore:The dirpath has changed")
def test_the_certificate_is_of_pairs_and_of_protected_images_together(command):
    """Of a run and, to rounding, of its checkpoint."""
    on = ["--diagnostics.enabled=true", "--trainer.log_every_n_steps=1", "--checkpoint.dirpath=kept"]
    assert command(*on, "--report.enabled=false", "--diagnostics.folder=a")[0] == 0
    found = json.loads(Path("a/diagnostics.json").read_text())
    assert found["best"]["gradient"] > 0
    assert found["best"]["stationarity"] <= found["best"]["gradient"]
    assert {row["constraint"] for row in found["constraints"]} == set(TASKS)
    again = ["test", "--config", "config.yaml", "--ckpt_path", "kept/last.ckpt", "--diagnostics.enabled=true"]
    assert cli.run([*again, "--diagnostics.folder=b"]) == 0
    assert json.loads(Path("b/diagnostics.json").read_text())["best"] == pytest.approx(found["best"])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*exists and is not empty")
@pytest.mark.filterwarnings("ignore:The dirpath has changed")
def test_the_certificate_takes_temperatures_of_single_pairs_where_they_are_kept(command, capsys):
    """At the end of a fit, and of its checkpoint once it is continued; a test does not load them."""
    on = ["--diagnostics.enabled=true", "--checkpoint.dirpath=kept", "--report.enabled=false"]
    on += ["--model.objective.init_args.learn=per_sample", "--trainer.log_every_n_steps=1"]
    assert command(*on, "--diagnostics.folder=a")[0] == 0
    again = ["--config", "config.yaml", "--ckpt_path", "kept/last.ckpt", *on, "--diagnostics.folder=b"]
    assert cli.run(["test", *again]) == 2
    assert "the certificate of GlobalContrastive needs the tau of every training sample" in capsys.readouterr().err
    assert cli.run(["fit", *again]) == 0
    first, second = (json.loads(Path(folder, "diagnostics.json").read_text()) for folder in "ab")
    assert second["own"] == pytest.approx(first["own"])
    assert first["own"]["gradient"] > 0
