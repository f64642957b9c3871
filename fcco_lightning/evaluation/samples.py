"""Accuracy and loss of single samples, on which the evaluations by group and by task are built."""

from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from fcco_lightning.errors import DataError
from fcco_lightning.models.batch import Columns
from fcco_lightning.objectives import binary_scores


def require_columns(batch: Columns, *names: str, figures: str) -> None:
    """Check that a split has the columns that an evaluation reads.

    Args:
        batch: The columns of the split.
        names: The columns that are needed.
        figures: What is computed from them, for the message.

    Raises:
        DataError: if a column is missing.
    """
    for name in names:
        if name not in batch:
            raise DataError(
                f"{figures} need a column {name!r} with one value per sample, the split has {sorted(batch)}. "
                "Use another evaluation (--model.evaluation), or add the column to the data."
            )


def correct_and_loss(outputs: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Determine whether each sample is classified correctly, and its loss.

    A single score predicts class 1 where it is > 0 and has the logistic loss.  Several scores predict the class of the
    largest one and have the softmax cross-entropy as their loss.

    Args:
        outputs: One score per sample, shape (n,) or (n, 1), for the classes 0 and 1, or C scores, shape (n, C).
        y: The classes, shape (n,), whole numbers.

    Returns:
        ``(correct, loss)``, both of shape (n,): truth values, and losses in nats as float64.

    Raises:
        DataError: if the shapes do not fit, or if a class does not exist.

    Example:
        >>> import torch
        >>> correct, loss = correct_and_loss(torch.tensor([0.0, 2.0]), torch.tensor([1, 1]))
        >>> correct.tolist(), [round(value, 3) for value in loss.tolist()]
        ([False, True], [0.693, 0.127])
    """
    several = outputs.dim() == 2 and outputs.shape[1] > 1
    scores = outputs.double() if several else binary_scores(outputs).double()
    classes = scores.shape[1] if several else 2
    if y.shape != scores.shape[:1]:
        raise DataError(f"y must have one class per sample, shape {tuple(scores.shape[:1])}, got {tuple(y.shape)}.")
    bad = (y < 0) | (y >= classes)
    if bad.any():
        where = int(bad.nonzero()[0])
        raise DataError(
            f"y must lie in 0..{classes - 1} for outputs of shape {tuple(outputs.shape)}, got {y[where].item()} at "
            f"position {where}. Give the network one output per class."
        )
    if several:
        return scores.argmax(1) == y, cross_entropy(scores, y.long(), reduction="none")
    return (scores > 0) == (y == 1), binary_cross_entropy_with_logits(scores, y.double(), reduction="none")
