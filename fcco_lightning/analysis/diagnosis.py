"""All diagnostics of a solution together, as plain numbers."""

from typing import Any

from torch import Tensor

from fcco_lightning.analysis.dual_values import duals, on_device_of, outer_function, outer_gradients
from fcco_lightning.analysis.eigenvalues import gram, spectrum
from fcco_lightning.analysis.inner_jacobian import Jacobian
from fcco_lightning.analysis.stationary_points import GRID, stationarity
from fcco_lightning.checks import positive
from fcco_lightning.objectives import GroupObjective, Objective
from fcco_lightning.outer import Shifted


def diagnose(
    objective: Objective, jacobian: Jacobian, lam: float | None = None, remembered: Tensor | None = None
) -> dict[str, Any]:
    r"""Compute all diagnostics of a solution.

    - ``rows`` n, ``width`` k, ``parameters`` d, and ``value`` F(w) (absent for a max form);
    - ``gram``: the :class:`Spectrum` of ``J J^T`` over all parameters, with a threshold s as part of ``R_i - s``;
      ``gram_network``: over the network's alone;
    - ``duals``: the :class:`Duals` at the exact g_i (``exact``) and of the rows that the algorithm keeps
      (``remembered``).  ``worst_case`` is n C_f^2/2, inf where C_f is not known.  For a CVaR there are also ``alpha_n``
      and ``predicted`` = n/(2 alpha), which omega is near at an optimum (ALEXR paper, Remark F.1);
    - ``stationarity``: the :class:`Stationarity` ``at`` the smoothing lam if it is known, and the ``best`` one on the
      ``grid`` of lam = 0 and :data:`GRID`.  Smooth f and max forms need no smoothing, so for them lam = 0 only.

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
        result["value"] = jacobian.direct + float(outer.value(values).detach().mean())
    return result | {
        "gram": spectrum(gram(jacobian.rows) + _of_threshold(objective))._asdict(),
        "gram_network": spectrum(gram(jacobian.rows[:, : jacobian.num_network]))._asdict(),
        "duals": _sizes(objective, jacobian.values, remembered),
        "stationarity": _stationarity(objective, jacobian, lam),
    }


def _of_threshold(objective: Objective) -> float:
    """Return what a trained threshold s adds to every entry of the Gram matrix of ``R_i - s``: its slope is -1."""
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
    needed = not outer_function(objective).smooth
    grid = stationarity(objective, jacobian, [0.0, *(GRID if needed else ())])
    at = stationarity(objective, jacobian, [positive("lam", lam)]) if needed and lam is not None else []
    return ({"at": at[0]._asdict()} if at else {}) | {
        "best": min([*grid, *at], key=lambda point: point.eps)._asdict(),
        "grid": [point._asdict() for point in grid],
    }
