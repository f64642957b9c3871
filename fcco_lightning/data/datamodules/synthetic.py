"""Problems made in memory as datamodules: as tables that are encoded, and as tensors that are taken as they are."""

from collections.abc import Mapping
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from fcco_lightning.checks import at_least
from fcco_lightning.data.datamodules.tabular import TabularDataModule
from fcco_lightning.data.datamodules.tensors import TensorDataModule
from fcco_lightning.data.digits import Digits, digits
from fcco_lightning.data.encoding import Encoding
from fcco_lightning.data.roles import Columns
from fcco_lightning.data.sampling import (
    BagSampling,
    EventSampling,
    GroupSampling,
    QuerySampling,
    Sampling,
    UniformSampling,
)
from fcco_lightning.data.splits import Splits
from fcco_lightning.data.synthetic import (
    BlockDistributions,
    Garnet,
    GaussianGroups,
    GradedLists,
    LatentChoice,
    ManyClasses,
    ProportionalHazards,
    train_and_test,
)


class MadeTableDataModule(TabularDataModule):
    """Samples that are made in memory, by split and column, and then treated as any other table.

    The columns of ``x`` (n, d) are called x00, x01, ...
    """

    _made = True

    def __init__(
        self, samples: Mapping[str, Mapping[str, Tensor]], columns: Columns, splits: Splits, **loading: Any
    ) -> None:
        train, test = _table(samples["train"]), _table(samples["test"])
        super().__init__(train, test=test, columns=columns, splits=splits, encoding=Encoding(), **loading)


class SyntheticDataModule(MadeTableDataModule):
    """Samples of :class:`GaussianGroups`, made in memory and then treated as any other table.

    The group is a feature (standardising is monotone, so the closed-form optima of :attr:`problem` still hold).

    Args:
        num_train: number of training rows before a validation split.
        num_test: number of test rows.
        problem: the distribution; None for the default one (Bayes AUC 0.903, gap 0.555).
        data_seed: seed of the samples.
        val_fraction: share of the training rows that is held out for validation, in [0, 1).
        batches: how training batches are drawn.
        **loading: ``seed``, ``eval_batch_size``, ``num_workers`` and ``allow_changed``, see :class:`SplitDataModule`.
    """

    def __init__(
        self,
        num_train: int = 8000,
        num_test: int = 20_000,
        *,
        problem: GaussianGroups | None = None,
        data_seed: int = 0,
        val_fraction: float = 0.0,
        batches: Sampling = UniformSampling(),  # noqa: B008 - frozen
        **loading: Any,
    ) -> None:
        self.problem = problem or GaussianGroups()
        samples = train_and_test(self.problem, data_seed, num_train=num_train, num_test=num_test)
        columns = Columns("y", positive=1, sensitive="group", favoured=1)
        # The last feature is the group, which the table has as a column of its own.
        parts = {name: {"x": s["x"][:, :-1], "group": s["group"], "y": s["y"]} for name, s in samples.items()}
        super().__init__(parts, columns, Splits(val_fraction=val_fraction), batches=batches, **loading)


class SyntheticSurvivalDataModule(MadeTableDataModule):
    """Samples of :class:`ProportionalHazards`, made in memory and then treated as any other table.

    Args:
        num_train: number of training rows before a validation split.
        num_test: number of test rows.
        problem: the distribution; None for the default one.
        data_seed: seed of the samples.
        val_fraction: share of the training rows that is held out for validation, in [0, 1).
        batches: how training batches are drawn.
        **loading: ``seed``, ``eval_batch_size``, ``num_workers`` and ``allow_changed``, see :class:`SplitDataModule`.
    """

    def __init__(
        self,
        num_train: int = 4000,
        num_test: int = 4000,
        *,
        problem: ProportionalHazards | None = None,
        data_seed: int = 0,
        val_fraction: float = 0.0,
        batches: Sampling = EventSampling(),  # noqa: B008 - frozen
        **loading: Any,
    ) -> None:
        self.problem = problem or ProportionalHazards()
        samples = train_and_test(self.problem, data_seed, num_train=num_train, num_test=num_test)
        columns = Columns("event", positive=1, extra=["time", "event"])
        super().__init__(samples, columns, Splits(val_fraction=val_fraction), batches=batches, **loading)


