"""A step from the network's input, or its outputs, to the estimate of F as one graph, by torch.compile."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import FunctionType
from typing import Any

import torch
from torch import Tensor

from fcco_lightning.engine.estimates import Estimate, Evaluated, Measured, Proposal, Summand
from fcco_lightning.engine.functions import RandomState
from fcco_lightning.engine.running import Running
from fcco_lightning.models.batch import Batch

_FULL = (torch.float32, torch.float64)
_OF_CODE = {"BUILTIN_MATCH", "CLASS_MATCH", "CLOSURE_MATCH", "DUPLICATE_INPUT", "ID_MATCH", "MODULE_MATCH"}
"""Kinds of assumptions that a name stands for the same function, class or module."""


class Compiled:
    """Steps compiled by torch.compile.

    Where one process evaluates the network on a batch as a whole, network, step and gradient are one graph, with the
    network at previous weights; else the graph begins with the outputs of all processes.  A network that draws random
    numbers, such as dropout's, is evaluated at previous weights before the graph, which then draws the same ones.

    Args:
        engine: whose steps these are.
    """

    def __init__(self, engine: Running) -> None:
        self._engine, self._made = engine, dict[Any, Callable[..., Any]]()
        self._states = engine.problem.numbered_states()
        self._draws = True  # random numbers, as far as is known
        self._outputs = _compiled(lambda batch: engine.functions.outputs(batch))  # noqa: PLW0108 - a plain function
        config: Any = torch._dynamo.config  # a switch that younger versions of torch have
        self._differentiates = hasattr(config, "trace_autograd_ops")
        self._traced: AbstractContextManager[None] = (
            config.patch(trace_autograd_ops=True) if self._differentiates else nullcontext()
        )

    def __reduce__(self) -> tuple[Callable[[], None], tuple[()]]:
        return _nothing, ()  # of an engine that is copied

    def applies(self) -> bool:
        """Whether steps are compiled.

        Not with a weight of the penalty that follows a schedule, as it would be compiled anew for every value; nor
        where parts with parameters of their own are measured at previous weights; and the default dtype must be that of
        the rows.
        """
        engine = self._engine
        scheduled = getattr(engine.problem.penalty, "schedule", None) is not None
        elsewhere = engine.algorithm.needs_previous and not engine.network_alone
        return not scheduled and not elsewhere and torch.get_default_dtype() in _FULL

    def __call__(self, step: Callable[[Measured], Estimate], batch: Batch, before: Sequence[Tensor] | None) -> Estimate:
        """See :meth:`Engine.run`."""
        engine, whole = self._engine, self._engine.alone
        engine.given, engine.stop_agreed = batch, engine.stop_asked if whole else engine.stop_agreed
        if not engine.checked:  # compiled code looks at nothing, and cannot make what is made once and kept
            with engine.functions.elsewhere([p.data for p in engine.params]):
                state = RandomState(engine.params[0].device)
                step(engine.measure(engine.evaluate(batch, before)))
                self._draws = state.has_moved()
        given: Any = self._attached(batch, before) if whole else engine.evaluate(batch, before)
        wanted = whole and self._differentiates and engine.backend.takes_gradients(engine.params)
        trained = tuple((id(w), w.requires_grad) for w in engine.params)  # torch 2.11 does not see that one was frozen
        key = (getattr(step, "__func__", step), whole, wanted, trained)
        if key not in self._made:
            self._made[key] = _compiled(self._function(step, whole=whole, wanted=wanted))
        state = RandomState(engine.params[0].device)
        with self._traced:
            value, gradients, proposals, counted, parts = self._made[key](given)
        self._draws = self._draws or state.has_moved()  # as where dropout begins later
        estimate = Estimate(value)
        estimate.proposals = [Proposal(self._states[number], *rest) for number, *rest in proposals]
        estimate.counted = [(engine.problem.all_terms[number].weights, *rest) for number, *rest in counted]
        estimate.parts.summands = [Summand(name, total, rows=rows) for name, total, rows in parts]
        if gradients is not None:
            *estimate.gradients, estimate.by_rows = gradients
        return estimate

    def _attached(self, batch: Batch, before: Sequence[Tensor] | None) -> Evaluated:
        """Columns with parameters and strata of the samples; outputs at previous weights if the graph has not these."""
        engine, earlier = self._engine, None
        if before is not None and self._draws:
            with torch.no_grad(), engine.functions.elsewhere(before):
                earlier = self._outputs(batch)
        return Evaluated({}, engine.problem.attach(batch), earlier, before, {})

    def _function(self, step: Callable[[Measured], Estimate], *, whole: bool, wanted: bool) -> Callable[..., Any]:
        """What is compiled; ``wanted``: whether gradients are part of it."""
        engine = self._engine
        weights, parameters = list(engine.params), engine.problem.row_parameters
        names, places = list(engine.functions.trainable()), engine.functions.places()

        def run(given: Evaluated) -> tuple[Any, ...]:
            seen = given
            if whole and given.before is not None and given.earlier is None:
                before = dict(zip(names, given.before, strict=True))
                seen = seen._replace(earlier=engine.functions.outputs_at(before, places, given.batch))
            if whole:
                seen = seen._replace(outputs=engine.functions.outputs(given.batch))
            estimate = step(engine.measure(seen))
            value: Tensor = estimate.value
            gradients: list[Tensor | None] | None = None
            if wanted:
                leaves = [] if parameters is None else [_leaf(given.batch, parameters.spec.name)]
                wrt = [*(w for w in weights if w.requires_grad), *leaves]  # some may have been frozen since
                found = iter(torch.autograd.grad(value, wrt, allow_unused=True))
                gradients = [next(found) if w.requires_grad else None for w in weights]
                gradients.append(next(found, None))
                value = value.detach()
            proposals = [(p.state.number, p.index, p.rows, p.decay, p.finite) for p in estimate.proposals]
            counted = [(w.number, index, each) for w, index, each in estimate.counted]
            parts = [(one.name, *one.summed()) for one in estimate.parts.summands]
            return value, gradients, proposals, counted, parts

        return run


def _leaf(batch: Mapping[str, Any], name: str) -> Tensor:
    columns = next(iter(batch.values()))
    leaf: Tensor = columns[name]
    return leaf


def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    # torch counts recompilations by the name and place of code, of which every engine has its own; and it draws the
    # same dropout masks as without
    code = function.__code__.replace(co_name=f"{function.__name__}_{id(function)}")
    own = FunctionType(code, function.__globals__, code.co_name, function.__defaults__, function.__closure__)
    return torch.compile(own, options={"fallback_random": True, "guard_filter_fn": _may_change})


def _may_change(guards: Sequence[Any]) -> list[bool]:
    """Which of its assumptions torch.compile looks at before every step, where there would be hundreds.

    Numbers, tensors and objects may be others, of the network's modules too; the classes of these objects, and the
    functions and modules that code names, are taken to stay as they are while a program runs.
    """
    return [not ("type(" in g.name or (g.is_global and g.guard_type in _OF_CODE)) for g in guards]


def _nothing() -> None:
    return None
