"""The progress bar in a terminal of 80 columns."""

import fcntl
import os
import pty
import re
import struct
import sys
import termios
import threading
from contextlib import contextmanager

import pytest
import rich
from lightning.pytorch.callbacks import RichProgressBar, TQDMProgressBar

from fcco_lightning import Splits
from tests.tables import make_data

CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@contextmanager
def terminal(monkeypatch):
    """A pseudo-terminal of 80 columns in place of the standard output; gives the pieces of lines written, at the end.

    A context, since pytest itself sets the standard output between a test's fixtures and the test.
    """
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    written, pieces = bytearray(), []

    def read():
        while True:
            try:
                written.extend(os.read(master, 65536))
            except OSError:  # closed at the other end
                return

    reader = threading.Thread(target=read)
    reader.start()
    with monkeypatch.context() as patch, os.fdopen(slave, "w") as out:
        patch.setenv("COLUMNS", "80")
        patch.setenv("TERM", "xterm-256color")
        patch.setattr(sys, "stdout", out)
        yield pieces
    reader.join()
    os.close(master)
    rich.reconfigure()
    pieces += [CONTROL.sub("", piece) for piece in re.split(r"[\r\n]|\x1b\[1?A", written.decode())]


@pytest.mark.parametrize("bar", [RichProgressBar, TQDMProgressBar])
@pytest.mark.parametrize("held_out", [0, 0.2])
def test_one_line_with_three_figures(bar, held_out, monkeypatch, make_module, make_trainer):
    trainer = make_trainer(max_epochs=3, enable_progress_bar=True, callbacks=[bar()], log_every_n_steps=1)
    with terminal(monkeypatch) as pieces:
        trainer.fit(make_module(), make_data(splits=Splits(val_fraction=held_out)))
    logged = {name: float(value) for name, value in trainer.progress_bar_metrics.items()}
    shown = [piece for piece in pieces if piece.strip()]
    assert max(map(len, shown)) <= 80
    with_figures = [piece for piece in shown if "max h" in piece or "AUC" in piece]
    assert len(with_figures) > 5
    split = "val" if held_out else "train"
    name = "val AUC" if held_out else "AUC"
    for piece in with_figures:  # all on the line of the bar, to its end
        assert re.match(rf"Epoch \d.*\d/\d.*objective.*max h.*{name}[=:] ?\d\.\d\d\d\]?\s*$", piece), piece
    objective, h, auc = map(float, re.findall(r"[-+]?\d+\.\d{3}", with_figures[-1]))
    expected = logged["train_objective"], logged[f"{split}_worst_violation"], logged[f"{split}_auc"]
    assert (objective, h, auc) == pytest.approx(expected, abs=6e-4)


def test_epochs_without_a_limit(small_data, make_module, make_trainer, monkeypatch):
    trainer = make_trainer(max_epochs=-1, max_steps=2, enable_progress_bar=True, callbacks=[RichProgressBar()])
    with terminal(monkeypatch) as pieces:
        trainer.fit(make_module(), small_data)
    assert any(re.match(r"Epoch 0 ", piece) for piece in pieces)
    assert not any("/-2" in piece for piece in pieces)


def test_a_bar_of_ones_own_is_left_as_it_is(small_data, make_module, make_trainer):
    class Own(TQDMProgressBar):
        BAR_FORMAT = "{n_fmt}"

        def get_metrics(self, trainer, pl_module):
            return {"mine": 1}

    bar = Own()
    trainer = make_trainer(max_epochs=1, enable_progress_bar=True, callbacks=[bar], limit_train_batches=1)
    trainer.fit(make_module(), small_data)
    assert bar.BAR_FORMAT == "{n_fmt}"
    assert bar.get_metrics(trainer, trainer.lightning_module) == {"mine": 1}


def test_without_a_bar(small_data, make_module, make_trainer):
    trainer = make_trainer(max_epochs=1, limit_train_batches=1)
    trainer.fit(make_module(), small_data)
    assert trainer.progress_bar_callback is None
