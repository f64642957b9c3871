"""Why a batch was refused, in sentences."""

from collections.abc import Sequence
from functools import partial
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from fcco_lightning.engine.batches import part_name
from fcco_lightning.engine.estimates import Evaluated
from fcco_lightning.engine.functions import read
from fcco_lightning.engine.problem import Problem
from fcco_lightning.engine.running import Method, Running
from fcco_lightning.engine.terms import Reading
from fcco_lightning.errors import ConfigError, DataError, NonFiniteError
from fcco_lightning.models.batch import Columns
from fcco_lightning.numerics import all_finite
from fcco_lightning.outer import slopes

_OVERFLOWS = 1e20  # inner values times slopes of this size give gradients that float32 does not hold
_SMALL = 2.0**-14  # a derivative of this size overflows in no type on its way through a network
_MOST_NAMED = 10


def check(problem: Problem, algorithm: Method, seen: Evaluated) -> None:
    """Let objective, constraints and algorithm look at a batch and refuse what they would misread.

    Raises:
        DataError, StateIndexError, ConfigError: naming the value and the remedy.
    """
    for name, columns in seen.batch.items():
        weight = columns.get("weight")
        if isinstance(weight, Tensor) and bool((weight < 0).any()):
            raise DataError(
                f"the column `weight` of the part {name!r} holds {float(weight.min()):g}: weights of samples are "
                "numbers >= 0. Correct the column, or call it otherwise."
            )
    problem.check_index(seen.batch)
    for part in (problem.objective, *problem.constraints):
        part.check(*read(seen.outputs, seen.batch, part))
    for term in problem.all_terms:
        outputs, columns = read(seen.outputs, seen.batch, term.part)
        term.check_index(columns)
        with torch.no_grad():
            term.check_owners(outputs, columns)
    algorithm.check(seen)
    for own in algorithm.measured_apart(seen):
        problem.objective.check(*read(own.outputs, own.batch, problem.objective))


def require_single(engine: Running, seen: Evaluated) -> None:
    """Try a batch of one sample, the first of each part, where an epoch is going to end with one.

    Rows, buffers and random streams stay as they are.

    Raises:
        ConfigError: if the network, a part or the algorithm cannot do with it.
    """
    cut = partial(pytree.tree_map_only, Tensor, lambda leaf: leaf[:1])
    with torch.no_grad(), engine.functions.elsewhere([p.data for p in engine.params]):
        try:
            outputs = engine.functions.outputs(cut(engine.given))
            single = Evaluated(outputs, cut(seen.batch), None, None, outputs)
            for own in (single, *engine.algorithm.measured_apart(single)):
                engine.measure(own)
        except (DataError, ConfigError, ValueError) as error:
            raise ConfigError(
                f"the last batch of every epoch holds one sample, and one alone does not do: {error} Leave that batch "
                "out (drop_last=True of the loader, --data.batches.drop_last true), or choose another batch_size."
            ) from error


def name_index(engine: Running) -> None:
    """Look for the index of a batch that names no row, or a number of a group or class that is none.

    Raises:
        StateIndexError, DataError: naming it.
    """
    batch = engine.given
    if batch:
        engine.problem.check_index(batch)
    if engine.seen is not None:
        check(engine.problem, engine.algorithm, engine.seen)
        return
    for term in engine.problem.all_terms if batch else ():
        part = term.part.part
        term.check_index(batch if isinstance(part, tuple) else batch[part_name(batch, part)])


def refuse(engine: Running, values: Sequence[Tensor]) -> NoReturn:
    """Say which part of a batch is not finite, and what may lie behind it.

    Args:
        engine: with what the batch has said.
        values: what must be finite beside gradients.

    Raises:
        NonFiniteError: always, unless a part says in other words what is wrong with the data.
    """
    weights = [p.data for p in engine.params]
    with torch.no_grad(), engine.functions.elsewhere(weights):  # so that no buffer moves
        seen = engine.seen or engine.evaluate(engine.given)
        check(engine.problem, engine.algorithm, seen)
        of_values = not all_finite(values)
        text = _of_value(engine, seen) if of_values else _of_gradient(engine, seen, values)
    bad_inputs = "".join(_bad_inputs(columns) for columns in engine.given.values())
    raise NonFiniteError(text + bad_inputs)


def _of_value(engine: Running, seen: Evaluated) -> str:
    return (
        f"{_blame(engine, seen)} is not finite; no row and no weight was changed. The scores or the features hold "
        "NaN or infinity, or the weights diverged: lower the learning rate or rho, clip with "
        "--model.clipping.value, or set --model.execution.skip_nonfinite true to drop such batches. "
        f"If values overflow: {engine.problem.objective.against_overflow}{_narrowness(engine, seen)}"
    )


