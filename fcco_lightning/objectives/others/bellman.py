"""The Bellman residual of a value function."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fcco_lightning.checks import below_one
from fcco_lightning.errors import DataError
from fcco_lightning.models.batch import Columns
from fcco_lightning.objectives.base import RowDomain, one_label_each, require_binary_labels
from fcco_lightning.objectives.groups.group_dro import GroupObjective
from fcco_lightning.objectives.quantities import Quantity, means_by_part
from fcco_lightning.outer import Square


@dataclass(frozen=True)
class TemporalDifference(Quantity):
    r"""``V_w(s) - r - discount V_w(s')`` of a transition from s to s' with reward r, shape (B,).

    Batches carry ``reward`` (B,) float and, if episodes end, ``terminal`` (B,) with 1 for a final transition, for which
    V_w(s') is replaced by 0.  The outputs are the values of s and of s', shape (B, 2) or (B, 2, 1): the network is
    called with ``x`` (B, 2, d), the features of both.

    Args:
        discount: discount factor, in [0, 1).

    Raises:
        ConfigError: if ``discount`` is out of range.
        DataError: if the outputs have another shape.
    """

    discount: float = 0.95

    def __post_init__(self) -> None:
        below_one("discount", self.discount)

    def __call__(self, outputs: Tensor, batch: Columns) -> Tensor:
        values = state_values(outputs)
        later = self.discount * values[:, 1]
        if "terminal" in batch:
            later = later * (1 - one_label_each(batch, self, "terminal").to(values.dtype))
        return values[:, 0] - one_label_each(batch, self, "reward").to(values.dtype) - later


class BellmanResidual(GroupObjective):
    r"""``F(w) = (1/n) sum over states s of (V_w(s) - E[r + discount V_w(s')])^2``.

    The expectation is over the transitions from s.  Source: ALEXR paper, App. B, where V_w is linear.

    There is one row for every state; the inner function is the mean temporal difference of its transitions.  A batch
    holds some transitions of some states: ``batches: GroupSampling`` with the states as groups.  The mean of the
    *squared* temporal differences would be too large by the variance of the next state; if the square of a batch's mean
    is minimised instead (BSGD), the two factors of its gradient use the same samples, which is the double-sampling
    problem.  With rows one of the factors is a running average, and ALEXR takes the factors from the two halves of a
    batch.

    Batches carry ``group`` (B,), the number of the state, and ``reward`` (B,); outputs are the values of both states of
    a transition, see :class:`TemporalDifference`.

    Args:
        discount: discount factor, in [0, 1).
        num_states: n; None takes it from the datamodule.
    """

    outer = Square()
    scores_classes = False
    loss: TemporalDifference

    def __init__(self, discount: float = 0.95, num_states: int | None = None) -> None:
        super().__init__(TemporalDifference(discount), num_states)

    def row_domain(self, num_samples: int, columns: Columns | None) -> RowDomain:
        """One row for every state.

        Raises:
            DataError: if ``terminal`` holds another value than 0 and 1.
        """
        if columns is not None and "terminal" in columns:
            require_binary_labels(columns, self, "terminal")
        return super().row_domain(num_samples, columns)


def state_values(outputs: Any) -> Tensor:
    """Values of the two states of transitions, shape (B, 2).

    Raises:
        DataError: if ``outputs`` have another shape than (B, 2) or (B, 2, 1).
    """
    fits = isinstance(outputs, Tensor) and outputs.dim() in (2, 3) and outputs.shape[1] == 2
    if not fits or outputs.shape[2:] not in ((), (1,)):
        shape = tuple(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
        raise DataError(
            f"a Bellman residual needs the values of both states of a transition, shape (B, 2) or (B, 2, 1), got "
            f"{shape}. Give the network a single output, and batches whose x has the shape (B, 2, d)."
        )
    values: Tensor = outputs.reshape(len(outputs), 2)
    return values


def mean_residuals(residuals: Tensor, state: Tensor, weight: Tensor | None = None) -> Tensor:
    """Mean temporal difference of every state with a transition, in increasing order of states.

    Args:
        residuals: temporal differences of the transitions, shape (n,).
        state: state in which each transition begins, shape (n,).
        weight: weights of the transitions, shape (n,); states with the total weight 0 are left out.  None for equal
            weights.
    """
    weight = torch.ones_like(residuals) if weight is None else weight.to(residuals)
    states, position = torch.unique(state, return_inverse=True)
    means, mass = means_by_part(position, len(states), weight * residuals, weight)
    return means[mass > 0]
