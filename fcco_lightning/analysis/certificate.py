"""How nearly a constrained solution meets the conditions of Karush, Kuhn and Tucker, exactly on a whole split."""

import copy
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.optimize import nnls
from torch import Tensor
from torch.utils import _pytree as pytree

from fcco_lightning.analysis.dual_values import value_of
from fcco_lightning.analysis.inner_jacobian import MAX_VALUES, flat, gradient, gradients, gram, undisturbed
from fcco_lightning.checks import positive
from fcco_lightning.constraints import Constraint, Penalty
from fcco_lightning.engine import InnerFunctions, outputs_of_columns, read
from fcco_lightning.errors import ConfigError, DataError, NonFiniteError
from fcco_lightning.evaluation.split import inner_values
from fcco_lightning.models import TwoViews
from fcco_lightning.models.batch import Batch, Columns
from fcco_lightning.objectives import Measurable, Objective
from fcco_lightning.outer import NoSmoothing, Smoothing, excess
from fcco_lightning.outer import slopes as outer_slopes
from fcco_lightning.state.processes import Processes


class Samples(NamedTuple):
    """Whole data sets by part of a batch, that of the objective first.

    Attributes:
        outputs: of the network, nested tensors of first dimension n.
        batch: the columns of the same samples, among them ``index``.
    """

    outputs: dict[str, Any]
    batch: Batch

    def of(self, measured: Measurable) -> tuple[Any, Any]:
        """The outputs and the columns on which something is measured."""
        return read(self.outputs, self.batch, measured)


class Certificate(NamedTuple):
    r"""The residuals of the conditions ``grad F + sum_i nu_i grad h_i = 0``, ``nu_i h_i = 0``, ``h_i <= 0``, nu >= 0.

    w is an eps-KKT point of ``min F(w) subject to h_i(w) <= 0`` (SONEX paper, Prop. 5.2, with w itself in the place of
    the point near it).  A row with ``|nu_i h_i| <= eps`` may have any multiplier, so what counts at the kink of a
    penalty ``rho [h_i]_+`` is not on which side of it noise has left h_i: as in Def. 4.1 there, the slope may be taken
    at a value near h_i.

    An example: ``F(w) = (w - 2)^2`` and ``h(w) = w - 1``.  At w = 1 the gradients are -2 and 1, and with nu = 2 all
    residuals are 0: the point is optimal.  At w = 1.1 the gradient of F is -1.8 and h = .1.  The best multiplier
    minimises ``(nu - 1.8)^2 + (.1 nu)^2``, it is 1.78; stationarity is .018, complementarity .178, the violation .1,
    and eps .178.

    Attributes:
        stationarity: ``|grad F + sum_i nu_i grad h_i|``, in units of F per unit of a weight.
        gradient: ``|grad F|``, with which to compare it.
        complementarity: ``max_i |nu_i h_i|``, in units of F.
        violation: ``max_i h_i``; without constraints 0.
        eps: the largest of stationarity, complementarity and the violation.
        multipliers: nu_i, shape (m,); of ``|s_i| <= kappa``, which is two constraints, the difference of the two.
        values: h_i, shape (m,), at the kappa that is enforced.
    """

    stationarity: float
    gradient: float
    complementarity: float
    violation: float
    eps: float
    multipliers: tuple[float, ...]
    values: tuple[float, ...]


class _Sides(NamedTuple):
    """The one-sided constraints: ``s_i - kappa <= 0``, and of two sides ``-s_i - kappa <= 0`` as well.

    Attributes:
        row: to which row of the constraints they belong, shape (sides,).
        sign: of s_i, shape (sides,).
        excess: shape (sides,).
    """

    row: Tensor
    sign: Tensor
    excess: Tensor


