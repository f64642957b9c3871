"""Explanations of why a batch was refused, for error messages."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from fcco_lightning.engine.estimates import Outputs
from fcco_lightning.engine.functions import InnerFunctions, read
from fcco_lightning.engine.problem import Problem
from fcco_lightning.engine.terms import Seen
from fcco_lightning.errors import DataError
from fcco_lightning.models.batch import Batch, Columns
from fcco_lightning.numerics import all_finite
from fcco_lightning.outer import slopes

Measure = Callable[[Outputs], tuple[Tensor | None, list[Seen]]]

_OVERFLOWS = 1e20  # products of inner values and slopes of this size give gradients that overflow float32
_SMALL = 2.0**-14  # a factor with which backpropagation through a network does not overflow in any type
_MOST_NAMED = 10


def check(problem: Problem, outputs: Outputs) -> None:
    """Check a batch for data that would be misread, and that it contains the declared rows.

    Raises:
        DataError, StateIndexError: naming the value and the remedy.
    """
    check_columns(problem, outputs)
    problem.check_index(outputs.columns)
    for term in problem.all_terms:
        with torch.no_grad():
            term.check(*read(outputs.now, outputs.columns, term.measurable))


def check_columns(problem: Problem, outputs: Outputs) -> None:
    """Let the objective and the constraints check weights, labels and groups of a batch.

    Raises:
        DataError: naming the value and the remedy.
    """
    for name, columns in outputs.columns.items():
        weight = columns.get("weight")
        wrong = None if not isinstance(weight, Tensor) else weight[~((weight >= 0) & weight.isfinite())]
        if wrong is not None and len(wrong):
            raise DataError(
                f"the column `weight` of the part {name!r} contains {float(wrong[0]):g}; sample weights must be "
                "finite numbers >= 0. Correct the column, or give it another name if it is not meant as a weight."
            )
    for measurable in (problem.objective, *problem.constraints):
        measurable.check(*read(outputs.now, outputs.columns, measurable))


def reason(
    problem: Problem,
    functions: InnerFunctions,
    measure: Measure,
    batch: Batch,
    outputs: Outputs,
    values: Sequence[Tensor],
) -> str:
    """Sentences that say which values of a batch are not finite, and the likely cause.

    Args:
        problem: the problem whose terms were measured.
        functions: the network, whose buffers may change here.
        measure: returns g_0 and what a batch contains of every term, see :meth:`Engine.measure`.
        batch: this process's part of the batch.
        outputs: the network's outputs for the batch of all processes.
        values: the tensors, besides gradients, that must be finite.
    """
    measured, narrowness = measure(outputs.at_present()), _narrowness(functions.network, outputs)
    against = problem.objective.against_overflow
    if not all_finite(values):
        text = (
            f"{_blame(problem, *measured)} is not finite; no row and no weight was changed. The scores or the features "
            "hold NaN or infinity, or the weights diverged: lower the learning rate or rho, clip with "
            "--model.clipping.value, or set --model.execution.skip_nonfinite true to drop such batches. "
            f"If values overflow: {against}{narrowness}"
        )
    else:
        differentiable = partial(_has_derivatives, functions, measure, batch, outputs)
        text = _of_gradient(measured[1], values, against, narrowness, differentiable)
    return text + "".join(_bad_inputs(columns) for columns in batch.values())


def _of_gradient(
    terms: Sequence[Seen], values: Sequence[Tensor], against: str, narrowness: str, differentiable: Callable[[], bool]
) -> str:
    """Sentences that say whether the gradient overflowed, or a derivative does not exist."""
    unchanged = "the gradient is not finite although the loss is; no row and no weight was changed."
    size = max([*(abs(float(v)) for v in values if v.dim() == 0), *map(_steepest, terms)], default=0.0)
    if size < _OVERFLOWS and differentiable():
        return (
            f"{unchanged} It overflows on its way back through the network, all of whose derivatives exist. Lower the "
            f"learning rate, or scale inputs and weights down.{narrowness}"
        )
    if size < _OVERFLOWS:
        return f"{unchanged} Look for a function without derivative at a value that occurs, such as sqrt or norm at 0."
    measured = [seen.g[seen.present].abs() for seen in terms]
    largest = max((float(g.max()) for g in measured if len(g)), default=size)
    return (
        f"{unchanged} It overflows: inner values reach {largest:.1e}, and times the slopes of the outer functions "
        f"{size:.1e}. {against} Or lower the learning rate.{narrowness}"
    )


def _steepest(seen: Seen) -> float:
    """The largest inner value times the slope of its outer function, at the remembered row."""
    values = torch.where(seen.present.unsqueeze(1), seen.g, 1.0)
    rows = values if seen.held is None else torch.where(seen.held.isnan(), values, seen.held)
    return float((slopes(seen.f, rows) * values).abs().nan_to_num(torch.inf).max()) if len(values) else 0.0


def _has_derivatives(functions: InnerFunctions, measure: Measure, batch: Batch, outputs: Outputs) -> bool:
    """Whether outputs by weights, and g_0 and inner values by outputs, have finite derivatives."""
    with torch.enable_grad():
        local_outputs = pytree.tree_leaves(functions.outputs(batch))
        small = [(leaf.float() * _SMALL).sum() for leaf in local_outputs if leaf.requires_grad]
        try:
            by_weights = torch.autograd.grad(small, functions.params, allow_unused=True)
        except RuntimeError:  # with a criterion, the graph of the outputs has been freed
            return False
        leaves = pytree.tree_map_only(Tensor, lambda leaf: leaf.detach().requires_grad_(), outputs.now)
        g0, terms = measure(outputs._replace(now=leaves).at_present())
        values = [seen.g.sum() for seen in terms] + ([] if g0 is None else [g0])
        by_outputs = torch.autograd.grad(values, pytree.tree_leaves(leaves), allow_unused=True)
    return all_finite([g for g in (*by_weights, *by_outputs) if g is not None])


def _blame(problem: Problem, g0: Tensor | None, terms: Sequence[Seen]) -> str:
    """A phrase that names the first value that is not finite."""
    if g0 is not None and not bool(torch.isfinite(g0)):
        return f"the objective {type(problem.objective).__name__} (value {g0.item()})"
    for seen in terms:
        bad = (seen.present & ~torch.isfinite(seen.g).all(1)).nonzero().flatten()
        if len(bad):
            row = int(bad[0]) if seen.rows is None else int(seen.rows[bad[0]])
            return f"the inner value of row {row} of the {seen.term.name}"
    return "a sum of finite values, a new value of a row, or a value at the previous weights,"


def narrow_weights(network: nn.Module) -> str:
    """A sentence, after a blank, on the range of float16, if a weight has that type; otherwise nothing."""
    if all(p.dtype != torch.float16 for p in network.parameters()):
        return ""
    return (
        " The weights are float16 (precision 16-true), which holds nothing above 65504 or below 6e-8: use "
        "--trainer.precision bf16-mixed or 32-true."
    )


def _narrowness(network: nn.Module, outputs: Outputs) -> str:
    """As :func:`narrow_weights`, also where the network only computes in float16."""
    remark = narrow_weights(network)
    if remark or all(leaf.dtype != torch.float16 for leaf in pytree.tree_leaves(outputs.now)):
        return remark
    return (
        " The network computes in float16 (autocast), which holds nothing above 65504: use bfloat16 "
        "(--trainer.precision bf16-mixed). A loss scaler (16-mixed) drops steps of which the gradient alone overflows."
    )


def named_samples(bad: Tensor, columns: Columns) -> str:
    """A phrase that names the samples marked by a mask (B,), by their ``index`` or else by their position."""
    positions = bad.nonzero()[:, 0]
    numbers = columns["index"].to(positions.device)[positions].flatten() if "index" in columns else positions
    more = f" and {len(positions) - _MOST_NAMED} more" if len(positions) > _MOST_NAMED else ""
    what = "index" if "index" in columns else "position"
    return f"the samples with {what} {', '.join(str(i) for i in numbers[:_MOST_NAMED].tolist())}{more}"


def _bad_inputs(columns: Columns) -> str:
    """A sentence, after a blank, on the samples whose input ``x`` is not finite; nothing if there are none."""
    x: Any = columns.get("x")
    if not isinstance(x, Tensor) or x.layout != torch.strided:
        return ""
    bad = ~torch.isfinite(x).reshape(len(x), x.shape[1:].numel()).all(1)  # also without samples
    return f" `x` of {named_samples(bad, columns)} is NaN or infinite." if bool(bad.any()) else ""
