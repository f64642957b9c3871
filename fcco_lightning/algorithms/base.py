"""What an algorithm is: one iteration, written in the engine's verbs."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from fcco_lightning.constraints import Constraint
from fcco_lightning.constraints.multipliers import Enforcement
from fcco_lightning.engine import Drawn, Engine, Evaluated, Problem, Term
from fcco_lightning.errors import ConfigError
from fcco_lightning.models.batch import Batch
from fcco_lightning.objectives import Objective
from fcco_lightning.outer import slopes
from fcco_lightning.state import Layout
from fcco_lightning.state.processes import Processes


class Algorithm(ABC):
    r"""How a stream of batches becomes updates of the weights.

    A named algorithm is a subclass whose :meth:`iteration` reads beside the paper's box.  Most compose an estimator
    (what is remembered of inner values) and a smoothing (of outer functions) under
    :class:`~fcco_lightning.algorithms.SingleLoop` or :class:`~fcco_lightning.algorithms.DoubleLoop`.  The gradient
    estimate is always ``G = mean over sampled i of Jac g_i(w)^T y_i``; an algorithm only decides the y_i and the step.
    """

    objective_share: float = 1.0
    """Part of a batch on which the objective's gradient is taken."""
    constraint_share: float = 1.0
    """Part of a batch on which the constraints' gradient is taken."""

    needs_previous: bool = False
    """Whether batches are measured at the previous weights, too."""

    penalises: bool = True
    """Whether constraints enter what is minimised, by multipliers or a penalty."""

    @property
    def name(self) -> str:
        """As written in checkpoints and reports."""
        return type(self).__name__

    # ------------------------------------------------------------------------------------------------------ the problem

    def posed(self, objective: Objective, constraints: Sequence[Constraint]) -> tuple[Objective, Sequence[Constraint]]:
        """The problem that the algorithm works on: the same, a max form, or without the constraints."""
        return objective, constraints

    def pose(
        self,
        objective: Objective,
        constraints: Sequence[Constraint] = (),
        penalty: Enforcement | None = None,
        *,
        num_samples: int,
        sampling: Mapping[str, Drawn] | None = None,
        dtype: torch.dtype = torch.float32,
        processes: Processes | None = None,
        layout: Layout = "auto",
    ) -> Problem:
        """The problem with the rows that this algorithm keeps; arguments as of :class:`Problem`.

        Raises:
            ConfigError: if the algorithm does not apply to the problem, naming what stands in the way.
        """
        objective, constraints = self.posed(objective, constraints)
        problem = Problem(
            objective,
            constraints,
            penalty,
            num_samples,
            sampling=sampling,
            objective_share=self.objective_share,
            constraint_share=self.constraint_share,
            dtype=dtype,
            processes=processes,
            layout=layout,
        )
        self.prepare(problem)
        return problem

    def prepare(self, problem: Problem) -> None:  # noqa: B027 - SGD keeps nothing
        """Allocate the rows that are kept, and refuse by name what the algorithm cannot do."""

    # ------------------------------------------------------------------------------------------------------ training

    def start(self, engine: Engine) -> None:  # noqa: B027 - most hooks are for a few algorithms
        """Take the trainable parameters, in their final place and dtype; memories of weights start afresh."""

    def updates_in(self, batches: int) -> int | None:
        """The number of updates of w that so many batches make; None where that is not known beforehand.

        Of a double loop that begins anew with every epoch a Trainer keeps count itself, and this is the identity.
        """
        return batches

    def require_stored_activations(self, engine: Engine) -> None:
        """Refuse networks that recompute activations, for gradients at other weights than the network's own.

        Raises:
            ConfigError: if gradient checkpointing is on.
        """
        network = engine.functions.network
        if getattr(network, "recomputes", False):
            raise ConfigError(
                f"grad_checkpointing=True of {type(network).__name__} does not go with {self.name}: its gradient at "
                "other weights would be computed at the present ones. Set grad_checkpointing to false, or use an "
                "algorithm without that gradient, such as SONEX."
            )

    @abstractmethod
    def iteration(self, engine: Engine, batch: Batch) -> None:
        """One batch: measure, propose rows, descend, commit, update."""

    def check(self, seen: Evaluated) -> None:  # noqa: B027
        """Look at the first batch, and again at one that gave values that are not finite, and refuse its form.

        Raises:
            ConfigError: naming what the algorithm needs.
        """

    def measured_apart(self, seen: Evaluated) -> Sequence[Evaluated]:  # noqa: ARG002
        """The parts of a batch on each of which the objective is measured alone; none where it is the whole batch."""
        return ()

    def close(self, engine: Engine) -> None:  # noqa: B027
        """End what is left open where an epoch ends without a usable batch."""

    def finish(self, engine: Engine, batches: Iterator[Batch]) -> bool:  # noqa: ARG002
        """After training; whether the weights were changed."""
        return False

    # --------------------------------------------------------------------------------------------------------- reports

    def duals(self, term: Term, rows: Tensor) -> Tensor:
        """The dual values y_i that rows (b, k) of a term stand for, shape (b, k)."""
        return slopes(term.present_outer, rows)

    def settings(self) -> dict[str, str]:
        """The hyperparameters by name, for comparison between processes."""
        return {name: repr(v) for name, v in vars(self).items() if not name.startswith("_") and _is_plain(v)}

    def state_dict(self) -> dict[str, Any]:
        """What is remembered beside rows: tensors and primitives only."""
        return {"name": self.name}

    def load_state_dict(self, state: dict[str, Any]) -> None:  # noqa: B027
        """Restore, after :meth:`start`."""


def _is_plain(value: object) -> bool:
    return isinstance(value, int | float | str | bool | None) or hasattr(value, "__dataclass_fields__")


def along(engine: Engine, values: Tensor, direction: Sequence[Tensor]) -> Tensor:
    """``<grad v_i(w), d>`` for every value v_i, of the shape of ``values``, without graph.

    The gradient of ``sum_i y_i v_i`` is linear in y, so its derivative by y in the direction d is what is wanted: two
    backward passes, whatever the number of values.  The graph of the values is kept.

    Args:
        engine: on whose parameters the values depend.
        values: of any shape, with graph, the same on all processes.
        direction: d, in the order of ``engine.params``.
    """
    y = torch.zeros_like(values, requires_grad=True)
    gradients = engine.gradients((y * values).sum(), own=True, graph=True)
    slope = torch.stack([(g * d).sum() for g, d in zip(gradients, direction, strict=True)]).sum()
    if not slope.requires_grad:
        return torch.zeros_like(values)
    (found,) = torch.autograd.grad(slope, y, retain_graph=True)
    engine.processes.average_([found])
    return found