class SyntheticQueriesDataModule(MadeTableDataModule):
    """Lists of :class:`GradedLists`, made in memory and then treated as any other table.

    Args:
        num_train: number of training queries before a validation split.
        num_test: number of test queries.
        problem: the distribution; None for the default one.
        data_seed: seed of the samples.
        val_fraction: share of the training queries that is held out for validation, in [0, 1).
        batches: how training batches are drawn.
        **loading: ``seed``, ``eval_batch_size``, ``num_workers`` and ``allow_changed``, see :class:`SplitDataModule`.
    """

    def __init__(
        self,
        num_train: int = 400,
        num_test: int = 200,
        *,
        problem: GradedLists | None = None,
        data_seed: int = 0,
        val_fraction: float = 0.0,
        batches: Sampling = QuerySampling(),  # noqa: B008 - frozen
        **loading: Any,
    ) -> None:
        self.problem = problem or GradedLists()
        samples = train_and_test(self.problem, data_seed, num_train=num_train, num_test=num_test)
        columns = Columns("y", target="number", extra=["query"])
        super().__init__(samples, columns, Splits(val_fraction=val_fraction, whole="query"), batches=batches, **loading)


class MadeDataModule(TensorDataModule):
    """Samples that are made in memory, and with every batch some of the numbers 0..n-1 of further things.

    Args:
        samples: split ("train" and "test") -> its columns.
        numbers: part of a batch -> how many things there are, and how many of them a batch of one process has, drawn
            uniformly.
        num_groups: number of groups (the column ``group``), if there are any.
        **loading: ``batches`` and what :class:`SplitDataModule` takes.
    """

    _made = True

    def __init__(
        self,
        samples: Mapping[str, Mapping[str, Tensor]],
        numbers: Mapping[str, tuple[int, int]],
        num_groups: int | None,
        **loading: Any,
    ) -> None:
        others = {part: {"x": torch.arange(size)} for part, (size, _) in numbers.items()}
        drawn = {part: UniformSampling(at_least(f"{part}_per_batch", m, 1)) for part, (_, m) in numbers.items()}
        super().__init__(samples, others, other_batches=drawn, num_groups=num_groups, **loading)


class ManyClassesDataModule(MadeDataModule):
    """Samples of :class:`ManyClasses`, made in memory, and with every batch some of the classes, drawn uniformly.

    Batches have the parts "target" with ``x`` (B, d), ``y`` (B,) and ``index`` (B,), and "classes" with ``x`` and
    ``index`` (M,), numbers of classes.

    Args:
        problem: the distribution; None for the default one.
        num_train: number of training samples.
        num_test: number of test samples.
        data_seed: seed of the samples.
        classes_per_batch: number of classes in a batch of one process, M.
        batches: how training samples are drawn.
        eval_batch_size: number of rows in an evaluation batch of one process.
        **loading: ``seed``, ``num_workers`` and ``allow_changed``, see :class:`SplitDataModule`.
    """

    def __init__(
        self,
        problem: ManyClasses | None = None,
        num_train: int = 20_000,
        num_test: int = 5000,
        *,
        data_seed: int = 0,
        classes_per_batch: int = 64,
        batches: Sampling = UniformSampling(),  # noqa: B008 - frozen
        eval_batch_size: int = 1024,
        **loading: Any,
    ) -> None:
        self.problem = problem or ManyClasses()
        self.num_classes = self.problem.num_classes
        samples = train_and_test(self.problem, data_seed, num_train=num_train, num_test=num_test)
        numbers = {"classes": (self.num_classes, classes_per_batch)}
        super().__init__(samples, numbers, None, batches=batches, eval_batch_size=eval_batch_size, **loading)


class LatentChoiceDataModule(MadeDataModule):
    """Samples of :class:`LatentChoice`, made in memory, and with every batch some values of the latent variable.

    Batches have the parts "target" with ``x`` (B, d), ``y`` (B,) and ``index`` (B,), and "latent" with ``x`` and
    ``index`` (M,), numbers of values, drawn uniformly.

    Args:
        problem: the distribution; None for the default one.
        num_train: number of training samples.
        num_test: number of test samples.
        data_seed: seed of the samples.
        latent_per_batch: number of values in a batch of one process, M.
        batches: how training samples are drawn.
        **loading: ``seed``, ``eval_batch_size``, ``num_workers`` and ``allow_changed``, see :class:`SplitDataModule`.
    """

    def __init__(
        self,
        problem: LatentChoice | None = None,
        num_train: int = 20_000,
        num_test: int = 5000,
        *,
        data_seed: int = 0,
        latent_per_batch: int = 32,
        batches: Sampling = UniformSampling(),  # noqa: B008 - frozen
        **loading: Any,
    ) -> None:
        self.problem = problem or LatentChoice()
        samples = train_and_test(self.problem, data_seed, num_train=num_train, num_test=num_test)
        numbers = {"latent": (self.problem.num_latent, latent_per_batch)}
        super().__init__(samples, numbers, None, batches=batches, **loading)