def certificate(
    functions: InnerFunctions,
    samples: Samples,
    batches: Mapping[str, Iterable[Columns]],
    multipliers: Sequence[float] | None = None,
    processes: Processes | None = None,
    max_values: float = MAX_VALUES,
) -> Certificate:
    r"""Measure the residuals at the present weights, with all trained parameters, in evaluation mode.

    F, the h_i and their derivatives by the network's outputs are those of whole data sets at once; a second pass, batch
    by batch, takes them on to the weights.  So the gradient is exact for every objective, also where samples are
    compared with all others, and for every constraint, and no more activations are held than those of one batch.  No
    ``.grad`` and no buffer changes.

    Parameters of single samples lie in an interval.  Where one is at an end of it, a derivative that points out of it
    counts as 0, as the multiplier of that bound takes it up.

    Args:
        functions: the network, the objective and the constraints.
        samples: the network's outputs on the whole data sets by part, nested tensors of first dimension n, and their
            columns, among them ``index``, on the parameters' device.  The objective is measured on the first part,
            every constraint on the part that it names (a split alone is the part "target").  Where every sample has
            parameters of its own, as the temperatures of pairs, they are the column that the objective names.
        batches: by part the same samples again, or this process's share of them, with the network's input.
        multipliers: nu_i, shape (m,), with a backward pass or two for every batch.  By default those that make the
            residuals small together, ``argmin over nu >= 0 of |grad F + sum_i nu_i grad h_i|^2 + sum_i (nu_i h_i)^2``,
            with a backward pass for every batch and each of F and the s_i that depend on its part.
        processes: of the job, which share the batches; this one alone by default.
        max_values: most values of the gradients of all constraints, and of an objective's comparisons of samples where
            all of them are in memory at once.

    Raises:
        ConfigError: if objective or constraints are measured on parts that are not there, parameters of single samples
            are trained and their column is missing, the network makes random views of the samples, nothing is trained,
            or there are too many values.
        DataError: if the split has no sample of a constraint's subset.
        NonFiniteError: if a gradient is NaN or infinite.
    """
    require_certifiable(functions, list(samples.batch), max_values)
    with undisturbed(functions):
        outputs = pytree.tree_map(lambda leaf: leaf.detach().clone().double().requires_grad_(), samples.outputs)
        wide = Samples(outputs, samples.batch)
        value, extra = _objective_scalar(functions.objective, wide, max_values)
        numbers, sides = _signed(functions.constraints, wide)
        values = torch.full_like(numbers, -torch.inf).scatter_reduce(0, sides.row, sides.excess, "amax")
        scalars = [value, *_lagrangian(numbers, sides, values, multipliers)]
        rows = _gradients_by_weights(functions, scalars, wide, batches, processes or Processes())
    gradient, others = torch.cat([rows[0], extra]), torch.nn.functional.pad(rows[1:], (0, len(extra)))
    if not bool(gradient.isfinite().all() and others.isfinite().all()):
        raise NonFiniteError("a gradient on the split is not finite: the weights diverged, or the data holds NaN.")
    values = values.cpu()
    if multipliers is not None:
        push = torch.as_tensor(multipliers, dtype=torch.float64)
        return _certificate(gradient + others.sum(0), gradient, push * values, push.abs(), values)
    sides = _Sides(*(part.cpu() for part in sides))
    nu = _least_residuals(gradient, others, sides)
    push = torch.zeros(len(values), dtype=torch.float64).index_add(0, sides.row, nu * sides.sign)
    return _certificate(gradient + push @ others, gradient, nu * sides.excess, push.abs(), values)


def penalty_multipliers(
    penalty: Penalty,
    constraints: Sequence[Constraint],
    samples: Samples,
    epoch: int = 0,
    smoothing: Smoothing | None = None,
) -> list[float]:
    """What a fixed penalty multiplies the gradients of the h_i with, at their exact values.

    These are the slopes ``phi_rho'(h_i + kappa) / m``.  An algorithm replaces ``f_i = phi_rho(h_i(.) + kappa)`` as a
    whole by its smoothing, of which the slope by h_i is taken; it is another one than that of a smoothed phi_rho where
    h_i is made of several inner values.

    Args:
        penalty: how the constraints are enforced.
        constraints: all of them, with m rows together.
        samples: the network's outputs on the whole data sets and their columns, by part.
        epoch: of which rho is taken.
        smoothing: of the algorithm, by which f_i is replaced; None for none.
    """
    total, slopes = sum(c.num_rows for c in constraints), list[float]()
    for c in constraints:
        values = _inner_values(c, samples)
        outer = (smoothing or NoSmoothing())(c.outer(penalty.outer(penalty.weight(epoch), c.kappa)))
        constraint_slopes = outer_slopes(c.number, values)
        slope = (outer_slopes(outer, values) * constraint_slopes).sum(1) / constraint_slopes.square().sum(1)
        slopes += (slope.abs() / total).tolist()
    return slopes


# ------------------------------------------------------------------------------------------- by the network's outputs


