"""Base class of PG-SMD and PG-SVRG: inner steps on z and q around a centre w that changes from stage to stage."""

import warnings
from abc import ABC
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor

from fcco_lightning.algorithms.along import along
from fcco_lightning.algorithms.max_form import Geometry, MaxForm
from fcco_lightning.checks import positive
from fcco_lightning.engine import Engine, Seen, Term
from fcco_lightning.estimators import InnerPoint, ProximalDescent


class ProximallyGuided(MaxForm, ABC):
    r"""Stages of inner steps for ``min_z max_q sum_i q_i R_i(z) - nu D(q, 1/n) + |z - w|^2 / (2 gamma)``.

    One batch is one inner step.  Outside an iteration the network's parameters are the centre w; stages continue across
    epochs.  At the end of a stage with the result x the user's optimizer takes a step with the gradient ``w - x``:
    ``torch.optim.SGD`` with ``lr=1`` moves w to x, as in the paper; other rates give a relaxation.  Gradient clipping
    acts on the inner steps.

    Args:
        gamma: proximal parameter, > 0; the paper takes at most 1/(2 rho) for rho-weakly convex losses.
        geometry: the Bregman divergence V of steps in q, see :class:`MaxForm`.
        radius: radius of the ball around 0 in which every tensor of weights begins and stays, > 0; None for no ball.
        linearised: whether ``R_i(z)`` is replaced by ``R_i(w) + <grad R_i(w), z - w>``.
    """

    def __init__(self, gamma: float, geometry: Geometry, radius: float | None, *, linearised: bool = False) -> None:
        super().__init__(geometry)
        self.linearised = linearised
        self.gamma = positive("gamma", gamma)
        self.radius = None if radius is None else positive("radius", radius)

    def start(self, engine: Engine) -> None:
        if self.linearised:
            self.require_stored_activations(engine)
        if self.radius is not None:
            self._project_start(engine.params, self.radius)
        self._params = engine.params
        self._point = InnerPoint(engine.params)
        self._descent = ProximalDescent(engine.params, 1.0, self.gamma, self.radius)
        self._pass = FullPass(engine.problem.all_terms[0], engine.params[0].device)
        self._stage = self._count = 0

    def _project_start(self, params: Sequence[Tensor], radius: float) -> None:
        """Let the weights begin in their ball: the first stage's result is a mean in which the start counts, too."""
        lengths = [float(torch.linalg.vector_norm(p.detach())) for p in params]
        outside = [k for k, length in enumerate(lengths) if length > radius]
        with torch.no_grad():
            for k in outside:
                params[k].mul_(radius / lengths[k])
        if outside:
            warnings.warn(
                f"{self.name} keeps every weight tensor in a ball of radius={radius:g}: {len(outside)} of "
                f"{len(params)} tensors began outside, the largest with norm {max(lengths):.3g}, and were "
                "projected. Raise radius to keep the network's initialisation.",
                stacklevel=2,
            )

    def updates_in(self, batches: int) -> None:  # noqa: ARG002
        """None: stages differ in length, and some begin with a pass over the data."""
        return

    def uniform(self) -> Tensor:
        """The uniform weights 1/n, (n,), float64."""
        return torch.full_like(self._pass.values, 1 / len(self._pass.values))

    def looking(self) -> AbstractContextManager[object]:
        """A context in which the parameters are the point of measurement: z, or w if losses are linearised."""
        return nullcontext() if self.linearised else self._point.held()

    def values(self, engine: Engine, risks: Seen) -> Tensor:
        """The R_i of a batch at z, or their linearisation there, (b, 1), without graph."""
        now = risks.g.detach()
        return now + self.along(engine, risks, self._params) if self.linearised else now

    def along(self, engine: Engine, risks: Seen, origin: Sequence[Tensor]) -> Tensor:
        """``<grad R_i(w), z - origin>`` of a batch at w, (r, 1), without graph; the graph of the values is kept."""
        steps = [z - o.detach() for z, o in zip(self._point.tensors, origin, strict=True)]
        return along(engine, risks.g, steps)

    @contextmanager
    def inner_step(self, engine: Engine, eta: float) -> Iterator[None]:
        """Update z with the gradient in ``.grad``; within the context the parameters are the new z."""
        self._descent.param_groups[0]["eta"] = eta
        with self._point.held() as centre:
            self._descent.centre = centre
            engine.update(by=self._descent)
            yield
        self._count += 1

    def end_stage(self, engine: Engine, result: list[Tensor]) -> None:
        """Let the user's optimizer move the centre towards the stage's result, and begin the next stage."""
        self._stage, self._count = self._stage + 1, 0
        self._pass.forget()
        engine.update([p.data - x for p, x in zip(self._params, result, strict=True)], clip=False)

    @property
    def begun(self) -> bool:
        """Whether z of the present stage differs from w."""
        return self._count > 0

    def state_dict(self) -> dict[str, Any]:
        return {
            **super().state_dict(),
            "iterate": list(self._point.tensors) if self.begun else [],
            "stage": self._stage,
            "inner_count": self._count,
            "pass": self._pass.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._point.load(state["iterate"])
        self._stage, self._count = int(state["stage"]), int(state["inner_count"])
        self._pass.load_state_dict(state["pass"])


class FullPass:
    """The values of all n rows at one point, collected from batches: the first value of every row is kept.

    From the start of an epoch without repeated samples this takes one epoch.

    Attributes:
        values: values of the rows, (n,), float64; NaN for rows that have not occurred, 0 for rows that no batch can
            measure.
        begun: whether a batch was added.
        complete: whether every row has occurred.
    """

    def __init__(self, term: Term, device: torch.device) -> None:
        self._unknown = torch.where(term.never_measured, 0.0, torch.nan).to(device, torch.float64)
        self.forget()

    def fresh(self, seen: Seen) -> Tensor:
        """Which rows of a batch occur for the first time, (r,), bool."""
        known = self.values if seen.rows is None else self.values.index_select(0, seen.rows)
        return known.isnan() & seen.present

    def joined(self, seen: Seen, values: Tensor) -> Tensor:
        """The values of all rows, (n,), with those (r, 1) of the rows that occur for the first time."""
        known = self.values if seen.rows is None else self.values.index_select(0, seen.rows)
        new = torch.where(self.fresh(seen), values.detach()[:, 0].double(), known)
        return new if seen.rows is None else self.values.index_copy(0, seen.rows, new)

    def take(self, values: Tensor, *, complete: bool) -> None:
        """Set the values, as returned by :meth:`joined`, and whether they are complete."""
        self.values, self.begun, self.complete = values, True, complete

    def forget(self) -> None:
        """Start again without values."""
        self.values = self._unknown.clone()
        self.begun = self.complete = False

    def state_dict(self) -> dict[str, Any]:
        """The values; tensors only."""
        return {"values": self.values.clone()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the values."""
        self.values.copy_(state["values"])
        missing = self.values.isnan()
        self.begun, self.complete = bool((missing != self._unknown.isnan()).any()), not bool(missing.any())
