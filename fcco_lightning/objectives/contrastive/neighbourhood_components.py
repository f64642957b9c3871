"""Neighbourhood component analysis: embeddings in which a sample's neighbours belong to its class."""

import torch
from torch import Tensor

from fcco_lightning.checks import positive
from fcco_lightning.errors import DataError
from fcco_lightning.models.batch import Columns
from fcco_lightning.objectives.base import Objective, RowDomain, one_tensor, whole_numbers
from fcco_lightning.objectives.measurable import Rows
from fcco_lightning.objectives.self_weights import Comparisons
from fcco_lightning.outer import Range, Ratio


class NeighbourhoodComponents(Objective):
    r"""Minus the probability that a randomly drawn neighbour has the sample's class (SOX paper, eq. (8)).

    The outputs are embeddings z, shape (n, d).  Sample i draws j != i with a probability that decreases with distance:

    ``F(w) = -(1/n) sum_i g_i1 / g_i2``,  ``g_i1 = (1/(n-1)) sum over j != i with y_j = y_i of e_ij``,
    ``g_i2 = (1/(n-1)) sum over j != i of e_ij``,  ``e_ij = exp(-|z_i - z_j|^2 / temperature)``.

    The sample itself is left out of both (erratum SOX-10), and F lies in [-1, 0].  Row i remembers (g_i1, g_i2).  The
    estimates are unbiased if batches are uniform, or drawn by class with weights (``GroupSampling`` with ``column: y``
    and ``prevalence: data``, with or without replacement), which ensures that a batch holds several samples of a class.
    A class with one sample contributes 0.

    A linear network without hidden layers learns a Mahalanobis distance, as in the original method.  If squared
    distances are much larger than the temperature, samples have no neighbours: start from small weights, or raise it.

    Args:
        temperature: unit of the squared distances, > 0.

    Raises:
        ConfigError: if the temperature is not a positive number.
    """

    weighs_samples = False
    width = 2
    outer = Ratio()
    dtype = torch.float64

    def __init__(self, temperature: float = 1.0) -> None:
        super().__init__()
        self.temperature = positive("temperature", temperature)

    def row_domain(self, num_samples: int, columns: Columns | None) -> RowDomain:
        """One row for every sample, with values in [0, 1].

        Raises:
            DataError: if no class has two samples, or there is one class.
        """
        if columns is not None:
            names, count = torch.unique(_classes(columns, self), return_counts=True)
            if len(names) == 1:
                raise DataError(
                    f"NeighbourhoodComponents needs at least two classes, but all {num_samples} training samples "
                    f"have y = {int(names)}: F is -1 for any embeddings. Check the column of the labels."
                )
            if int(count.max()) < 2:
                raise DataError(
                    f"NeighbourhoodComponents needs a class with two samples, but the {num_samples} training samples "
                    f"are of {len(count)} different classes. Check that `y` is a class, and not an identifier."
                )
        return RowDomain(num_samples, per_sample=True, range=Range(0.0, 1.0))

    def check(self, outputs: Tensor, batch: Columns) -> None:
        """Refuse embeddings in which no sample has a neighbour, so that all gradients would stay 0.

        Raises:
            DataError: if e_ij is 0 for all pairs of a batch, or the batch holds one sample of a larger class.
        """
        _classes(batch, self)
        if not isinstance(outputs, Tensor) or outputs.dim() != 2 or len(outputs) < 2:
            return  # `measure` raises for these
        distance = _squared_distances(outputs.detach().double())
        distance.fill_diagonal_(torch.inf)
        if not bool((-distance / self.temperature).exp().any()):
            raise DataError(
                f"exp(-|z_i - z_j|^2 / {self.temperature:g}) is 0 for all pairs of the first batch, whose squared "
                f"distances are from {float(distance.min()):g} on: all gradients are 0. Raise the temperature to "
                "about that, or start from smaller weights."
            )
        Comparisons(batch, self.num_samples or len(outputs)).check()

    def measure(self, outputs: Tensor, batch: Columns) -> tuple[None, Rows]:
        """Estimates for all samples of a batch, each from all other samples of the batch."""
        outputs = one_tensor(outputs)
        if outputs.dim() != 2:
            raise DataError(
                f"NeighbourhoodComponents needs embeddings, shape (B, d), got {tuple(outputs.shape)}. Give the network "
                "several outputs."
            )
        y, stands = _classes(batch, self, look=False), Comparisons(batch, self.num_samples).table()
        near = stands * (_squared_distances(outputs.double()) / -self.temperature).exp()
        sums = torch.stack([(near * (y.unsqueeze(1) == y)).sum(1), near.sum(1)], dim=1)
        return None, Rows(sums / ((self.num_samples or len(y)) - 1), torch.ones_like(y, dtype=torch.bool))


def _squared_distances(z: Tensor) -> Tensor:
    """``|z_i - z_j|^2`` of rows z (B, d), shape (B, B)."""
    length = z.square().sum(1)
    return (length.unsqueeze(1) + length - 2 * z @ z.T).clamp(min=0)


def _classes(columns: Columns, needed_by: object, *, look: bool = True) -> Tensor:
    remedy = "Set target='class', as samples of one class are compared."
    return whole_numbers(columns, "y", needed_by, remedy, look=look)
