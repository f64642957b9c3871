"""Every precision of Lightning: training works in it, or it is refused by name with an alternative."""

import pytest
import torch
from torch.optim import Adam
from torch.utils.data import DataLoader, TensorDataset

from fcco_lightning import AUC, AveragePrecision, CrossEntropy, IndexedDataset, TabularMLP
from fcco_lightning.errors import ConfigError, NonFiniteError
from fcco_lightning.estimators import HeavyBall

pytestmark = pytest.mark.filterwarnings("ignore:You defined a `validation_step`")
ROWS = 64
OBJECTIVES = {"direct": CrossEntropy, "pairs": AUC, "rows of samples": AveragePrecision}
HALF = "ignore:precision='.*16-true' keeps the weights:UserWarning"


class Watched(AUC):
    """Notes what an objective is given."""

    seen: torch.Tensor

    def measure(self, outputs, batch):
        type(self).seen = torch.stack([batch["time"].unique().numel() * torch.ones(()), torch.tensor(1.001)])
        return super().measure(outputs, batch)


def loader(**changes):
    x = torch.randn(ROWS, 4, generator=torch.Generator().manual_seed(0))
    columns = {"x": x, "y": (x[:, 0] > 0).long(), "time": 1000 + torch.arange(ROWS) / ROWS} | changes
    return DataLoader(IndexedDataset(TensorDataset(*columns.values()), list(columns)), ROWS // 2, shuffle=True)


def fit(make_module, make_trainer, precision, objective, optimizer, train=None):
    network = TabularMLP([8], in_features=4)
    module = make_module(network=network, objective=objective, constraints=[], optimizer=optimizer)
    make_trainer(max_epochs=1, precision=precision).fit(module, train or loader())
    return module


@pytest.mark.filterwarnings(HALF, "ignore:.*AMP with fp16 is not supported on CPU")
@pytest.mark.parametrize("objective", OBJECTIVES.values(), ids=OBJECTIVES)
@pytest.mark.parametrize("precision", ["64-true", "bf16-true", "bf16-mixed", "16-mixed"])
def test_training_works(precision, objective, make_module, make_trainer):
    module = fit(make_module, make_trainer, precision, objective(), lambda p: Adam(p, lr=0.01))
    assert all(torch.isfinite(p).all() for p in module.parameters())
    wide = torch.float64 if precision == "64-true" else torch.float32
    assert all(state.rows.dtype == wide for state in module.dual_states().values())


@pytest.mark.filterwarnings(HALF)
def test_float16_with_a_step_that_divides_by_eps(make_module, make_trainer):
    with pytest.raises(ConfigError, match=r"precision='16-true' .*eps=1e-08 of Adam is 0.* bf16-mixed or 32-true"):
        fit(make_module, make_trainer, "16-true", AUC(), lambda p: Adam(p, lr=0.01))
    for step in (lambda p: Adam(p, lr=0.01, eps=1e-4), lambda p: HeavyBall(p, lr=0.01)):
        module = fit(make_module, make_trainer, "16-true", AUC(), step)
        assert all(torch.isfinite(p).all() for p in module.parameters())


@pytest.mark.filterwarnings(HALF)
def test_a_value_that_float16_does_not_hold_names_the_precision(make_module, make_trainer):
    with pytest.raises(NonFiniteError, match=r"precision 16-true"):
        fit(make_module, make_trainer, "16-true", AUC(), HeavyBall, loader(x=torch.full((ROWS, 4), 1e6)))


@pytest.mark.parametrize("precision", ["bf16-true", "16-true"])
def test_narrow_weights_are_warned_of_and_columns_stay_whole(precision, make_module, make_trainer):
    with pytest.warns(UserWarning, match=f"precision='{precision}' keeps the weights"):
        fit(make_module, make_trainer, precision, Watched(), HeavyBall)
    assert torch.equal(Watched.seen, torch.tensor([ROWS / 2, 1.001]))
