"""The exact residuals of the Karush-Kuhn-Tucker conditions of a constrained solution on a whole split."""

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
    """Whole data sets by part of a batch; the objective's part is the first.

    Attributes:
        outputs: the network's outputs, nested tensors of first dimension n.
        batch: the columns of the same samples, including ``index``.
    """

    outputs: dict[str, Any]
    batch: Batch

    def of(self, measured: Measurable) -> tuple[Any, Any]:
        """The outputs and columns on which an objective or a constraint is measured."""
        return read(self.outputs, self.batch, measured)


class Certificate(NamedTuple):
    r"""The residuals of the conditions ``grad F + sum_i nu_i grad h_i = 0``, ``nu_i h_i = 0``, ``h_i <= 0``, nu >= 0.

    w is an eps-KKT point of ``min F(w) subject to h_i(w) <= 0`` (SONEX paper, Prop. 5.2, with w itself in place of a
    point near it).  A row with ``|nu_i h_i| <= eps`` may have any multiplier.  So at the kink of a penalty ``rho
    [h_i]_+`` the sign of a noisy h_i does not matter: as in Def. 4.1 there, the slope may be taken at a value near h_i.

    An example: ``F(w) = (w - 2)^2`` and ``h(w) = w - 1``.  At w = 1 the gradients are -2 and 1, and with nu = 2 all
    residuals are 0: the point is optimal.  At w = 1.1 the gradient of F is -1.8 and h = .1.  The best multiplier, the
    minimiser of ``(nu - 1.8)^2 + (.1 nu)^2``, is 1.78; stationarity is .018, complementarity .178, the violation .1,
    and eps .178.

    Attributes:
        stationarity: ``|grad F + sum_i nu_i grad h_i|``, in units of F per unit of a weight.
        gradient: ``|grad F|``, for comparison.
        complementarity: ``max_i |nu_i h_i|``, in units of F.
        violation: ``max_i h_i``; 0 without constraints.
        eps: the largest of stationarity, complementarity and the violation.
        multipliers: nu_i, shape (m,); for ``|s_i| <= kappa``, which is two constraints, the difference of their
            multipliers.
        values: h_i, shape (m,), with the enforced kappa.
    """

    stationarity: float
    gradient: float
    complementarity: float
    violation: float
    eps: float
    multipliers: tuple[float, ...]
    values: tuple[float, ...]


class _Sides(NamedTuple):
    """The one-sided constraints ``s_i - kappa <= 0``, and for rows with two sides also ``-s_i - kappa <= 0``.

    Attributes:
        row: row of the constraints to which each belongs, shape (sides,).
        sign: sign of s_i in it, shape (sides,).
        excess: ``s_i - kappa`` or ``-s_i - kappa``, shape (sides,).
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

    F, the h_i and their derivatives with respect to the network's outputs are computed on whole data sets; a second
    pass, batch by batch, propagates them to the weights.  So the gradient is exact for every objective, also if samples
    are compared with all others, and for every constraint, while only the activations of one batch are in memory.  No
    ``.grad`` and no buffer changes.

    Parameters of single samples are bounded.  If one is at a bound, a derivative that points outwards counts as 0, as
    the multiplier of the bound compensates it.

    Args:
        functions: the network, the objective and the constraints.
        samples: the network's outputs on the whole data sets by part, nested tensors of first dimension n, and their
            columns, including ``index``, on the parameters' device.  The objective is measured on the first part, every
            constraint on its :attr:`part` (a single split is the part "target").  Parameters of single samples, such as
            temperatures of pairs, are a column with the name that the objective gives.
        batches: by part the same samples again, or this process's share of them, with the network's input.
        multipliers: nu_i, shape (m,); they need one or two backward passes per batch.  By default those that minimise
            the residuals, ``argmin over nu >= 0 of |grad F + sum_i nu_i grad h_i|^2 + sum_i (nu_i h_i)^2``, which need
            a backward pass per batch for F and for each s_i.
        processes: the processes of the job, which share the batches; this one alone by default.
        max_values: largest number of values of the gradients of all constraints, and of an objective's comparisons of
            samples that are in memory at once.

    Raises:
        ConfigError: if the objective or a constraint is measured on a missing part, the column of parameters of single
            samples is missing, the network makes random views of the samples, nothing is trained, or there are too many
            values.
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
    smoothing: Smoothing | None = None,
) -> list[float]:
    """The factors of a fixed penalty on the gradients of the h_i, at the exact values of the h_i.

    They are the slopes ``phi_rho'(h_i + kappa) / m``.  If an algorithm smooths ``f_i = phi_rho(h_i(.) + kappa)``, the
    slope of the smoothed f_i with respect to h_i is used; it differs from that of a smoothed phi_rho if h_i depends on
    several inner values.

    Args:
        penalty: the penalty.
        constraints: all constraints, with m rows in total.
        samples: the network's outputs on the whole data sets and their columns, by part.
        smoothing: the algorithm's smoothing of f_i; None for none.
    """
    total, slopes = sum(c.num_rows for c in constraints), list[float]()
    for c in constraints:
        values = _inner_values(c, samples)
        outer = (smoothing or NoSmoothing())(c.outer(penalty.outer(c.kappa)))
        constraint_slopes = outer_slopes(c.number, values)
        slope = (outer_slopes(outer, values) * constraint_slopes).sum(1) / constraint_slopes.square().sum(1)
        slopes += (slope.abs() / total).tolist()
    return slopes


# ------------------------------------------------------------------------------------------- by the network's outputs


def require_certifiable(functions: InnerFunctions, parts: Sequence[str], max_values: float = MAX_VALUES) -> None:
    """Raise before any computation if a certificate cannot be computed.

    Args:
        functions: the network, the objective and the constraints.
        parts: names of the available data sets, the objective's first.
        max_values: largest number of values of the gradients of objective and constraints, > 0.

    Raises:
        ConfigError: see :func:`certificate`.
    """
    measured: list[Objective | Constraint] = [functions.objective, *functions.constraints]
    elsewhere = [type(g).__name__ for g in measured if g.part is not None and g.part not in parts]
    if elsewhere:
        raise ConfigError(
            f"a certificate is computed on whole data sets, here {', '.join(parts)}, but {', '.join(elsewhere)} "
            "names another part of the batches as its data. Switch diagnostics off."
        )
    if isinstance(functions.network, TwoViews):
        raise ConfigError(
            f"{type(functions.objective).__name__} is an expectation over random views of the samples, and the "
            "network TwoViews creates none in evaluation, so that it has no exact gradient on a split, which a "
            "certificate needs. Switch diagnostics off."
        )
    number = 1 + sum(c.num_rows for c in functions.constraints)
    size = sum(p.numel() for p in functions.trainable().values())
    if size == 0:
        raise ConfigError("a certificate needs trainable parameters, but all parameters are frozen. Unfreeze some.")
    if number * size > positive("max_values", max_values):
        raise ConfigError(
            f"the gradients of {number - 1:,} constraints with respect to {size:,} parameters have "
            f"{number * size:,} values, more than max_values={max_values:,.0f}. Raise max_values if there is enough "
            "memory, or freeze layers."
        )


def _sample_parameters(objective: Objective, columns: Columns) -> dict[str, Tensor]:
    """The column of the parameters of single samples, requiring gradients; empty without such parameters.

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
    """A copy of the objective for this split and this process alone."""
    copied, count = copy.deepcopy(objective), len(columns["index"])
    copied.num_samples, copied.direct_weight = count, 1.0
    copied.join(Processes(alone=True))
    if copied.outer is not None:
        domain = copied.row_domain(count, columns)
        rows = domain.num_rows if domain.owners is None else int(domain.owners.sum())
        if domain.per_sample and not copied.by_blocks and rows * count > max_values:
            raise ConfigError(
                f"{type(copied).__name__} may compare {rows:,} samples with {count:,} samples at once, more values "
                f"than max_values={max_values:,.0f}. Raise max_values if there is enough memory, or use a smaller "
                "split."
            )
    return copied


