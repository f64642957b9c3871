"""Precision and recall at the head of a list against torchmetrics, of lists shorter than the head too."""

import pytest
import torch
from torchmetrics.functional.retrieval import retrieval_precision, retrieval_recall

from fcco_lightning.evaluation.metrics import precision_recall_at


@pytest.mark.parametrize("k", [1, 4, 7, 8, 100])
def test_precision_and_recall_at_the_head(k):
    scores, y = torch.rand(7, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 0, 0, 1, 1, 0])
    found = precision_recall_at(scores, y, k)
    expected = retrieval_precision(scores, y, top_k=k), retrieval_recall(scores, y, top_k=k)
    torch.testing.assert_close(found, expected, check_dtype=False)
