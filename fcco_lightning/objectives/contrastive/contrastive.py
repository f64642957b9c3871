"""Contrastive losses of image-text pairs: the global loss, with a row for every pair, and the mini-batch loss."""

import math
import warnings
from abc import ABC
from typing import Any, Literal

import torch
from torch import Tensor, nn

from fcco_lightning.checks import greater, one_of
from fcco_lightning.checks import positive as above_zero
from fcco_lightning.errors import DataError
from fcco_lightning.models.batch import HERE, Columns
from fcco_lightning.objectives.base import Objective, RowDomain, SampleParameters, required_column
from fcco_lightning.objectives.log_means import by_table, log_means, on_diagonal
from fcco_lightning.objectives.measurable import Rows
from fcco_lightning.objectives.self_weights import (
    SELF_WEIGHTS,
    Comparisons,
    SelfWeight,
    by_strata,
    comparison_weights,
    self_and_others,
)
from fcco_lightning.outer import Log, LogWithTemperature, OuterFunction, Range
from fcco_lightning.state.processes import Processes

_SMALL_TAU = 0.02  # below it inner values often change by more than `growth` between visits
_ROUNDED = 0.05  # tolerance for the length of unit vectors, also in half precision
LEAST_TAU = 0.004  # exp(2 / tau), the largest inner value of unit embeddings, fits well into float64


class Temperature(nn.Module):
    """``tau = least + (start - least) exp(theta)`` with theta trained from 0, so that tau stays above ``least``.

    Args:
        start: initial tau, > ``least``.
        least: lower bound, >= 0.004.
    """

    def __init__(self, start: float, least: float = 0.005) -> None:
        super().__init__()
        self.least = greater("tau_min", least, LEAST_TAU, equal=True)
        self.span = greater("tau", start, least) - least
        self.theta = nn.Parameter(torch.zeros(()))

    def forward(self) -> Tensor:
        """The temperature tau, a scalar with graph."""
        return self.least + self.span * self.theta.exp()


class PairObjective(Objective, ABC):
    """An objective that compares all pairs of a batch with each other, divided among the processes that share it."""

    weighs_samples = False

    def __init__(self) -> None:
        super().__init__()
        self._processes = Processes(alone=True)

    def join(self, processes: Processes) -> None:
        """Take the processes that share every batch."""
        self._processes = processes

    def local_samples(self, batch: Columns) -> slice | None:
        """The samples of this process; None if the batch belongs to it alone (a single process, or evaluation)."""
        if self._processes.size == 1 or HERE not in batch:
            return None
        positions = batch[HERE].nonzero().flatten().tolist() or [0, -1]  # on the CPU, without waiting for a device
        return slice(positions[0], positions[-1] + 1)

    def check(self, outputs: Any, batch: Columns) -> None:  # noqa: ARG002
        """Warn of embeddings whose length is not 1, so that inner products are not in [-1, 1]."""
        off = max(float((vector.detach().norm(dim=1) - 1).abs().max()) for vector in embeddings(outputs))
        if off > _ROUNDED:
            warnings.warn(
                f"{type(self).__name__} compares embeddings of length 1, and those of the first batch differ from that "
                f"by up to {off:.3g}: inner values then reach exp(length^2 / tau), and longer vectors lower the loss "
                "without any learning. Let the network return torch.nn.functional.normalize(vectors, dim=1).",
                stacklevel=2,
            )


