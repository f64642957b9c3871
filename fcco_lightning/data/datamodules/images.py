"""The datamodule of images whose labels and attributes define groups."""

from typing import Any

import pandas as pd
from lightning.fabric.utilities.rank_zero import rank_zero_warn  # type: ignore[attr-defined]
from torch.utils.data import Subset

from fcco_lightning.checks import made_of
from fcco_lightning.data.columns import ROW
from fcco_lightning.data.datamodules.labelled import LabelledImages
from fcco_lightning.data.datamodules.samples import StoredDataModule
from fcco_lightning.data.fingerprint import contents_of_images
from fcco_lightning.data.grouping import Groups
from fcco_lightning.data.images import FilesIn, ImageNoise, ImageTable, ImageTransform
from fcco_lightning.data.roles import Columns, TableRows
from fcco_lightning.data.splits import ImageSplits
from fcco_lightning.data.table import TensorTable
from fcco_lightning.errors import ConfigError, DataError


class GroupedImageDataModule(StoredDataModule):
    """Images with groups defined by combinations of the values of some columns, split, decoded and loaded by group.

    Batches are dicts with ``x`` (B, 3, S, S) float32, ``y`` (B,) int64 (float32 if the label is a number), ``group``
    (B,) int64, further columns by their names, and ``index`` (B,) int64: the position of the sample within its own
    split.  Images are decoded when a batch is drawn; random augmentation is a function of (seed, epoch, index), so that
    a resumed run has the same images.  For the definition of groups see :class:`StoredDataModule`.

    Args:
        images: the images and the table of their labels.
        columns: the roles of that table's columns; the label may define groups.
        groups: which columns define the groups; None for the label, so that every class is a group.
        splits: how the images are divided.
        transform: how images become tensors.
        noise: Gaussian noise on the pixels, whose mean is a column that may define groups; None for none.
        **samples: ``batches``, ``eval_batch_size``, ``eval_train``, ``num_workers``, ``allow_changed`` and ``seed`` (of
            the augmentation, too), see :class:`StoredDataModule`.

    Raises:
        ConfigError: from ``__init__`` if ``columns`` names a sensitive column, or ``images.corrupt`` is "skip".
        DataError: from ``setup`` if the data do not fit the arguments.
    """

    _identifying = "images, columns, groups and splits"
    _kind = "images"
    origin: LabelledImages

    def __init__(
        self,
        images: LabelledImages,
        *,
        columns: Columns = Columns("label"),  # noqa: B008 - frozen
        groups: Groups | None = None,
        splits: ImageSplits = ImageSplits(),  # noqa: B008
        transform: ImageTransform = ImageTransform(),  # noqa: B008
        noise: ImageNoise | None = None,
        **samples: Any,
    ) -> None:
        columns, images = made_of("columns", columns, Columns), made_of("images", images, LabelledImages)
        transform = made_of("transform", transform, ImageTransform)
        noise = None if noise is None else made_of("noise", noise, ImageNoise)
        super().__init__(images, columns, _class_groups(columns) if groups is None else groups, splits, **samples)
        if images.corrupt == "skip":
            raise ConfigError(
                "images.corrupt must be 'error' or 'blank' here, got 'skip': a batch holds a fixed number of samples "
                "of every group."
            )
        if self.batches.copies > 1 and transform.augment is not False:
            raise ConfigError(
                "batches.copies with transform.augment: augmentation depends on (seed, epoch, index), so all copies "
                "of an image would be the same. Let the network perturb its input (GaussianPerturbation)."
            )
        self.transform, self.noise = transform, noise
        self._eval_transform, self._train_transform = transform.made(random=False), transform.made(random=True)

    def _tables_of(self, splits: dict[str, TableRows]) -> dict[str, TensorTable]:
        if isinstance(self._samples, list):
            self._warn_of_files_in_training(splits)
        augmented = self.transform.augment is not False
        return {n: self._image_table(split, random=augmented and n == "train") for n, split in splits.items()}

    def _warn_of_files_in_training(self, splits: dict[str, TableRows]) -> None:
        files = {name: {self._samples[row] for row in rows.table[ROW]} for name, rows in splits.items()}
        train = files.pop("train")
        for name, paths in files.items():
            if shared := paths & train:
                rank_zero_warn(
                    f"{len(shared)} of the {len(paths)} files of the {name} split are also in the train split (one is "
                    f"{str(min(shared))!r}), so figures on it are too good. With splits.by='fractions', splits.whole "
                    "names a column whose rows stay in one split."
                )

    def _frame(self) -> pd.DataFrame:
        """The rows, with a column for the mean of every image's noise if there is noise."""
        frame = super()._frame()
        if self.noise is None:
            return frame
        if self.noise.column in frame:
            raise DataError(f"The images have a column noise.column={self.noise.column!r} already. Name another one.")
        means = [f"{self.noise.levels[kind]:g}" for kind in self.noise.kinds(len(frame))]
        return frame.assign(**{self.noise.column: means})

    def _image_table(self, split: TableRows, *, random: bool) -> ImageTable:
        rows = split.table[ROW].to_numpy()
        count = len(self._samples)
        std = self.transform.std
        return ImageTable(
            FilesIn(Subset(self._samples, rows.tolist()), self.origin.root or ""),
            split.columns,
            self._train_transform if random else self._eval_transform,
            seed=self.seed if random else None,
            corrupt=self.origin.corrupt,
            most_pixels=self.origin.most_pixels,
            views=self.transform.views if random else 1,
            after=None if self.noise is None else self.noise.added(rows, count, std),
            evaluation=self._eval_transform,
            option="images.corrupt",
            alternatives=("blank",),
        )

    def _batch_settings(self) -> tuple[Any, ...]:
        return (*super()._batch_settings(), self.transform, self.origin.corrupt, self.noise)

    def _inputs(self) -> tuple[list[str], dict[str, str]]:
        table = self._table("train")
        assert isinstance(table, ImageTable)  # noqa: S101  (_image_table)
        return [], contents_of_images(table.images.images, "the images", table.images.folder)


def _class_groups(columns: Columns) -> Groups:
    """Return groups that are the classes.

    Raises:
        ConfigError: if there are several labels, or the label is a number.
    """
    if isinstance(columns.label, list) or columns.target == "number":
        raise ConfigError(
            f"groups.by must name the columns that define the groups: the label {columns.label!r} has no classes to "
            "take instead. Name some, for example --data.groups.by '[place]'."
        )
    return Groups([columns.label])