def require_certifiable(functions: InnerFunctions, parts: Sequence[str], max_values: float = MAX_VALUES) -> None:
    """Find out before anything runs whether a certificate can be given.

    Args:
        functions: the network, the objective and the constraints.
        parts: names of the data sets that are there, that of the objective first.
        max_values: most values of the gradients of objective and constraints, > 0.

    Raises:
        ConfigError: see :func:`certificate`.
    """
    measured: list[Objective | Constraint] = [functions.objective, *functions.constraints]
    elsewhere = [type(g).__name__ for g in measured if g.part is not None and g.part not in parts]
    if elsewhere:
        raise ConfigError(
            f"a certificate is of whole data sets, here {', '.join(parts)}, but {', '.join(elsewhere)} names another "
            "part of the batches that it is measured on. Switch diagnostics off."
        )
    if isinstance(functions.network, TwoViews):
        raise ConfigError(
            f"{type(functions.objective).__name__} is an expectation over random views of the samples, of which a "
            "network TwoViews makes none in evaluation: it has no exact gradient on a split, which a certificate is "
            "made of. Switch diagnostics off."
        )
    number = 1 + sum(c.num_rows for c in functions.constraints)
    size = sum(p.numel() for p in functions.trainable().values())
    if size == 0:
        raise ConfigError("a certificate needs parameters that are trained, all of them are frozen. Unfreeze some.")
    if number * size > positive("max_values", max_values):
        raise ConfigError(
            f"the gradients of {number - 1:,} constraints by {size:,} parameters have {number * size:,} values, "
            f"max_values is {max_values:,.0f}. Raise max_values if the memory is there, or freeze layers."
        )


def _sample_parameters(objective: Objective, columns: Columns) -> dict[str, Tensor]:
    """The column of the parameters that every sample has of its own, as the start of a graph; empty without any.

    Raises:
        ConfigError: if the column is missing.
    """
    spec = objective.sample_parameters
    if spec is None:
        return {}
    if spec.name not in columns:
        raise ConfigError(
            f"{type(objective).__name__} trains parameters of single samples, which a certificate needs as the column "
            f"{spec.name!r} of the samples. Take them from the problem of the fit that trains them."
        )
    return {spec.name: columns[spec.name].detach().double().requires_grad_()}


def _prepared(objective: Objective, columns: Columns, max_values: float) -> Objective:
    """A copy that belongs to this split and this process alone."""
    copied, count = copy.deepcopy(objective), len(columns["index"])
    copied.num_samples, copied.direct_weight = count, 1.0
    copied.join(Processes(alone=True))
    if copied.outer is not None:
        domain = copied.row_domain(count, columns)
        rows = domain.num_rows if domain.owners is None else int(domain.owners.sum())
        if domain.per_sample and not copied.by_blocks and rows * count > max_values:
            raise ConfigError(
                f"{type(copied).__name__} may compare {rows:,} samples with {count:,} at once, max_values is "
                f"{max_values:,.0f}. Raise max_values if the memory is there, or take a smaller split."
            )
    return copied


def _objective_scalar(objective: Objective, samples: Samples, max_values: float) -> tuple[Tensor, Tensor]:
    """A scalar with the gradient of F, and what this is by parameters that are not the network's.

    Raises:
        DataError: if F is not finite for what the data holds.
    """
    copied = _prepared(objective, samples.of(objective)[1], max_values)
    outputs, columns = samples.of(copied)
    rows = _sample_parameters(copied, columns)
    value = value_of(copied, outputs, {**columns, **rows})
    if value is not None and not bool(value.isfinite()):
        copied.check(outputs, {**columns, **rows})
    value = torch.zeros((), dtype=torch.float64) if value is None else value
    return value, _own_gradient(value, copied, rows)


def _own_gradient(value: Tensor, objective: Objective, own_rows: Mapping[str, Tensor]) -> Tensor:
    """The gradient of F by the objective's own parameters and then by those of single samples, on the CPU."""
    parameters, rows = [p for p in objective.parameters() if p.requires_grad], list(own_rows.values())
    gradients = gradient(value, [*parameters, *rows])
    if objective.sample_parameters is None:
        return gradients
    least, greatest = objective.sample_parameters.least, objective.sample_parameters.most
    values = flat(rows)
    slope = gradients[len(gradients) - len(values) :]
    slope[(values <= least) & (slope > 0) | (values >= greatest) & (slope < 0)] = 0
    return gradients


def _signed(constraints: Sequence[Constraint], samples: Samples) -> tuple[Tensor, _Sides]:
    """The numbers s_i of all rows, with the graph of the outputs, shape (m,), and the sides."""
    reference = pytree.tree_leaves(samples.outputs)[0]
    numbers = [reference.new_zeros(0)]
    signs = [reference.new_zeros(0)]
    exceeded = [reference.new_zeros(0)]
    for c in constraints:
        values = _inner_values(c, samples)
        outer = c.number
        s = outer(values)
        numbers.append(s)
        exceeded.append(excess(s.detach().unsqueeze(1), c.kappa, c.sides).flatten())
        signs.append(s.new_tensor([1.0, -1.0][: c.sides]).repeat(c.num_rows))
    sign = torch.cat(signs)
    return torch.cat(numbers), _Sides((sign > 0).cumsum(0) - 1, sign, torch.cat(exceeded))  # a row begins with +


