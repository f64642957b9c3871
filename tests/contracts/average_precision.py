"""Average precision as SOX and SOAP optimise it: an objective that only some samples own a row of."""

import torch

from fcco_lightning.estimators import Range
from fcco_lightning.objectives import Objective, RowDomain, binary_scores
from fcco_lightning.objectives.self_weights import comparison_weights
from fcco_lightning.outer import Ratio
from fcco_lightning.records import Inner


class AveragePrecision(Objective):
    r"""``(1/n_+) sum over positives i of -g_i1 / g_i2``, ``g_i = (1/n) sum_j l(s_j - s_i) (1[y_j = 1], 1)``.

    ``l(d) = max(0, 1 + d)^2``; the anchor i itself is one of the n samples and has the loss 1.
    """

    width = 2
    outer = Ratio()

    def prepare(self, num_samples):
        self.num_samples = num_samples

    def row_domain(self, num_samples, columns):
        return RowDomain(0, per_sample=True, owners=columns["y"] == 1, range=Range(least=0.0))

    def inner(self, outputs, batch):
        scores, positive = binary_scores(outputs), batch["y"] == 1
        anchors = positive.nonzero().squeeze(1)
        weight = batch.get("weight")
        shares = comparison_weights("dataset", anchors, len(scores), self.num_samples, weight, scores.dtype)
        losses = shares * (1 + scores - scores[anchors].unsqueeze(1)).clamp(min=0).square()
        return Inner(batch["index"][anchors], torch.stack([losses @ positive.to(scores.dtype), losses.sum(1)], dim=1))


def formula(s, columns):
    y, n = columns["y"], len(s)
    total = []
    for i in range(n):
        if y[i] == 1:
            losses = [torch.relu(1 + s[j] - s[i]) ** 2 for j in range(n)]
            total.append(-sum(loss for loss, label in zip(losses, y, strict=True) if label == 1) / sum(losses))
    return sum(total) / len(total)
