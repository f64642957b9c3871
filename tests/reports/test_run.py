"""A run as an object, and its state after an interruption."""

import logging
import os
import signal
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import html5lib
import pytest
import torch
from lightning.pytorch import Callback, Trainer, seed_everything
from lightning.pytorch.callbacks import RichProgressBar, TQDMProgressBar
from lightning.pytorch.loggers import CSVLogger

from fcco_lightning import (
    AveragePrecision,
    CVaRPartialAUC,
    FCCOModule,
    KLPartialAUC,
    SyntheticDataModule,
    TabularMLP,
    load_run,
)
from fcco_lightning.errors import CheckpointError, DataError
from fcco_lightning.reports import Report
from fcco_lightning.training import Checkpoints, Preemption, progress_line

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*exists and is not empty"),
    pytest.mark.filterwarnings("ignore:The dirpath has changed"),
]


UPDATES = 3


class Press(Callback):
    """Ctrl-C, so many times in a hook after so many updates."""

    def __init__(self, times, hook="on_train_batch_end", updates=1):
        self.times, self.updates = times, updates
        setattr(self, hook, self.press)

    def press(self, trainer, *_):
        if trainer.global_step == self.updates:
            for _ in range(self.times):
                os.kill(os.getpid(), signal.SIGINT)


def fit(*callbacks, parts=None, **options):
    seed_everything(0, verbose=False)
    module, report = FCCOModule(TabularMLP([4]), **(parts or {})), Report(table=False)
    saver = Checkpoints(save_last=True, save_on_train_epoch_end=True)
    trainer = Trainer(
        max_epochs=1, callbacks=[Preemption(), report, saver, *callbacks], logger=CSVLogger("runs", name=""),
        accelerator="cpu", enable_progress_bar=False, enable_model_summary=False, log_every_n_steps=1,
    )  # fmt: skip
    trainer.fit(module, SyntheticDataModule(num_train=400, num_test=100), **options)
    return module, report


@pytest.mark.parametrize("alone", [False, True])
def test_a_run_says_what_may_well_achieve_more(alone):
    """Of an objective that was seen not to pay, in the line that says what was achieved."""
    objective = AveragePrecision(cross_entropy=0 if alone else 1)
    _, report = fit(parts={"objective": objective, "pretrain": None})
    line = report.run.headline
    assert line.startswith("On the test split: ")
    assert line.endswith("or with --model.objective CrossEntropy.") == alone


@pytest.mark.parametrize("make", [CVaRPartialAUC, KLPartialAUC])
def test_partial_auc_of_raw_scores_did_not_pay_and_says_so(make):
    arguments = {"max_fpr": 0.1} if make is CVaRPartialAUC else {}
    default, raw = make(**arguments), make(**arguments, sigmoid=False)
    default.recommended = raw.recommended = True
    assert default.instead is None
    assert raw.instead.endswith("or with --model.objective CrossEntropy.")


def test_a_run_shows_its_report_log_and_pictures():
    module, report = fit()
    run = report.run
    assert run.report["test"]["auc"] == pytest.approx(report.report["test"]["auc"])
    assert run.headline.startswith("On the test split: AUC")
    assert len(run.metrics["train_objective"].dropna()) == len(run.metrics["step"].unique())
    assert run.checkpoint.resolve() == Path("runs/version_0/checkpoints/last.ckpt").resolve()
    x = torch.zeros(2, next(module.network.parameters()).shape[1])
    assert torch.equal(run.load(TabularMLP([4]))(x), module.network.eval()(x))
    assert repr(run).splitlines()[:2] == ["Run version_0", run.headline]
    fragment = html5lib.HTMLParser(namespaceHTMLElements=False).parseFragment(run._repr_html_())
    page = ElementTree.ElementTree(fragment).getroot()
    assert [image.get("alt") for image in page.iter("img")] == [p.stem.replace("_", " ") for p in run.pictures]
    assert page.find(".//h2").text == "Summary of the run"
    assert not list(page.iter("style"))  # it would change the page around it


