"""How nearly stationary a solution is, with and without smoothing."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fcco_lightning.analysis.dual_values import on_device_of, outer_function, outer_gradients
from fcco_lightning.analysis.inner_jacobian import Jacobian, column_blocks
from fcco_lightning.objectives import Objective

GRID = tuple(10 ** (k / 10 - 4) for k in range(51))
"""The smoothings lam at which stationarity is measured: ten per decade from 1e-4 to 10."""


class Stationarity(NamedTuple):
    """How nearly stationary w is with the t_i and y_i of one smoothing (SONEX paper, Def. 4.1).

    Attributes:
        lam: The smoothing; 0 for t_i = g_i.
        shift: The distance ``max_i |t_i - g_i|``.
        gradient: The norm ``|grad g_0 + (1/n) sum_i Jac g_i^T y_i|``.
        eps: The larger of the two: w is approximately eps-stationary.
    """

    lam: float
    shift: float
    gradient: float
    eps: float


def stationarity(objective: Objective, jacobian: Jacobian, lams: Sequence[float]) -> list[Stationarity]:
    r"""Compute the eps of Def. 4.1 of the SONEX paper with ``t_i = prox_{lam f}(g_i)`` and ``y_i = grad f_lam(g_i)``.

    This is the choice in the proof of Thm 4.2: y_i is in the subdifferential of f at t_i, and the gradient is that of
    ``g_0 + F_lam``.  For lam = 0, t_i = g_i.  The definition lacks g_0; here its gradient is added.  Where f itself
    depends on parameters of the objective that are trained (a threshold), its derivative in them is added too.

    Args:
        objective: An objective whose outer function has a prox, unless all ``lams`` are 0.
        jacobian: The exact inner functions and their gradients, see :func:`~fcco_lightning.analysis.jacobian`.
        lams: The smoothings, >= 0.

    Returns:
        The result for each smoothing, in the order of ``lams``.
    """
    outer, g = outer_function(objective), on_device_of(objective, jacobian.values)
    shifts, weights, totals = [], [], []
    for lam in lams:
        t = outer.prox(g, lam).detach() if lam else g
        y = outer.envelope_gradient(g, lam).detach() if lam else outer_gradients(objective, g)
        shifts.append(float((t - g).norm(dim=1).max()))
        weights.append((y.reshape(-1) / len(g)).cpu())
        total = jacobian.direct_gradient.clone()
        total[jacobian.num_network :] += _gradient_of_outer(objective, g, lam)
        totals.append(total)
    squares = torch.zeros(len(weights), dtype=torch.float64)
    for columns, block in column_blocks(jacobian.rows):
        gradients = torch.stack(weights) @ block + torch.stack([total[columns] for total in totals])
        squares += gradients.square().sum(1)
    pairs = zip(lams, shifts, squares.sqrt().tolist(), strict=True)
    return [Stationarity(lam, shift, gradient, max(shift, gradient)) for lam, shift, gradient in pairs]


def _gradient_of_outer(objective: Objective, values: Tensor, lam: float) -> Tensor:
    """Differentiate ``(1/n) sum_i f_lam(g_i)`` in the objective's trained parameters while the g_i are held fixed.

    It is 0 where f does not depend on them.  Returns shape (number of these parameters,), float64.
    """
    parameters = [p for p in objective.parameters() if p.requires_grad]
    outer, zero = outer_function(objective), torch.zeros(sum(p.numel() for p in parameters), dtype=torch.float64)
    if not parameters or outer.coupled:  # a coupled f is a maximum over weights, without parameters
        return zero
    with torch.inference_mode(False), torch.enable_grad():
        total = (outer.envelope(values, lam) if lam else outer.value(values)).mean()
        if not total.requires_grad:
            return zero
        parts = torch.autograd.grad(total, parameters, allow_unused=True, materialize_grads=True)
    return torch.cat([part.reshape(-1).double().cpu() for part in parts])