class GlobalContrastive(PairObjective):
    r"""The two-way global contrastive loss: every pair against all n pairs, not only those of a batch.

    Source: SONEX paper, F.3, erratum SONEX-13.

    With unit embeddings I_i, T_i of image and text i, ``s_ij = <I_i, T_j>``:

    ``F(w) = (1/n) sum_i tau log g_i1(w) + tau log g_i2(w)``,
    ``g_i1 = (1/n) sum_j exp((s_ij - s_ii) / tau)`` (image i against all texts) and
    ``g_i2 = (1/n) sum_j exp((s_ji - s_ii) / tau)`` (text i against all images),

    which is the paper's loss up to the constant 2 tau log n.  Row i remembers (u_i1, u_i2).  With ``SOX`` it is SogCLR;
    with ``BSGD`` and ``positive="batch"`` the gradient is that of CLIP's mini-batch loss, times 2 tau.

    Inner values, which can reach exp(2/tau), are computed in log space and remembered in float64 to avoid overflow.
    Outer gradients are taken at rows that are at least 1/10,000 of the fresh value, which bounds the contribution of a
    pair to the gradient.  This departs from the papers' updates if a value has grown by a larger factor since the
    pair's last visit: at tau = 0.05 and above this is rare, at 0.01 it prevents overflow of gradients.

    With ``learn="global"`` the temperature is trained with the network, and a margin rho keeps it away from 0: ``(1/n)
    sum_i tau (log g_i1 + rho) + tau (log g_i2 + rho)``, minimised over tau, is the dual form of a DRO over the
    negatives within a KL ball.  ``--model.schedule.objective_lr`` sets the temperature's step size.

    With ``learn="per_sample"`` every image and every text has its own temperature in the same loss (iSogCLR), trained
    by projected gradient descent.

    Args:
        tau: temperature, >= 0.004 (SONEX paper, F.3: 0.05); its initial value if it is learnt.
        learn: "no", "global" for one temperature of all pairs, or "per_sample".
        rho: margin of a learnt temperature, > 0.
        tau_min: lower bound of a learnt temperature, >= 0.004.
        tau_max: upper bound of the samples' own temperatures.
        tau_lr: step size of the samples' own temperatures, > 0.
        positive: the weight of pair i itself in a batch's estimate of g_i: "dataset" is 1/n, with which the estimate of
            g_i is unbiased if batches are uniform or describe how they are drawn
            (:class:`~fcco_lightning.objectives.self_weights.Comparisons`; the gradient is then unbiased given exact
            rows); "batch" is 1/B for B pairs, as in mini-batch losses, which is biased; "none" leaves the pair out
            (SogCLR).

    Raises:
        ConfigError: if an argument is out of range.
    """

    width = 2
    dtype = torch.float64
    growth = 1e4
    by_blocks = True

    def __init__(
        self,
        tau: float = 0.05,
        learn: Literal["no", "global", "per_sample"] = "no",
        rho: float = 6.5,
        tau_min: float = 0.005,
        tau_max: float = 1.0,
        tau_lr: float = 1e-3,
        positive: SelfWeight = "dataset",
    ) -> None:
        super().__init__()
        one_of("positive", positive, SELF_WEIGHTS)
        one_of("learn", learn, ("no", "global", "per_sample"))
        self.tau = greater("tau", tau, LEAST_TAU, equal=True)
        self.positive = positive
        self.temperature = Temperature(tau, tau_min) if learn == "global" else None
        if learn == "per_sample":
            least = greater("tau_min", tau_min, LEAST_TAU, equal=True)
            most = greater("tau_max", tau_max, greater("tau", tau, least), equal=True)
            self.sample_parameters = SampleParameters("tau", 2, tau, least, most, above_zero("tau_lr", tau_lr))
            if tau_lr * rho > 0.75 * (tau - tau_min):
                warnings.warn(
                    f"tau_lr={tau_lr:g} times rho={rho:g} is most of what lies between tau={tau:g} and "
                    f"tau_min={tau_min:g}: a step or two take temperatures to their bound, where gradients overflow. "
                    "Lower tau_lr, or raise tau or tau_min.",
                    stacklevel=2,
                )
        elif tau < _SMALL_TAU:
            warnings.warn(
                f"tau={tau:g}: a change of similarities by 0.1 changes an inner value by a factor of "
                f"{math.exp(0.1 / tau):.0e}. Outer gradients at remembered rows are bounded, and often so: the steps "
                f"are then not the papers'. Raise tau to {_SMALL_TAU:g} or more, lower the learning rate or gamma', or "
                "use SOAP or MOAP, which weigh a value by the row behind the step.",
                stacklevel=2,
            )
        self.learnt = learn != "no"
        self.against_overflow = (
            f"Raise tau (it is {tau:g})" + (", tau_min or rho, or lower tau_lr" if self.learnt else "") + ", lower the "
            "algorithm's gamma', or use SOAP or MOAP."
        )
        self.rho = above_zero("rho", rho)
        # the smallest inner value of unit embeddings without the pair itself
        self._without_itself = math.exp(-2 / (tau_min if self.learnt else self.tau))

    @property
    def outer(self) -> OuterFunction:  # type: ignore[override]
        """``tau sum_j log u_j``, or ``sum_j tau_j (log u_j + rho)`` with the present learnt temperature."""
        if not self.learnt:
            return Log(self.tau, floor=self._floor)
        tau = torch.tensor(self.tau) if self.temperature is None else self.temperature()
        return LogWithTemperature(tau, self.rho, floor=self._floor)

    @property
    def _floor(self) -> float:
        """The smallest inner value of unit embeddings; with the pair itself 1 over the number of values."""
        if self.positive == "dataset" and self.num_samples is not None:
            return 1 / self._compared(self.num_samples)
        return self._without_itself

    def _compared(self, num_samples: int) -> int:
        """The number of values that an image or a text is compared with, including its own pair."""
        return num_samples

    def row_domain(self, num_samples: int, columns: Columns | None) -> RowDomain:  # noqa: ARG002
        """One row for every pair."""
        return RowDomain(num_samples, per_sample=True, range=Range(least=self._floor))

    def measure(self, outputs: Any, batch: Columns) -> tuple[None, Rows]:
        """Estimates (B, 2) for the B pairs of a batch, each compared with all pairs of the batch."""
        tau = self._tau(batch)
        values = self._logs(*embeddings(outputs), tau, batch).double().exp()
        outer = LogWithTemperature(tau.double(), self.rho, self._floor) if isinstance(tau, Tensor) else None
        return None, Rows(values, values.new_ones(len(values), dtype=torch.bool), outer)

    def check(self, outputs: Any, batch: Columns) -> None:
        super().check(outputs, batch)
        if self.positive != "batch" and by_strata(batch):
            Comparisons(batch, self.num_samples).check()

    def _tau(self, batch: Columns) -> Tensor | float:
        """The temperature, or the two temperatures of every pair, (B, 2)."""
        if self.sample_parameters is not None:
            return required_column(batch, self.sample_parameters.name, self)
        return self.tau if self.temperature is None else self.temperature()

    def _logs(self, image: Tensor, text: Tensor, tau: Tensor | float, batch: Columns) -> Tensor:
        """Logarithms of the inner values, shape (B, 2), given one temperature, or two per pair, (B, 2)."""
        kind = self.positive
        size = len(image)
        n = self.num_samples
        shared = (self.local_samples(batch), self._processes)
        tau = two_of_each(tau, image)
        if not by_strata(batch):
            itself, others = self_and_others(kind, size, n)
            return log_means(image, text, tau, on_diagonal(log(itself / others)), *shared) + log(others)

        def table(anchors: slice, others: slice) -> Tensor:
            return comparison_weights(kind, batch, n, image.dtype, anchors=anchors, others=others).log()

        return log_means(image, text, tau, by_table(table, size), *shared)


