"""Logistic regression that is robust to perturbations of its input."""

import torch
from torch import Tensor

from fcco_lightning.models.batch import Columns
from fcco_lightning.objectives.base import Objective, binary_scores, one_label_each, require_binary_labels
from fcco_lightning.objectives.measurable import Rows
from fcco_lightning.outer import Softplus


class RobustLogistic(Objective):
    r"""``F(w) = (1/n) sum_i log(1 + exp(-b_i E_A[s_w(A(x_i))]))``: the logistic loss of the expected score.

    A is a random perturbation of sample i (noise, an augmentation) and b_i = 1 for y_i = 1, -1 for y_i = 0.  Source:
    ALEXR paper, App. B, "robust logistic regression", where s_w is linear; erratum ALEXR-11.  The inner function
    ``g_i(w) = -b_i E_A[s_w(A(x_i))]`` has one row per training sample, and the outer function is ``log(1 + exp(u))``,
    which is convex, so that algorithms with dual steps apply, too.

    A batch holds several independently perturbed copies of every sample: ``copies`` of the ``batches`` with a network
    (:class:`~fcco_lightning.models.GaussianPerturbation`) or a data set that perturbs inputs.  The mean over the
    copies, also of a single one, is an unbiased estimate of g_i.  Averaging the *losses* over the copies would be data
    augmentation, whose loss is larger by Jensen's inequality.

    Batches carry ``y`` (B,), 0 or 1; outputs are one score per sample, (B,) or (B, 1).

    Raises:
        DataError: if the outputs have another shape, or a label is neither 0 nor 1.
    """

    outer = Softplus()

    def check(self, outputs: Tensor, batch: Columns) -> None:  # noqa: ARG002
        require_binary_labels(batch, self)

    def measure(self, outputs: Tensor, batch: Columns) -> tuple[None, Rows]:
        scores = binary_scores(outputs)
        values = -signs(batch, self).to(scores.dtype) * scores
        return None, Rows(values.unsqueeze(1), torch.ones_like(values, dtype=torch.bool))


def signs(batch: Columns, needed_by: object) -> Tensor:
    """Labels 0 and 1 as -1 and 1, shape (B,); NaN for any other label.

    Raises:
        DataError: if there is not one label ``y`` per sample, naming the class of ``needed_by``.
    """
    y = one_label_each(batch, needed_by)
    return torch.where(y == 1, 1.0, torch.where(y == 0, -1.0, torch.nan))
