r"""What theory says of a solution and data can check: Gram matrix of the inner functions, dual values, stationarity.

For group objectives, whose inner functions g_i are means over the samples of a group, all of it is exact: values and
gradients over a whole split.  w is all that is trained, of the network and of the objective (a threshold).
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fcco_lightning.checks import positive
from fcco_lightning.distributed import Processes
from fcco_lightning.errors import ConfigError, DataError, NonFiniteError
from fcco_lightning.objectives import GroupObjective, MultiTaskGroupDRO, Objective
from fcco_lightning.outer import OuterFunction, WorstCase
from fcco_lightning.problem.forward import InnerFunctions
from fcco_lightning.problem.problem import Problem
from fcco_lightning.problem.terms import Term
from fcco_lightning.records import Batch

MAX_VALUES = 2e9
"""Most values of a Jacobian, or of a Gram matrix: 8 GB in float32."""
GRID = tuple(10 ** (k / 10 - 4) for k in range(51))
"""Smoothings lam at which stationarity is measured: ten a decade from 1e-4 to 10."""
_ACTIVE = 1e-6  # of the largest dual value
_BLOCK = 2**24  # values of the Jacobian in float64 at a time


class Jacobian(NamedTuple):
    """Exact inner functions of a group objective on a split, and their gradients.

    Attributes:
        values: g_i(w), shape (n, k), float64.
        rows: gradients of their entries, shape (n k, d), float32 or wider; the network's parameters come first.
        direct: g_0(w), 0 where there is none.
        direct_gradient: of g_0, shape (d,), float64.
        num_network: how many of the d parameters are the network's.
    """

    values: Tensor
    rows: Tensor
    direct: float
    direct_gradient: Tensor
    num_network: int


class Spectrum(NamedTuple):
    """Extreme eigenvalues of a Gram matrix.

    Attributes:
        lambda_min: the smallest, >= 0; one below ``n k 2e-16 lambda_max`` is rounding.
        lambda_max: the largest.
        condition: their ratio; inf where the smallest is rounding.
    """

    lambda_min: float
    lambda_max: float
    condition: float


class Duals(NamedTuple):
    """Dual values y_i of n rows.

    Attributes:
        rows: their number.
        active: rows with ``|y_i| > 1e-6 max_j |y_j|``; y_i > 0 for monotone f.
        omega: ``sum_i |y_i|^2 / 2`` (Omega_y^0 of 000).
    """

    rows: int
    active: int
    omega: float


class Stationarity(NamedTuple):
    """How nearly stationary w is with the t_i and y_i of one smoothing (004 Def. 4.1).

    Attributes:
        lam: smoothing; 0 for t_i = g_i.
        shift: ``max_i |t_i - g_i|``.
        gradient: ``|grad g_0 + (1/n) sum_i Jac g_i^T y_i|``.
        eps: the larger of the two: w is approximately eps-stationary.
    """

    lam: float
    shift: float
    gradient: float
    eps: float


# ----------------------------------------------------------------------------------------------------------- Jacobian


def required_size(functions: InnerFunctions, max_values: float = MAX_VALUES) -> tuple[int, int, int]:
    """``(n, k, d)``: rows, width and parameters.

    Args:
        functions: network and objective.
        max_values: most values of the Jacobian (n k d) and of the Gram matrix (n k)^2, > 0.

    Raises:
        ConfigError: if the objective is not made of groups' risks, nothing is trained, or there are too many values.
    """
    objective, name = functions.objective, type(functions.objective).__name__
    if not isinstance(objective, GroupObjective):
        raise ConfigError(
            f"diagnostics need inner functions that are means over a group's samples, the objective is {name}. Use a "
            "group objective such as CVaRGroupDRO, or switch diagnostics off."
        )
    n, k = objective.num_rows(0), objective.width
    d = sum(p.numel() for p in functions.trainable().values())
    if d == 0:
        raise ConfigError("diagnostics need parameters that are trained, all of them are frozen. Unfreeze some.")
    values = max(n * k * d, (n * k) ** 2)
    if values > positive("max_values", max_values):
        raise ConfigError(
            f"the Jacobian of {n * k:,} inner values by {d:,} parameters, or its Gram matrix, has {values:,} values, "
            f"max_values is {max_values:,.0f}. Raise max_values if the memory is there, freeze layers, or use fewer "
            "groups."
        )
    return n, k, d


def jacobian(
    functions: InnerFunctions,
    batches: Iterable[Batch],
    processes: Processes | None = None,
    max_values: float = MAX_VALUES,
) -> Jacobian:
    """Inner functions and their gradients over all batches, in evaluation mode; no ``.grad`` and no buffer changes.

    An inner function is affine in its group's mean loss, so that the mean over parts of the group, weighted by their
    sizes, is exact: each batch is cut by group, and takes one forward and one backward pass a part.

    Args:
        functions: network and objective; constraints are left out.
        batches: of the whole split, or this process's part of it, on the parameters' device; each sample once.
        processes: of the job; their parts are added up.  This one alone by default.
        max_values: see :func:`required_size`.

    Raises:
        ConfigError: see :func:`required_size`.
        DataError: if a group (or a task in a group) has no sample.
        NonFiniteError: if a value or gradient is NaN or infinite.
    """
    n, k, d = required_size(functions, max_values)
    with _undisturbed(functions):
        return _jacobian(functions, batches, processes or Processes(), n, k, d)


def _jacobian(
    functions: InnerFunctions, batches: Iterable[Batch], processes: Processes, n: int, k: int, d: int
) -> Jacobian:
    parameters = functions.trainable()
    weights = list(parameters.values())
    dtype = torch.promote_types(weights[0].dtype, torch.float32)
    counts, values = torch.zeros(n * k, dtype=torch.float64), torch.zeros(n * k, dtype=torch.float64)
    rows = torch.zeros(n * k, d, dtype=dtype)
    direct, direct_gradient = torch.zeros(1, dtype=torch.float64), torch.zeros(d, dtype=torch.float64)
    samples = torch.zeros(1, dtype=torch.float64)
    with processes.together():
        for batch in batches:
            for part in _by_label(batch, "group"):
                outputs = functions.outputs(part)
                for cell, count, mean in _means(functions.objective, outputs, part):
                    counts[cell] += count
                    values[cell] += count * mean.item()
                    rows[cell].add_(_gradient(mean, weights).to(rows), alpha=count)
                own, size = functions.objective.direct(outputs, part), len(part["group"])
                samples += size
                if own is not None:
                    direct += size * own.item()
                    direct_gradient.add_(_gradient(own, weights).to(direct_gradient), alpha=size)
    for total in (counts, values, samples, direct, direct_gradient, *(rows if processes.size > 1 else ())):
        total.copy_(processes.sum_(total.to(weights[0].device)))
    if not counts.all():
        row, column = divmod(int(counts.argmin()), k)
        raise DataError(
            f"inner function {row}{f' (entry {column})' if k > 1 else ''} has no sample, diagnostics need all {n}. Use "
            "a split that holds every group."
        )
    if not bool(torch.isfinite(values).all() and torch.isfinite(rows).all()):
        raise NonFiniteError("inner values or their gradients are not finite: the weights diverged, or x holds NaN.")
    num_network = sum(p.numel() for name, p in parameters.items() if name.startswith("network."))
    rows.div_(counts.to(dtype).unsqueeze(1))
    mean_direct, mean_gradient = float(direct / samples), direct_gradient / samples
    return Jacobian((values / counts).view(n, k), rows, mean_direct, mean_gradient, num_network)


@contextmanager
def _undisturbed(functions: InnerFunctions) -> Iterator[None]:
    """Evaluation mode and gradients, also within Lightning's inference mode; afterwards every mode as it was."""
    modes = {module: module.training for module in functions.modules()}
    functions.eval()
    try:
        with torch.inference_mode(False), torch.enable_grad():
            yield
    finally:
        for module, training in modes.items():
            module.training = training


