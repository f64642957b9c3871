"""Fixtures with a small job for tests of the LightningModule, and the choice of quick cases."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest
from lightning.pytorch import Trainer

from fcco_lightning import FCCOModule, HingePenalty, ROCFairness, TabularMLP
from fcco_lightning.estimators import AdamType
from tests.conftest import QUIET


def quick(cases: Iterable[Any], *chosen: Any) -> list[Any]:
    """Parametrise a test; all cases except the chosen ones are slow."""
    return [
        pytest.param(*(case if isinstance(case, tuple) else [case]), marks=[pytest.mark.slow] * (case not in chosen))
        for case in cases
    ]


@pytest.fixture
def make_module() -> Callable[..., FCCOModule]:
    """A module with dropout and ROC constraints; keyword arguments replace its parts."""

    def build(**changes: Any) -> FCCOModule:
        parts: dict[str, Any] = {
            "network": TabularMLP(hidden=[8], dropout=0.2),
            "constraints": [ROCFairness(thresholds=[-1, 0, 1])],
            "penalty": HingePenalty(rho=4),
            "optimizer": lambda params: AdamType(params, lr=0.01),
        }
        return FCCOModule(**(parts | changes))

    return build


@pytest.fixture
def make_trainer(tmp_path: Any) -> Callable[..., Trainer]:
    """A quiet CPU trainer; keyword arguments replace its flags."""

    def build(**changes: Any) -> Trainer:
        flags = QUIET | {"max_epochs": 2, "accelerator": "cpu", "default_root_dir": tmp_path}
        return Trainer(**(flags | changes))

    return build
