"""2N batches are N batches, a checkpoint in a fresh set of objects, and N batches: bit for bit."""

import pytest
import torch
from toy_problem import flat, make_batches, make_engine, make_network

from fcco_lightning import (
    ALEXR,
    ALEXR2,
    BSGD,
    MOAP,
    MSVR,
    SGD,
    SOAP,
    SONEX,
    SONX,
    SOX,
    AdamType,
    ConfigError,
    HeavyBall,
    SOXBoost,
)

BATCHES = make_batches(26)
STOPS = (0, 5, 13)

MAKERS = {
    "ALEXR": lambda: ALEXR(1.5, 0.5),
    "ALEXR-mirror": lambda: ALEXR(1.5, 0.5, mirror=True),
    "ALEXR2": lambda: ALEXR2(K=4, eta=0.2, nu=0.4, lam=0.1, gamma=0.4),  # 5 and 13 lie inside the inner loop
    "BSGD": BSGD,
    "MOAP": lambda: MOAP(0.4),
    "MSVR": lambda: MSVR(0.4, b=0.3),
    "SGD": SGD,
    "SOAP": lambda: SOAP(0.4),
    "SONEX": lambda: SONEX(0.4, 0.2, lam=0.1),
    "SONX": lambda: SONX(0.4, 0.2),
    "SOX": lambda: SOX(0.4),
    "SOXBoost": lambda: SOXBoost(0.4, first_stage=4),
}


class Run:
    def __init__(self, make, optimizer):
        self.network = make_network()
        self.engine = make_engine(make(), self.network)
        self.optimizer = optimizer(self.network.parameters(), lr=0.05, beta=0.3)

    def train(self, batches):
        for batch in batches:
            self.engine.train_batch(batch, self.optimizer)

    def save(self, path):
        parts = {"network": self.network, "problem": self.engine.problem, "engine": self.engine, "opt": self.optimizer}
        torch.save({name: part.state_dict() for name, part in parts.items()}, path)

    def load(self, path):
        stored = torch.load(path, weights_only=True)
        self.network.load_state_dict(stored["network"])
        self.engine.problem.load_state_dict(stored["problem"])
        self.engine.load_state_dict(stored["engine"])
        self.optimizer.load_state_dict(stored["opt"])

    def everything(self):
        states = self.engine.problem.states
        return [flat(self.network.parameters()), *(s.rows for s in states)]


COMBINATIONS = [(name, optimizer) for name in MAKERS for optimizer in (HeavyBall, AdamType)]
COMBINATIONS = [c for c in COMBINATIONS if not (c[0].startswith("SOXBoost") and c[1] is AdamType)]  # no momentum


def test_sox_boost_refuses_an_optimizer_without_momentum():
    name = next(n for n in MAKERS if n.startswith("SOXBoost"))
    with pytest.raises(ConfigError, match="Use HeavyBall"):
        Run(MAKERS[name], AdamType).train(BATCHES[:1])


@pytest.mark.parametrize(("name", "optimizer"), COMBINATIONS)
def test_resume_equals_continuous(name, optimizer, tmp_path):
    whole = Run(MAKERS[name], optimizer)
    whole.train(BATCHES)
    for stop in STOPS:
        first, second = Run(MAKERS[name], optimizer), Run(MAKERS[name], optimizer)
        first.train(BATCHES[:stop])
        first.save(tmp_path / "run.pt")
        second.load(tmp_path / "run.pt")
        second.train(BATCHES[stop:])
        assert all(torch.equal(a, b) for a, b in zip(whole.everything(), second.everything(), strict=True))


def test_every_named_algorithm_is_resumed():
    import fcco_lightning.algorithms as package

    # those that need a max form are resumed in tests/training/test_training_group_dro.py
    named = {name for name in package.__all__ if not getattr(package, name).max_form} - {"Algorithm"}
    assert {name.split("-")[0] for name in MAKERS} == named


def test_the_checkpoint_matters():
    whole, other = Run(MAKERS["SONEX"], HeavyBall), Run(MAKERS["SONEX"], HeavyBall)
    whole.train(BATCHES)
    other.train(BATCHES[13:])
    assert not torch.allclose(whole.everything()[0], other.everything()[0], atol=1e-3)
