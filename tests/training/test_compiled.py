"""A compiled network trains as the uncompiled one."""

import pytest
import torch
from lightning.pytorch import Callback

from fcco_lightning import (
    MSVR,
    SONEX,
    SOX,
    AveragePrecision,
    BalancedSampling,
    CrossEntropy,
    Execution,
    HeavyBall,
    LogisticLoss,
    MeanAtMost,
    SquaredHingePenalty,
    TabularMLP,
)
from fcco_lightning.engine.compiling import Compiled
from tests.jobs import save_at
from tests.tables import make_data

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
DATA = {"batches": BalancedSampling(20)}
JOBS = {
    "SOX, a cap": {
        "algorithm": lambda: SOX(0.3),
        "objective": CrossEntropy,
        "constraints": lambda: [MeanAtMost(LogisticLoss(), 0.1)],
    },
    "SOX, average precision": {"algorithm": lambda: SOX(0.3), "objective": AveragePrecision},
    "SONEX, micro-batches": {"algorithm": SONEX, "micro_batch": 7},
    "SONEX, no dropout": {"algorithm": SONEX},  # its second pass is part of the graph
    "MSVR": {"algorithm": lambda: MSVR(gamma=0.3, gamma_prime=0.5)},
}


def run(make_module, make_trainer, name, *, compiled, callbacks=(), ckpt_path=None, epochs=2):
    torch.manual_seed(0)
    parts = {key: made() for key, made in JOBS[name].items() if key != "micro_batch"}
    execution = Execution(compiled=compiled, micro_batch=JOBS[name].get("micro_batch"))
    penalty = None if "SONEX" in name else SquaredHingePenalty(1.0)
    network = TabularMLP([8, 8], batch_norm=True, dropout=0.0 if "no dropout" in name else 0.3)
    optimizer = lambda p: HeavyBall(p, lr=0.02)  # noqa: E731
    module = make_module(network=network, penalty=penalty, optimizer=optimizer, execution=execution, **parts)
    trainer = make_trainer(max_epochs=epochs, callbacks=list(callbacks))
    trainer.fit(module, make_data(**DATA), ckpt_path=ckpt_path)
    return trainer, module


@pytest.mark.parametrize("name", JOBS)
def test_same_weights_rows_and_figures(name, make_module, make_trainer):
    (one, found), (other, expected) = (run(make_module, make_trainer, name, compiled=c) for c in (True, False))
    torch.testing.assert_close(found.state_dict(), expected.state_dict(), rtol=1e-4, atol=1e-6, equal_nan=True)
    torch.testing.assert_close(one.callback_metrics, other.callback_metrics, rtol=1e-3, atol=1e-5)


class Hooks(Callback):
    """Counts the hooks of backward passes, and whether the gradients are there behind them."""

    def __init__(self):
        self.before, self.behind = 0, []

    def on_before_backward(self, trainer, pl_module, loss):
        self.before += 1

    def on_after_backward(self, trainer, pl_module):
        self.behind.append(all(p.grad is not None for p in pl_module.network.parameters()))


def test_where_the_gradient_is_compiled_the_hooks_of_a_backward_pass_are_called(make_module, make_trainer, monkeypatch):
    hooks, taken, called = Hooks(), [], Compiled.__call__

    def counted(self, *given, **how):
        estimate = called(self, *given, **how)
        taken.append(estimate.gradients is not None)
        return estimate

    monkeypatch.setattr(Compiled, "__call__", counted)
    trainer, _ = run(make_module, make_trainer, "SOX, a cap", compiled=True, callbacks=[hooks])
    assert len(taken) == trainer.global_step
    assert all(taken) == hasattr(torch._dynamo.config, "trace_autograd_ops")
    assert hooks.before == len(hooks.behind) == trainer.global_step > 10
    assert all(hooks.behind)


@pytest.mark.parametrize("name", ["MSVR", "SOX, average precision", "SONEX, micro-batches", "SONEX, no dropout"])
def test_a_checkpoint_is_that_of_the_network_and_continues(name, make_module, make_trainer, tmp_path):
    path = tmp_path / "at.ckpt"
    _, whole = run(make_module, make_trainer, name, compiled=True, callbacks=[save_at(1, 2, path)])
    _, resumed = run(make_module, make_trainer, name, compiled=True, ckpt_path=path)
    torch.testing.assert_close(resumed.state_dict(), whole.state_dict(), rtol=0, atol=0, equal_nan=True)
    _, plain = run(make_module, make_trainer, name, compiled=False, ckpt_path=path)
    torch.testing.assert_close(plain.state_dict(), whole.state_dict(), rtol=1e-4, atol=1e-6, equal_nan=True)