def _by_label(batch: Batch, column: str) -> Iterator[dict[str, Tensor]]:
    """The parts of a batch with one value of a column; the batch itself where it has no such column."""
    if column not in batch:
        yield dict(batch)
        return
    for label in torch.unique(batch[column]):
        chosen = (batch[column] == label).nonzero().squeeze(1)
        yield {name: values.index_select(0, chosen) for name, values in batch.items()}


def _means(objective: Objective, outputs: Any, part: Batch) -> Iterator[tuple[int, int, Tensor]]:
    """Of samples of one group: the entries of g (row k + column) they speak of, their number, and g over them alone."""
    index, values = objective.inner(outputs, part)  # type: ignore[misc]  # a group objective; checks labels and shapes
    if not isinstance(objective, MultiTaskGroupDRO):
        yield int(index[0]), len(part["group"]), values[0, 0]
        return
    losses, group, k = objective.loss(outputs, part), int(part["group"][0]), objective.width
    if losses.dim() == 2:
        for task, column in enumerate(losses.unbind(1)):
            yield task * k + group, len(column), column.mean()
        return
    for task in torch.unique(part["task"]).tolist():
        own = losses[part["task"] == task]
        yield task * k + group, len(own), own.mean()


def _gradient(value: Tensor, weights: Sequence[Tensor]) -> Tensor:
    """Gradient of a scalar, shape (d,); what does not depend on the weights has none.  The graph is kept."""
    if not value.requires_grad:
        return torch.zeros(sum(w.numel() for w in weights))
    parts = torch.autograd.grad(value, weights, retain_graph=True, allow_unused=True, materialize_grads=True)
    return torch.cat([part.detach().reshape(-1) for part in parts])


