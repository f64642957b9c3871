"""PDSCA: minimises an objective at the weights after a gradient step on another loss."""

from typing import Any

import torch
from torch import Tensor

from fcco_lightning.algorithms.estimation import Estimation
from fcco_lightning.checks import fraction, positive
from fcco_lightning.engine import Engine, Outputs, part_name
from fcco_lightning.errors import ConfigError, DataError
from fcco_lightning.estimators import Average, like_parameters
from fcco_lightning.models.batch import Batch, Columns
from fcco_lightning.objectives import CrossEntropyLoss, Quantity, mean_over_data


class PDSCA(Estimation):
    r"""Compositional training: ``min_w F(w - alpha grad L(w))`` with F the objective and L a mean loss over the data.

    ``u <- (1 - gamma) u + gamma (w - alpha grad L(w))``, then ``y = grad F(u)`` and ``G = (I - alpha hess L(w)) y``.

    The inner function is the vector ``g(w) = w - alpha grad L(w)``, which has as many entries as the network has
    weights.  Its running average is u, a second copy of the trained weights, and G is the gradient of
    ``<stop_gradient(y), g(w)>``.  F is measured at u.  If F itself has inner functions (the margin loss of AUC, average
    precision, partial AUC), their rows are averaged at u as in :class:`SOX`, with the weight ``row_gamma``.  Parameters
    of F, such as a threshold, do not enter L; u averages them with the same gamma.  Constraints are measured at w, the
    weights that are validated and saved, and are penalised as in SOX.  At a minimum of F(g(w)) the weights g(w) are the
    best for F; w differs from them by one step on L.

    A step takes two forward passes, at w and at u.  The Hessian-vector product needs second derivatives of L, which
    every operation of the network must support; fused attention and the recurrent layers of cuDNN do not.  With
    ``hessian=False`` the product is left out, ``G = y``, as in the authors' code.  G is then biased by ``alpha hess
    L(w) y``, which neither a larger batch nor a smaller step reduces, and G vanishes where u is stationary for F.  The
    bias is small if alpha times the curvature of L is small; with alpha = 1 training can fail.

    As in the paper, G uses the new u.  On the same batch the gradient of L, its Hessian and the gradient of F are
    correlated, which biases G by terms of order alpha / B for batch size B.  L can be measured on an independent part
    of the batch instead: ``part: dual`` with ``two_draws`` of the ``batches``.

    Args:
        alpha: step size of the inner gradient step, > 0.  It must be small against the inverse curvature of L: with a
            convolutional network with BatchNorm 0.01 trains well, and 0.1 trains next to nothing; a perceptron on a
            table takes 0.1 to 1.
        gamma: weight of the new value in u, in (0, 1].
        loss: quantity of single samples whose mean over the data is L; cross-entropy by default.
        part: part of a batch on which L is measured; None for the first.
        hessian: whether G uses the exact derivative of the inner gradient step, instead of the identity.
        row_gamma: weight of the new value in the rows of the objective and of the constraints, in (0, 1].

    Raises:
        ConfigError: if a number is out of range, or, when training starts, if the network recomputes activations or
            gradients are scaled for half precision.
    Source: Yuan et al., Compositional Training for End-to-End Deep AUC Maximization (2022).  There F is the min-max
    form of the margin loss of AUC; here it is any objective, with any optimizer.
    """

    def __init__(
        self,
        alpha: float = 0.01,
        gamma: float = 0.9,
        loss: Quantity | None = None,
        part: str | None = None,
        hessian: bool = True,
        row_gamma: float = 0.5,
    ) -> None:
        super().__init__(Average(row_gamma))
        self.alpha, self.gamma = positive("alpha", alpha), fraction("gamma", gamma)
        self.loss = loss or CrossEntropyLoss()
        self.part = part
        self.hessian = hessian
        self._u: list[Tensor] = []

    def start(self, engine: Engine) -> None:
        super().start(engine)
        self.require_stored_activations(engine)
        if engine.backend.scaler is not None:
            raise ConfigError(
                "PDSCA updates u by a gradient, which cannot be undone if it overflows in half precision. Use "
                "--trainer.precision bf16-mixed or 32."
            )
        self._u, self._checked = [], False

    def iteration(self, engine: Engine, batch: Batch) -> None:
        outputs, terms = engine.evaluate(batch), engine.problem.all_terms
        inner = engine.gradients(self._loss(engine, outputs, batch), local=True, graph=self.hessian)
        u = self._moved(engine, inner)
        with engine.functions.at(u):
            there = engine.measure(engine.evaluate(batch), [t for t in terms if t.name == "objective"])
            estimate = self.step(*there)
            y = engine.gradients(estimate.value, of_samples=True)
        step = [w - self.alpha * g for w, g in zip(engine.params, inner, strict=True)]
        estimate.value = torch.stack([(a * b).sum() for a, b in zip(y, step, strict=True)]).sum()
        rest = [t for t in terms if t.name != "objective"]
        for seen in engine.measure(outputs, rest, direct=False)[1]:
            estimate.add(seen, self.track(estimate, seen))
        engine.descend(estimate)
        engine.commit()
        self._u = u
        engine.update()

    def _loss(self, engine: Engine, outputs: Outputs, batch: Batch) -> Tensor:
        """This process's share of L, times the number of processes, so that their mean is L."""
        part = part_name(batch, self.part)
        everything = outputs.columns[part]
        if not self._checked:
            scores = outputs.now[part]
            if not isinstance(scores, Tensor):
                raise DataError(
                    f"PDSCA differentiates {type(self.loss).__name__} with respect to scores, but the network "
                    f"returns {type(scores).__name__}. Use a network that returns a tensor of scores, or another "
                    "algorithm, such as SOX."
                )
            self.loss.check(scores, everything)
            self._checked = True
        local = batch[part]
        if not _size(local):  # a process may have no sample of a short last batch
            nothing: Tensor = outputs.local[part].sum()
            return nothing
        share = engine.processes.size * _size(local) / _size(everything)
        return share * mean_over_data(self.loss(outputs.local[part], local), local)

    def _moved(self, engine: Engine, inner: list[Tensor]) -> list[Tensor]:
        """The new u from this process's gradients of L; without averaging at the first step."""
        gradients = [g.detach().clone() for g in inner]
        engine.processes.average_(gradients)
        new = [w.detach() - self.alpha * g for w, g in zip(self._params, gradients, strict=True)]
        return list(torch._foreach_lerp(self._u, new, self.gamma)) if self._u else new

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "u": list(self._u)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._u = like_parameters(state["u"], self._params)


def _size(columns: Columns) -> int:
    return len(next(iter(columns.values())))
