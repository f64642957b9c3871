"""Steps from the network's input, or its outputs, to the estimate of F, compiled as one graph by torch.compile."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import FunctionType
from typing import Any

import torch
from torch import Tensor

from fcco_lightning.engine.diagnosis import Measure
from fcco_lightning.engine.estimates import Estimate, NewRows, Outputs, Summand
from fcco_lightning.engine.functions import InnerFunctions, have_been_drawn, random_state
from fcco_lightning.engine.problem import Problem

_OF_CODE = {"BUILTIN_MATCH", "CLASS_MATCH", "CLOSURE_MATCH", "DUPLICATE_INPUT", "ID_MATCH", "MODULE_MATCH"}
"""Kinds of guards which assume that a name stands for the same function, class or module."""


class Compiled:
    """Steps compiled by torch.compile.

    If one process evaluates the network on whole batches, the network (also at the previous weights), the step and the
    gradient form one graph; otherwise the graph begins with the outputs of all processes.  A network that draws random
    numbers, as dropout does, is evaluated at the previous weights before the graph, which then draws the same numbers.

    Args:
        functions: the network, and the trained parameters.
        problem: the problem, whose rows are read.
        measure: returns g_0 and what a batch contains of every term, see :meth:`Engine.measure`.

    Attributes:
        draws: whether the network draws random numbers, as far as it is known.
    """

    def __init__(self, functions: InnerFunctions, problem: Problem, measure: Measure) -> None:
        self._functions, self._problem, self._measure = functions, problem, measure
        self._made = dict[Any, Callable[..., Any]]()
        self._states, self.draws = problem.numbered_states(), True
        self._outputs = _compiled(lambda batch: functions.outputs(batch))  # noqa: PLW0108 - a plain function
        config: Any = torch._dynamo.config  # this switch exists in newer versions of torch
        self._differentiates = hasattr(config, "trace_autograd_ops")
        self._traced: AbstractContextManager[None] = (
            config.patch(trace_autograd_ops=True) if self._differentiates else nullcontext()
        )

    def __reduce__(self) -> tuple[Callable[[], None], tuple[()]]:
        return _nothing, ()  # a copied engine compiles its own

    def __call__(
        self, step: Callable[..., Estimate], outputs: Outputs, *, with_network: bool, gradients: bool
    ) -> Estimate:
        """Apply a step of an algorithm to a batch.

        Args:
            step: the step, see :meth:`Engine.run`.
            outputs: the outputs of all processes; if ``with_network``, only the columns and previous weights.
            with_network: whether the network is part of the graph.
            gradients: whether the gradient of the estimate may be part of the graph, too.
        """
        params = self._functions.params
        if with_network and outputs.previous is not None and self.draws:
            with torch.no_grad(), self._functions.elsewhere(outputs.previous):
                outputs = outputs._replace(before=self._outputs(outputs.columns))
        with_gradients = with_network and gradients and self._differentiates
        trained = tuple((id(w), w.requires_grad) for w in params)  # torch 2.11 does not notice a frozen parameter
        key = (getattr(step, "__func__", step), with_network, with_gradients, trained)
        if key not in self._made:
            self._made[key] = _compiled(self._function(step, with_network=with_network, with_gradients=with_gradients))
        device = params[0].device
        before = random_state(device)
        with self._traced:
            value, computed, new, counted, summands = self._made[key](outputs)
        self.draws = self.draws or have_been_drawn(before, device)  # dropout may begin later
        estimate = Estimate(None)
        estimate.value = value
        estimate.new = [NewRows(self._states[number], *rest) for number, *rest in new]
        estimate.counted = [(self._problem.all_terms[number], *rest) for number, *rest in counted]
        estimate.summands = [Summand(name, total, rows=rows) for name, total, rows in summands]
        estimate.gradients = computed
        return estimate

    def _function(
        self, step: Callable[..., Estimate], *, with_network: bool, with_gradients: bool
    ) -> Callable[..., Any]:
        """The function to compile: a step, with the network and the gradient if these are part of the graph."""
        functions, measure = self._functions, self._measure
        weights, parameters = list(functions.params), self._problem.row_parameters
        names, places = list(functions.trainable()), functions.places()

        def run(outputs: Outputs) -> tuple[Any, ...]:
            if with_network and outputs.previous is not None and outputs.before is None:
                previous = dict(zip(names, outputs.previous, strict=True))
                outputs = outputs._replace(before=functions.outputs_at(previous, places, outputs.columns))
            if with_network:
                outputs = outputs._replace(now=functions.outputs(outputs.columns))
            estimate = step(*measure(outputs))
            value: Tensor = estimate.value
            gradients: list[Tensor | None] | None = None
            if with_gradients:
                leaves = [] if parameters is None else [_leaf(outputs.columns, parameters.spec.name)]
                wrt = [*(w for w in weights if w.requires_grad), *leaves]  # some may have been frozen since
                computed = iter(torch.autograd.grad(value, wrt, allow_unused=True))
                gradients = [next(computed) if w.requires_grad else None for w in weights] + list(computed)
                value = value.detach()
            new = [(n.state.number, n.rows, n.values, n.decay, n.finite) for n in estimate.new]
            counted = [(term.number, rows, share) for term, rows, share in estimate.counted]
            summands = [(one.name, *one.summed()) for one in estimate.summands]
            return value, gradients, new, counted, summands

        return run


def _leaf(batch: Mapping[str, Any], name: str) -> Tensor:
    columns = next(iter(batch.values()))
    leaf: Tensor = columns[name]
    return leaf


def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    # torch limits recompilations per code name and place, so every engine gets a name of its own; fallback_random draws
    # the same dropout masks as eager code
    code = function.__code__.replace(co_name=f"{function.__name__}_{id(function)}")
    renamed = FunctionType(code, function.__globals__, code.co_name, function.__defaults__, function.__closure__)
    return torch.compile(renamed, options={"fallback_random": True, "guard_filter_fn": _may_change})


def _may_change(guards: Sequence[Any]) -> list[bool]:
    """Select the guards that torch.compile checks before every step, out of hundreds.

    Numbers, tensors and objects, including those of the network's modules, may change; the classes of these objects,
    and the functions and modules that code refers to, are assumed to stay the same while a program runs.
    """
    return [not ("type(" in g.name or (g.is_global and g.guard_type in _OF_CODE)) for g in guards]


def _nothing() -> None:
    return None
