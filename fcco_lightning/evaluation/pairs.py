"""Evaluation of image-text retrieval."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fcco_lightning.checks import at_least, list_of
from fcco_lightning.errors import ConfigError, DataError
from fcco_lightning.evaluation.base import Evaluation
from fcco_lightning.evaluation.split import first_occurrences
from fcco_lightning.models.batch import Columns
from fcco_lightning.objectives.base import one_label_each

_AT_ONCE = 1 << 22  # number of similarities that are computed at once: 32 MB
_ALIKE = 1e-12  # tolerance for the rounding of equal similarities


class PairEvaluation(Evaluation):
    r"""Recall at K of image-text pairs: how often one of an image's texts is among its K nearest, and vice versa.

    The outputs are embeddings I_i and T_i of image and text i, both of shape (n, d), with ``s_ij = <I_i, T_j>``.  Rows
    with the same number in the optional column ``image`` (n,) are captions of one image, which counts once among the
    images; any of its texts is a hit.  With J(i) the texts of image i,

    - ``image_to_text_recall_at_K``: the share of images i with ``|{j not in J(i): s_ij >= max_{k in J(i)} s_ik}| < K``;
    - ``text_to_image_recall_at_K``: the share of texts j of image i with ``|{k /= i: s_kj >= s_ij}| < K``;
    - ``mean_recall``: the mean of all of these.

    Among equally similar items the wrong ones count as nearer, so that constant embeddings have recall 0.  The search
    is among all items of the split; figures of splits of different sizes are not comparable, since more items are
    harder to distinguish.  Time grows with the square of their number, memory does not.

    Source: retrieval as in Radford et al., 2021; the rules for several captions and for ties are general knowledge.

    Args:
        k: the numbers K of nearest items, each >= 1.

    Raises:
        ConfigError: if ``k`` is empty or one of the numbers is not an integer >= 1.
    """

    merit = "mean_recall"
    separable = False

    def __init__(self, k: Sequence[int] = (1, 5, 10)) -> None:
        if not list_of("k", k):
            raise ConfigError("k must name at least one number of nearest items, got none. Use k=[1, 5, 10].")
        self.k = sorted({at_least("k", number, 1) for number in k})
        self.bar = (f"image_to_text_recall_at_{self.k[0]}", f"text_to_image_recall_at_{self.k[0]}")

    def __call__(self, outputs: Any, batch: Columns) -> dict[str, float]:
        images, texts = _embeddings(outputs)
        own = torch.arange(len(texts), device=texts.device)
        if "image" in batch:
            own = torch.unique(one_label_each(batch, self, "image"), return_inverse=True)[1].to(texts.device)
        images = images[first_occurrences(own)]
        numbers = torch.arange(len(images), device=own.device)
        before = {
            "image_to_text": _others_before(images, texts, numbers, own),
            "text_to_image": _others_before(texts, images, own, numbers),
        }
        figures = {
            f"{way}_recall_at_{k}": float((others < k).double().mean())
            for way, others in before.items()
            for k in self.k
        }
        return figures | {"mean_recall": sum(figures.values()) / len(figures)}

    def details(self, outputs: Any, batch: Columns) -> dict[str, Any]:
        """Return the numbers of images and of texts in the search."""
        texts = _embeddings(outputs)[1]
        return {
            "num_images": len(torch.unique(batch["image"])) if "image" in batch else len(texts),
            "num_texts": len(texts),
        }


def _embeddings(outputs: Any) -> tuple[Tensor, Tensor]:
    """Return the embeddings of images and texts, (n, d) each, as float64."""
    images, texts = outputs if isinstance(outputs, tuple) and len(outputs) == 2 else (None, None)
    if (
        not isinstance(images, Tensor)
        or not isinstance(texts, Tensor)
        or images.dim() != 2
        or images.shape != texts.shape
    ):
        raise DataError(
            "recall of pairs needs a network that returns embeddings of images and texts, both (n, d), and batches "
            "with texts. Use CLIPModel and PairDataModule, or another evaluation (--model.evaluation)."
        )
    return images.double(), texts.double()


def _others_before(queries: Tensor, items: Tensor, own: Tensor, owners: Tensor) -> Tensor:
    """Count for every query the wrong items that are at least as similar to it as its most similar right item.

    Args:
        queries: embeddings, shape (q, d).
        items: embeddings, shape (m, d).
        own: number of a query's image, shape (q,).
        owners: number of an item's image, shape (m,); an item is right for a query with the same number.

    Returns:
        The counts, shape (q,).
    """
    counts = []
    places = torch.arange(len(queries), device=queries.device)
    for rows in torch.split(places, max(1, _AT_ONCE // len(items))):
        similar, is_own = queries[rows] @ items.T, own[rows].unsqueeze(1) == owners
        nearest = similar.masked_fill(~is_own, -torch.inf).amax(1, keepdim=True)
        counts.append(((similar >= nearest - _ALIKE) & ~is_own).sum(1))
    return torch.cat(counts)