def _inner_values(constraint: Constraint, samples: Samples) -> Tensor:
    """The inner values of all rows, in their order.

    Raises:
        DataError: if the split has no sample for one.
    """
    outputs, columns = samples.of(constraint)
    index, values = inner_values(constraint, pytree.tree_map(Tensor.double, outputs), columns)
    missing = set(range(constraint.num_rows)) - set(index.tolist())
    if missing:
        raise DataError(
            f"the split has no sample of what the constraint {constraint.names[min(missing)]!r} is about. Use a split "
            "that holds every subset."
        )
    return values


def _lagrangian(numbers: Tensor, sides: _Sides, values: Tensor, multipliers: Sequence[float] | None) -> list[Tensor]:
    """The terms of the Lagrangian beside F, whose gradients by the weights are needed.

    With known multipliers that is one scalar with the gradient of ``sum_i nu_i h_i``.  The h_i of two sides,
    ``|s_i| - kappa``, has that of s_i with the sign of the side that is exceeded more, and none where both are exceeded
    alike.  Without multipliers it is every s_i by itself, as the best nu_i are yet to be found.
    """
    if multipliers is None or not len(numbers):
        return list(numbers)
    nu = torch.as_tensor(multipliers, dtype=torch.float64, device=numbers.device)
    largest = (sides.excess == values[sides.row]).to(sides.sign.dtype)  # the side that is exceeded more
    sign = torch.zeros_like(values).index_add(0, sides.row, largest * sides.sign).clamp(-1, 1)
    return [(nu * sign) @ numbers]


# --------------------------------------------------------------------------------------------------------- by weights


def _gradients_by_weights(
    functions: InnerFunctions,
    scalars: Sequence[Tensor],
    samples: Samples,
    batches: Mapping[str, Iterable[Columns]],
    processes: Processes,
) -> Tensor:
    """The gradients of scalars of the outputs by the network's weights, shape (scalars, d), on the CPU.

    Where o_j are the outputs on sample j, the gradient of a scalar S is ``sum_j (dS / d o_j) (d o_j / dw)``: the first
    factor is taken once for whole data sets, the second in the network's pass over the batches.
    """
    weights = [p for p in functions.network.parameters() if p.requires_grad]
    total = torch.zeros(len(scalars), sum(w.numel() for w in weights), dtype=torch.float64)
    with processes.together():
        for name, loader in batches.items() if weights else ():
            leaves, index = pytree.tree_leaves(samples.outputs[name]), samples.batch[name]["index"]
            slopes = [gradients(number, leaves) for number in scalars]  # none of a part on which it does not depend
            depending, ordered = [k for k, slope in enumerate(slopes) if slope], index.argsort()
            for batch in loader if depending else ():
                outputs = pytree.tree_leaves(outputs_of_columns(functions.network, batch))
                positions = ordered[torch.searchsorted(index[ordered], batch["index"])]
                for k in depending:
                    products = [(s[positions].to(o.dtype) * o).sum() for s, o in zip(slopes[k], outputs, strict=True)]
                    total[k] += gradient(torch.stack(products).sum(), weights)
    device = next(iter(samples.batch.values()))["index"].device
    for row in total if processes.size > 1 else ():
        row.copy_(processes.sum_(row.to(device)))
    return total


# ------------------------------------------------------------------------------------------------------- multipliers


def _least_residuals(objective: Tensor, rows: Tensor, sides: _Sides) -> Tensor:
    """The multipliers of the sides for which stationarity and complementarity are nearest to 0, in least squares."""
    if not len(sides.row):
        return torch.zeros(0, dtype=torch.float64)
    products = gram(torch.cat([objective.unsqueeze(0), rows]))
    sign = sides.sign.unsqueeze(1) * sides.sign
    matrix = sign * products[1:, 1:][sides.row][:, sides.row] + sides.excess.square().diag()
    towards = -sides.sign * products[0, 1:][sides.row]
    values, vectors = torch.linalg.eigh(matrix)
    significant = values > len(values) * torch.finfo(torch.float64).eps * values[-1]
    root = values[significant].sqrt().unsqueeze(1)
    solved, _ = nnls(
        (root * vectors[:, significant].T).numpy(), (vectors[:, significant].T @ towards / root.squeeze(1)).numpy()
    )
    return torch.from_numpy(np.asarray(solved, dtype=np.float64))


def _certificate(total: Tensor, objective: Tensor, products: Tensor, nu: Tensor, values: Tensor) -> Certificate:
    stationarity = float(total.norm())
    complementarity = float(products.abs().max()) if len(products) else 0.0
    violation = float(values.max()) if len(values) else 0.0
    return Certificate(
        stationarity,
        float(objective.norm()),
        complementarity,
        violation,
        max(stationarity, complementarity, violation),
        tuple(nu.tolist()),
        tuple(values.tolist()),
    )