def _of_gradient(engine: Running, seen: Evaluated, values: Sequence[Tensor]) -> str:
    """Say whether the gradient overflowed, or a derivative does not exist."""
    unchanged = "the gradient is not finite although the loss is; no row and no weight was changed."
    readings = engine.measure(seen.at_present()).readings
    size = max([*(abs(float(v)) for v in values if v.dim() == 0), *map(_steepest, readings)], default=0.0)
    if size < _OVERFLOWS and _has_derivatives(engine, seen):
        return (
            f"{unchanged} It overflows on its way back through the network, all of whose derivatives exist. Lower the "
            f"learning rate, or scale inputs and weights down.{_narrowness(engine, seen)}"
        )
    if size < _OVERFLOWS:
        return f"{unchanged} Look for a function without derivative at a value that occurs, such as sqrt or norm at 0."
    measured = [r.values[r.present].abs() for r in readings]
    largest = max((float(values.max()) for values in measured if len(values)), default=size)
    return (
        f"{unchanged} It overflows: inner values reach {largest:.1e}, and times the slopes of the outer functions "
        f"{size:.1e}. {engine.problem.objective.against_overflow} Or lower the learning rate."
        f"{_narrowness(engine, seen)}"
    )


def _steepest(reading: Reading) -> float:
    """The largest inner value times the slope of its outer function, at the remembered row."""
    values = torch.where(reading.present.unsqueeze(1), reading.values, 1.0)
    rows = values if reading.held is None else torch.where(reading.held.isnan(), values, reading.held)
    return float((slopes(reading.outer, rows) * values).abs().nan_to_num(torch.inf).max()) if len(values) else 0.0


def _has_derivatives(engine: Running, seen: Evaluated) -> bool:
    """Whether the outputs have finite derivatives by the weights, and what is measured by the outputs."""
    with torch.enable_grad():
        outputs = pytree.tree_leaves(engine.functions.outputs(engine.given))
        small = [(leaf.float() * _SMALL).sum() for leaf in outputs if leaf.requires_grad]
        try:
            found = torch.autograd.grad(small, engine.params, allow_unused=True)
        except RuntimeError:  # a criterion is given outputs whose graph has been gone through
            return False
        leaves = pytree.tree_map_only(Tensor, lambda leaf: leaf.detach().requires_grad_(), seen.outputs)
        measured = engine.measure(seen._replace(outputs=leaves).at_present())
        values = [reading.values.sum() for reading in measured.readings]
        values += [] if measured.direct is None else [measured.direct]
        by_outputs = torch.autograd.grad(values, pytree.tree_leaves(leaves), allow_unused=True)
    return all_finite([g for g in (*found, *by_outputs) if g is not None])


def _blame(engine: Running, seen: Evaluated) -> str:
    """The first part that is not finite."""
    measured, objective = engine.measure(seen.at_present()), engine.problem.objective
    if measured.direct is not None and not bool(torch.isfinite(measured.direct)):
        return f"the objective {type(objective).__name__} (value {measured.direct.item()})"
    for reading in measured.readings:
        bad = (reading.present & ~torch.isfinite(reading.values).all(1)).nonzero().flatten()
        if len(bad):
            row = int(bad[0]) if reading.index is None else int(reading.index[bad[0]])
            return f"the inner value of row {row} of the {reading.term.name}"
    return "a sum of finite values, a new value of a row, or a value at the previous weights,"


def narrow_weights(network: nn.Module) -> str:
    """A sentence behind a blank on what float16 does not hold, if a weight is of that type; else nothing."""
    if all(p.dtype != torch.float16 for p in network.parameters()):
        return ""
    return (
        " The weights are float16 (precision 16-true), which holds nothing above 65504 or below 6e-8: use "
        "--trainer.precision bf16-mixed or 32-true."
    )


def _narrowness(engine: Running, seen: Evaluated) -> str:
    """As :func:`narrow_weights`, also where the network only computes in float16."""
    of_weights = narrow_weights(engine.functions.network)
    if of_weights or all(leaf.dtype != torch.float16 for leaf in pytree.tree_leaves(seen.outputs)):
        return of_weights
    return (
        " The network computes in float16 (autocast), which holds nothing above 65504: use bfloat16 "
        "(--trainer.precision bf16-mixed), or a loss scaler, which drops such steps (16-mixed)."
    )


def named_samples(bad: Tensor, columns: Columns) -> str:
    """The samples that a mask (B,) marks, by their ``index``, or by their position where there is none."""
    at = bad.nonzero()[:, 0]
    numbers = columns["index"].to(at.device)[at].flatten() if "index" in columns else at
    more = f" and {len(at) - _MOST_NAMED} more" if len(at) > _MOST_NAMED else ""
    what = "index" if "index" in columns else "position"
    return f"the samples with {what} {', '.join(str(i) for i in numbers[:_MOST_NAMED].tolist())}{more}"


def _bad_inputs(columns: Columns) -> str:
    """A sentence behind a blank on the samples whose input ``x`` is not finite; nothing if there are none."""
    x: Any = columns.get("x")
    if not isinstance(x, Tensor) or x.layout != torch.strided:
        return ""
    bad = ~torch.isfinite(x).reshape(len(x), x.shape[1:].numel()).all(1)  # of no sample, too
    return f" `x` of {named_samples(bad, columns)} is NaN or infinite." if bool(bad.any()) else ""