class GarnetDataModule(MadeDataModule):
    """Transitions of :class:`Garnet`, made in memory, with the true values beside them.

    Batches hold ``x`` (B, 2, d + 1), ``group`` (B,), the number of the first state, ``next`` (B,), that of the second,
    ``reward`` (B,), ``value`` (B,) and ``index`` (B,).

    Args:
        problem: the process; None for the default one.
        per_state: number of transitions of every state for training.
        per_state_test: number of further ones for the test split.
        data_seed: seed of the transitions.
        batches: how training batches are drawn; the states are the groups.
        **loading: ``seed``, ``eval_batch_size``, ``num_workers`` and ``allow_changed``, see :class:`SplitDataModule`.
    """

    def __init__(
        self,
        problem: Garnet | None = None,
        per_state: int = 100,
        per_state_test: int = 50,
        *,
        data_seed: int = 0,
        batches: Sampling = GroupSampling(32, 4),  # noqa: B008 - frozen
        **loading: Any,
    ) -> None:
        self.problem = problem or Garnet()
        samples = train_and_test(self.problem, data_seed, per_state=per_state, per_state_test=per_state_test)
        super().__init__(samples, {}, self.problem.num_states, batches=batches, **loading)


class BlockDistributionsDataModule(MadeDataModule):
    """Samples of :class:`BlockDistributions`, made in memory; the distributions are the groups.

    Batches hold ``x`` (B, d), ``y`` (B,), ``group`` (B,) and ``index`` (B,).

    Args:
        problem: the distributions; None for the default ones.
        num_train: number of training samples of every distribution.
        num_test: number of test samples of every distribution.
        data_seed: seed of the samples.
        batches: how training batches are drawn; by default 20 samples, 4 of each of five distributions.
        **loading: ``seed``, ``eval_batch_size``, ``num_workers`` and ``allow_changed``, see :class:`SplitDataModule`.
    """

    def __init__(
        self,
        problem: BlockDistributions | None = None,
        num_train: int = 20_000,
        num_test: int = 5000,
        *,
        data_seed: int = 0,
        batches: Sampling = GroupSampling(5, 4),  # noqa: B008 - frozen
        **loading: Any,
    ) -> None:
        self.problem = problem or BlockDistributions()
        samples = train_and_test(self.problem, data_seed, num_train=num_train, num_test=num_test)
        super().__init__(samples, {}, self.problem.num_distributions, batches=batches, **loading)


class DigitBagsDataModule(MadeDataModule):
    """Bags of images of digits, of which those are positive that hold a nine.

    The images are those of :func:`fcco_lightning.data.digits.digits`, equally many of every digit, divided at random
    among the bags.  An instance is one of them: batches have ``x`` (B, 256) float32, grey levels of mean about 0
    and variance about 1, ``bag`` (B,), ``y`` (B,), the label of the bag, and ``index`` (B,).

    Args:
        num_train: number of training bags.
        num_test: number of test bags.
        bag_size: number of images in a bag; of 8, 57% are positive.
        data_seed: seed of the images and the bags.
        batches: how training instances are drawn.
        **loading: ``seed``, ``eval_batch_size``, ``num_workers`` and ``allow_changed``, see :class:`SplitDataModule`.

    Raises:
        ConfigError: if a number is out of range.
    """

    def __init__(
        self,
        num_train: int = 400,
        num_test: int = 400,
        *,
        bag_size: int = 8,
        data_seed: int = 0,
        batches: Sampling = BagSampling(),  # noqa: B008 - frozen
        **loading: Any,
    ) -> None:
        at_least("bag_size", bag_size, 1)
        train, test = at_least("num_train", num_train, 1) * bag_size, at_least("num_test", num_test, 1) * bag_size
        generator = torch.Generator().manual_seed(data_seed)
        images = digits(train, test, data_seed)
        samples = {split: _bags(part, bag_size, generator) for split, part in images.items()}
        super().__init__(samples, {}, None, batches=batches, **loading)


def _table(sample: Mapping[str, Tensor]) -> pd.DataFrame:
    """Return one column for each feature x (n, d), and the other columns after them."""
    features = {f"x{i:02d}": column.numpy() for i, column in enumerate(sample["x"].T)}
    return pd.DataFrame(features | {name: column.numpy() for name, column in sample.items() if name != "x"})


def _bags(images: Digits, size: int, generator: torch.Generator) -> dict[str, Tensor]:
    order = torch.randperm(len(images.labels), generator=generator)
    positive = (images.labels[order] == 9).view(-1, size).any(1).long()
    bag = torch.arange(len(order)) // size
    return {"x": (images.images[order].flatten(1) / 255 - 0.2) / 0.3, "bag": bag, "y": positive[bag]}