def _blocks(rows: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Columns of the Jacobian in float64, some at a time."""
    size = max(1, _BLOCK // max(1, len(rows)))
    for start in range(0, rows.shape[1], size):
        yield slice(start, start + size), rows[:, start : start + size].double()


# ----------------------------------------------------------------------------------------------------------- spectrum


def gram(rows: Tensor) -> Tensor:
    """``J J^T`` of (m, d) rows, shape (m, m), float64."""
    total = torch.zeros(len(rows), len(rows), dtype=torch.float64)
    for _, block in _blocks(rows):
        total += block @ block.T
    return total


def spectrum(matrix: Tensor) -> Spectrum:
    r"""Extreme eigenvalues of a Gram matrix (004 Assumption 4.3: ``lambda_min(J J^T) >= delta > 0``; Table 6).

    Args:
        matrix: shape (m, m), float64.
    """
    eigenvalues = torch.linalg.eigvalsh(matrix).clamp(min=0)
    low, high = float(eigenvalues[0]), float(eigenvalues[-1])
    rounding = len(matrix) * torch.finfo(torch.float64).eps * high
    return Spectrum(low, high, high / low if low > rounding else float("inf"))


# -------------------------------------------------------------------------------------------------------------- duals


def outer_gradients(objective: Objective, values: Tensor) -> Tensor:
    """``y_i`` in the subdifferential of f at g_i(w), shape (n, k); of a max form ``n q_i`` with q the worst case.

    Args:
        objective: with inner functions.
        values: g_i(w), shape (n, k).
    """
    outer = _outer(objective)
    if isinstance(outer, WorstCase):
        return len(values) * outer.ambiguity.worst_case(values[:, 0]).unsqueeze(1)
    return outer.subgradient(values)


def remembered_duals(problem: Problem) -> Tensor | None:
    """The y_i that the objective's remembered rows stand for, smoothed as in training, without rows never written.

    Shape (rows written, k), float64 on the CPU; None where the algorithm keeps none.  All processes call it.
    """
    terms = [term for term in problem.terms if isinstance(term, Term) and term.name == "objective"]
    state = terms[0].state if terms else None
    if state is None:
        return None
    rows = state.read(torch.arange(state.num_rows, device=state.rows.device)).values
    rows = rows[~rows[:, 0].isnan()].cpu().double()
    outer = problem.outers[0]
    if outer.coupled:
        return state.num_rows * rows
    return problem.algorithm.objective_estimator.weights(rows, outer)


def duals(y: Tensor) -> Duals:
    """Count and size of dual values.

    Args:
        y: shape (n, k), float64.
    """
    size = y.square().sum(1)
    active = size.sqrt() > _ACTIVE * size.amax().sqrt() if len(size) else size > 0
    return Duals(len(y), int(active.sum()), float(size.sum()) / 2)


def _outer(objective: Objective) -> OuterFunction:
    if objective.outer is None:
        raise ConfigError(f"{type(objective).__name__} has no inner functions. Use a group objective.")
    return objective.outer


# ------------------------------------------------------------------------------------------------------- stationarity


def stationarity(objective: Objective, found: Jacobian, lams: Sequence[float]) -> list[Stationarity]:
    r"""The eps of 004 Def. 4.1 with ``t_i = prox_{lam f}(g_i)``, ``y_i = grad f_lam(g_i)``, as in the proof of Thm 4.2.

    y_i is in the subdifferential of f at t_i, and the gradient is that of ``g_0 + F_lam``.  For lam = 0: t_i = g_i.
    With g_0, which the definition lacks, its gradient is added.

    Args:
        objective: whose outer function has a prox, unless all ``lams`` are 0.
        found: see :func:`jacobian`.
        lams: smoothings, >= 0.
    """
    n, g = len(found.values), found.values
    shifts, weights = [], []
    for lam in lams:
        t = _outer(objective).prox(g, lam) if lam else g
        y = _outer(objective).envelope_gradient(g, lam) if lam else outer_gradients(objective, g)
        shifts.append(float((t - g).norm(dim=1).max()))
        weights.append(y.reshape(-1) / n)
    squares = torch.zeros(len(weights), dtype=torch.float64)
    for columns, block in _blocks(found.rows):
        squares += (torch.stack(weights) @ block + found.direct_gradient[columns]).square().sum(1)
    pairs = zip(lams, shifts, squares.sqrt().tolist(), strict=True)
    return [Stationarity(lam, shift, gradient, max(shift, gradient)) for lam, shift, gradient in pairs]


# ---------------------------------------------------------------------------------------------------------------- all


def diagnose(
    objective: Objective, found: Jacobian, lam: float | None = None, remembered: Tensor | None = None
) -> dict[str, Any]:
    r"""All of it, as plain numbers.

    - ``rows`` n, ``width`` k, ``parameters`` d, ``value`` F(w) (absent for a max form);
    - ``gram``: :class:`Spectrum` of ``J J^T`` over all that is trained; ``gram_network``: over the network alone;
    - ``duals``: :class:`Duals` at the exact g_i (``exact``) and of the rows that the algorithm keeps (``remembered``);
      with C_f known ``worst_case`` = n C_f^2/2, and for a CVaR ``alpha_n`` and ``predicted`` = n/(2 alpha), which
      omega is near at an optimum (000 Remark F.1);
    - ``stationarity``: :class:`Stationarity` ``at`` the smoothing lam if it is known, and the ``best`` on the ``grid``
      of lam = 0 and :data:`GRID`; smooth f and max forms need no smoothing: only lam = 0.

    Args:
        objective: the objective.
        found: see :func:`jacobian`.
        lam: smoothing of the algorithm, > 0, or None.
        remembered: see :func:`remembered_duals`.
    """
    outer, (n, k) = _outer(objective), found.values.shape
    exact = outer_gradients(objective, found.values)
    alpha = objective.tail if isinstance(objective, GroupObjective) else None
    bound = 1 / alpha if alpha is not None else outer.lipschitz
    sizes: dict[str, Any] = {"exact": duals(exact)._asdict()}
    if remembered is not None:
        sizes["remembered"] = duals(remembered)._asdict()
    sizes["worst_case"] = n * bound**2 / 2
    if alpha is not None:
        sizes |= {"alpha_n": alpha * n, "predicted": n / (2 * alpha)}
    needed = not outer.smooth
    grid = stationarity(objective, found, [0.0, *(GRID if needed else ())])
    at = stationarity(objective, found, [positive("lam", lam)]) if needed and lam is not None else []
    both = gram(found.rows)
    network = gram(found.rows[:, : found.num_network])
    result: dict[str, Any] = {"rows": n, "width": k, "parameters": found.rows.shape[1]}
    if not outer.coupled:
        result["value"] = found.direct + float(outer.value(found.values).mean())
    return result | {
        "gram": spectrum(both)._asdict(),
        "gram_network": spectrum(network)._asdict(),
        "duals": sizes,
        "stationarity": ({"at": at[0]._asdict()} if at else {})
        | {
            "best": min([*grid, *at], key=lambda point: point.eps)._asdict(),
            "grid": [point._asdict() for point in grid],
        },
    }