def _objective_scalar(objective: Objective, samples: Samples, max_values: float) -> tuple[Tensor, Tensor]:
    """F as a scalar with graph, and its gradient with respect to parameters that are not the network's.

    Raises:
        DataError: if F is not finite because of the data.
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
    """The gradient of F by the objective's parameters, followed by that of single samples' parameters, on the CPU."""
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
    """The numbers s_i of all rows, with the graph to the outputs, shape (m,), and the sides."""
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
    return torch.cat(numbers), _Sides((sign > 0).cumsum(0) - 1, sign, torch.cat(exceeded))  # rows begin with +


def _inner_values(constraint: Constraint, samples: Samples) -> Tensor:
    """The inner values of all rows in order.

    Raises:
        DataError: if the split has no sample for a row.
    """
    outputs, columns = samples.of(constraint)
    index, values = inner_values(constraint, pytree.tree_map(Tensor.double, outputs), columns)
    missing = set(range(constraint.num_rows)) - set(index.tolist())
    if missing:
        raise DataError(
            f"the split contains no sample of a subset that the constraint {constraint.names[min(missing)]!r} "
            "compares. Use a split that contains samples of all subsets."
        )
    return values


def _lagrangian(numbers: Tensor, sides: _Sides, values: Tensor, multipliers: Sequence[float] | None) -> list[Tensor]:
    """The scalars, besides F, whose gradients with respect to the weights are needed.

    With given multipliers this is one scalar with the gradient of ``sum_i nu_i h_i``.  For ``h_i = |s_i| - kappa`` the
    gradient of s_i is used with the sign of the side with the larger excess, and 0 if both are equal.  Without
    multipliers these are all s_i, as the best nu_i must still be found.
    """
    if multipliers is None or not len(numbers):
        return list(numbers)
    nu = torch.as_tensor(multipliers, dtype=torch.float64, device=numbers.device)
    largest = (sides.excess == values[sides.row]).to(sides.sign.dtype)  # the side with the larger excess
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
    """The gradients of scalar functions of the outputs by the network's weights, shape (scalars, d), on the CPU.

    With the outputs o_j on sample j, the gradient of a scalar S is ``sum_j (dS / d o_j) (d o_j / dw)``: the first
    factor is computed once for whole data sets, the second in the network's pass over the batches.
    """
    weights = [p for p in functions.network.parameters() if p.requires_grad]
    total = torch.zeros(len(scalars), sum(w.numel() for w in weights), dtype=torch.float64)
    with processes.together():
        for name, loader in batches.items() if weights else ():
            leaves, index = pytree.tree_leaves(samples.outputs[name]), samples.batch[name]["index"]
            slopes = [gradients(number, leaves) for number in scalars]  # empty if independent of the part
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
    """The multipliers of the sides that minimise stationarity and complementarity, in least squares."""
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