@pytest.mark.parametrize("best", [0, 1])
def test_the_checkpoint_of_a_report_is_that_of_its_weights(best, tmp_path):
    """One of better weights is another one: of two epochs the figure calls the first or the last the best."""

    class Figure(Callback):
        def on_train_epoch_end(self, trainer, module):
            module.log("figure", float(trainer.current_epoch == best))

    seed_everything(0, verbose=False)
    saver, report = Checkpoints(tmp_path, monitor="figure", mode="max"), Report(table=False)
    trainer = Trainer(
        max_epochs=2, callbacks=[Figure(), report, saver], logger=CSVLogger("runs", name=""), accelerator="cpu",
        enable_progress_bar=False, enable_model_summary=False, log_every_n_steps=1,
    )  # fmt: skip
    module = FCCOModule(TabularMLP([4]))
    trainer.fit(module, SyntheticDataModule(num_train=400, num_test=100))
    if best == 0:
        assert report.run.checkpoint is None
        with pytest.raises(CheckpointError, match=r"no checkpoint of the weights that its report describes.*save_last"):
            report.run.load(TabularMLP([4]))
        return
    x = torch.zeros(2, next(module.network.parameters()).shape[1])
    assert torch.equal(report.run.load(TabularMLP([4]))(x), module.network.eval()(x))


def test_a_folder_without_a_run_is_named(tmp_path):
    with pytest.raises(DataError, match="holds no run"):
        load_run(tmp_path)
    (tmp_path / "metrics.csv").write_text("step,train_objective\n0,1.5\n")
    run = load_run(tmp_path)
    assert run.headline == "This run has not ended."
    assert run.metrics["train_objective"].tolist() == [1.5]
    with pytest.raises(CheckpointError, match="no checkpoint"):
        run.load()


@pytest.mark.parametrize(
    "press",
    [
        Press(1),
        *(
            pytest.param(stop, marks=pytest.mark.slow)
            for stop in (
                Press(1, "on_before_optimizer_step", UPDATES - 1),  # in the last batch, behind its exchange
                Press(1, "on_validation_end", UPDATES),
            )
        ),
    ],
    ids=["after an update", "in the last update", "in the last validation"],
)
def test_an_interrupted_run_goes_on_bit_for_bit(press, caplog):
    module, _ = fit()
    assert module.trainer.global_step == UPDATES
    handler = signal.getsignal(signal.SIGINT)
    with caplog.at_level(logging.INFO), pytest.raises(SystemExit):
        fit(press)
    assert signal.getsignal(signal.SIGINT) is handler
    run = load_run("runs/version_1")
    assert run.checkpoint.name == "interrupted.ckpt"
    assert f"Interrupted: saved {run.checkpoint}. Continue with" in caplog.text
    assert run.headline == f"This run has not ended. Continue from {run.checkpoint}."
    assert not run.report
    resumed, report = fit(ckpt_path=str(run.checkpoint))
    assert all(torch.equal(a, b) for a, b in zip(module.parameters(), resumed.parameters(), strict=True))
    assert report.run.report["test"]["auc"] > 0.4


def test_a_second_interrupt_ends_at_once():
    with pytest.raises(SystemExit):
        fit(Press(2))
    assert load_run("runs/version_0").checkpoint is None


@pytest.mark.parametrize(("notebook", "bar"), [(True, TQDMProgressBar), (False, RichProgressBar)])
def test_a_notebook_without_widgets_has_a_bar_that_is_seen(notebook, bar, monkeypatch, capsys):
    monkeypatch.setattr(progress_line, "get_console", lambda: SimpleNamespace(is_jupyter=notebook))
    monkeypatch.setattr(progress_line, "find_spec", lambda name: None)
    trainer = Trainer(max_steps=1, logger=False, enable_checkpointing=False, enable_model_summary=False)
    trainer.fit(FCCOModule(TabularMLP([4])), SyntheticDataModule(num_train=200, num_test=100))
    assert type(trainer.progress_bar_callback) is bar
    assert "objective" in capsys.readouterr().out