class InfoNCE(PairObjective):
    r"""The mini-batch contrastive loss of CLIP: a biased estimate of the global loss, without inner functions.

    ``tau (CE(S / tau) + CE(S^T / tau))`` with S = (s_ij) of the batch and CE the mean cross-entropy of the diagonal; up
    to 2 tau log B it is :class:`GlobalContrastive` for a data set of one batch.  With a learnt temperature the factor
    tau is left out and the two terms are averaged, as in CLIP.

    Args:
        tau: temperature, >= 0.004.
        learn: whether the temperature is trained, too.
        tau_min: lower bound of a learnt temperature, >= 0.004.
    """

    def __init__(self, tau: float = 0.05, learn: bool = False, tau_min: float = 0.005) -> None:
        super().__init__()
        self.tau = greater("tau", tau, LEAST_TAU, equal=True)
        self.temperature = Temperature(tau, tau_min) if learn else None

    def measure(self, outputs: Any, batch: Columns) -> tuple[Tensor, None]:
        image, text = embeddings(outputs)
        tau = two_of_each(self.tau if self.temperature is None else self.temperature(), image)
        logs = log_means(image, text, tau, on_diagonal(0.0), self.local_samples(batch), self._processes)
        both = logs.mean(0).sum()  # the two cross-entropies: log sum_j exp(s_ij / tau) - s_ii / tau
        return both / 2 if self.temperature is not None else self.tau * both, None


def embeddings(outputs: Any) -> tuple[Tensor, Tensor]:
    """Embeddings of images and texts, (B, d) each, at least in float32, as 1/tau magnifies rounding errors.

    Raises:
        DataError: if ``outputs`` are not embeddings of as many images as texts, or of fewer than two.
    """
    image, text = outputs if isinstance(outputs, tuple) and len(outputs) == 2 else (None, None)
    if not isinstance(image, Tensor) or not isinstance(text, Tensor) or image.dim() != 2 or image.shape != text.shape:
        raise DataError(
            "a contrastive loss needs a network that returns embeddings of images and texts, both (B, d). Use "
            "CLIPModel, and batches with the columns x and text."
        )
    if len(image) < 2:
        raise DataError(f"a contrastive loss needs at least 2 pairs in a batch, got {len(image)}. Raise batch_size.")
    wide = torch.promote_types(image.dtype, torch.float32)
    return image.to(wide), text.to(wide)


def two_of_each(tau: Tensor | float, like: Tensor) -> Tensor:
    """The temperatures (B, 2) of the pairs in the dtype of ``like``, given one for all or two for each pair."""
    tau = tau.to(like.dtype) if isinstance(tau, Tensor) else like.new_full((), tau)
    return tau.expand(len(like), 2)


def log(weight: float) -> float:
    """The logarithm of a weight, -inf for 0."""
    return math.log(weight) if weight else -math.inf
