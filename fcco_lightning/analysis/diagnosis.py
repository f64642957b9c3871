"""All diagnostics of the solution of a group objective: Gram matrix, dual values, stationarity."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fcco_lightning.analysis.dual_values import duals, on_device_of, outer_function, outer_gradients
from fcco_lightning.analysis.inner_jacobian import Jacobian, column_blocks, gradient, gram
from fcco_lightning.checks import positive
from fcco_lightning.objectives import GroupObjective, Objective
from fcco_lightning.outer import Shifted, slopes

GRID = tuple(10 ** (k / 10 - 4) for k in range(51))
"""The smoothings lam at which stationarity is computed: ten per decade from 1e-4 to 10."""


class Spectrum(NamedTuple):
    """The extreme eigenvalues of a Gram matrix.

    Attributes:
        lambda_min: The smallest eigenvalue, >= 0; a value below ``n k 2e-16 lambda_max`` is a rounding error.
        lambda_max: The largest eigenvalue.
        condition: Their ratio; inf if the smallest eigenvalue is a rounding error.
    """

    lambda_min: float
    lambda_max: float
    condition: float


class Stationarity(NamedTuple):
    """The eps of approximate eps-stationarity of w, with the t_i and y_i of one smoothing (SONEX paper, Def. 4.1).

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
    ``g_0 + F_lam``.  For lam = 0, t_i = g_i.  The definition has no g_0; here its gradient is added.  If f depends on
    trained parameters of the objective (a threshold), the derivative with respect to them is added, too.

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
        y = slopes(outer.smoothed(lam), g) if lam else outer_gradients(objective, g)
        t = g - lam * y  # prox_{lam f}(g)
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


def spectrum(matrix: Tensor) -> Spectrum:
    r"""Compute the extreme eigenvalues of a Gram matrix.

    The smallest one is the delta of Assumption 4.3 of the SONEX paper, ``lambda_min(J J^T) >= delta > 0``; see also
    Table 6 there.

    Args:
        matrix: The Gram matrix, shape (m, m), float64.
    """
    eigenvalues = torch.linalg.eigvalsh(matrix).clamp(min=0)
    low, high = float(eigenvalues[0]), float(eigenvalues[-1])
    rounding = len(matrix) * torch.finfo(torch.float64).eps * high
    return Spectrum(low, high, high / low if low > rounding else float("inf"))


def _gradient_of_outer(objective: Objective, values: Tensor, lam: float) -> Tensor:
    """The gradient of ``(1/n) sum_i f_lam(g_i)`` with respect to the objective's trained parameters, for fixed g_i."""
    parameters, outer = [p for p in objective.parameters() if p.requires_grad], outer_function(objective)
    if not parameters or outer.coupled:  # a coupled f is a maximum over weights, without parameters
        return torch.zeros(sum(p.numel() for p in parameters), dtype=torch.float64)
    with torch.inference_mode(False), torch.enable_grad():
        return gradient((outer.smoothed(lam) if lam else outer)(values).mean(), parameters)


def diagnose(
    objective: Objective, jacobian: Jacobian, lam: float | None = None, remembered: Tensor | None = None
) -> dict[str, Any]:
    r"""Compute all diagnostics of a solution.

    - ``rows`` n, ``width`` k, ``parameters`` d, and ``value`` F(w) (absent for a max form);
    - ``gram``: the :class:`Spectrum` of ``J J^T`` over all parameters, with a threshold s as part of ``R_i - s``;
      ``gram_network``: the same over the network's parameters alone;
    - ``duals``: the :class:`Duals` at the exact g_i (``exact``) and of the rows that the algorithm keeps
      (``remembered``).  ``worst_case`` is n C_f^2/2, inf if C_f is not known.  For a CVaR there are also ``alpha_n``
      and ``predicted`` = n/(2 alpha), to which omega is close at an optimum (ALEXR paper, Remark F.1);
    - ``stationarity``: the :class:`Stationarity` ``at`` the smoothing lam, if it is given, and the ``best`` one on the
      ``grid`` of lam = 0 and :data:`GRID`.  For smooth f and max forms, which need no smoothing, lam = 0 only.

    Args:
        objective: The objective.
        jacobian: The exact inner functions and their gradients, see :func:`~fcco_lightning.analysis.jacobian`.
        lam: The smoothing of the algorithm, > 0, or None.
        remembered: The dual values of the algorithm's rows, see :func:`remembered_duals`.

    Returns:
        Plain numbers, ready for JSON.
    """
    outer, (n, k) = outer_function(objective), jacobian.values.shape
    result: dict[str, Any] = {"rows": n, "width": k, "parameters": jacobian.rows.shape[1]}
    if not outer.coupled:
        values = on_device_of(objective, jacobian.values)
        result["value"] = jacobian.direct + float(outer(values).detach().mean())
    return result | {
        "gram": spectrum(gram(jacobian.rows) + _threshold_entry(objective))._asdict(),
        "gram_network": spectrum(gram(jacobian.rows[:, : jacobian.num_network]))._asdict(),
        "duals": _sizes(objective, jacobian.values, remembered),
        "stationarity": _stationarity(objective, jacobian, lam),
    }


def _threshold_entry(objective: Objective) -> float:
    """Return the contribution of a trained threshold s to every entry of the Gram matrix of ``R_i - s``, 1 or 0."""
    outer = outer_function(objective)
    return 1.0 if isinstance(outer, Shifted) and outer.shift.requires_grad else 0.0


def _sizes(objective: Objective, values: Tensor, remembered: Tensor | None) -> dict[str, Any]:
    n = len(values)
    alpha = objective.tail if isinstance(objective, GroupObjective) else None
    bound = 1 / alpha if alpha is not None else outer_function(objective).lipschitz
    sizes: dict[str, Any] = {"exact": duals(outer_gradients(objective, values))._asdict()}
    if remembered is not None:
        sizes["remembered"] = duals(remembered)._asdict()
    sizes["worst_case"] = n * bound**2 / 2
    if alpha is not None:
        sizes |= {"alpha_n": alpha * n, "predicted": n / (2 * alpha)}
    return sizes


def _stationarity(objective: Objective, jacobian: Jacobian, lam: float | None) -> dict[str, Any]:
    nonsmooth = not outer_function(objective).smooth
    grid = stationarity(objective, jacobian, [0.0, *(GRID if nonsmooth else ())])
    at_lam = stationarity(objective, jacobian, [positive("lam", lam)]) if nonsmooth and lam is not None else []
    return ({"at": at_lam[0]._asdict()} if at_lam else {}) | {
        "best": min([*grid, *at_lam], key=lambda point: point.eps)._asdict(),
        "grid": [point._asdict() for point in grid],
    }
