"""Which column of a table is the label, which the group, and which are features."""

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd
import torch
from torch import Tensor

from fcco_lightning.data.columns import indicator, listed, require_columns, require_filled, text_of
from fcco_lightning.errors import DataError


@dataclass(frozen=True)
class LabelledFrame:
    """Features that are not yet encoded, with their labels and groups.

    Attributes:
        features: n rows of feature columns.
        y: labels, shape (n,), int64 in {0, 1}.
        group: groups, shape (n,), int64 in {0, 1}; 1 is the favoured one.
        class_names: what labels 0 and 1 are called in the table.
        group_names: what groups 0 and 1 are called in the table.
    """

    features: pd.DataFrame
    y: Tensor
    group: Tensor
    class_names: tuple[str, str]
    group_names: tuple[str, str]

    @property
    def cells(self) -> Tensor:
        """Group x class of every row as one number in 0..3, shape (n,)."""
        return 2 * self.group + self.y

    def take(self, rows: Tensor) -> "LabelledFrame":
        """Return the given rows, in that order."""
        features = self.features.iloc[rows.numpy()].reset_index(drop=True)
        return LabelledFrame(features, self.y[rows], self.group[rows], self.class_names, self.group_names)


@dataclass(frozen=True)
class Roles:
    """What the columns of a table mean.

    Args:
        label: column with exactly two classes.
        positive: value of ``label`` that becomes y = 1.
        sensitive: column that defines the two groups.
        favoured: value of ``sensitive`` that becomes group 1; all other values become group 0.
        drop: columns that are not features.
        use_sensitive: whether ``sensitive`` is a feature too.
    """

    label: str
    positive: str | int | float
    sensitive: str
    favoured: str | int | float
    drop: Sequence[str] = ()
    use_sensitive: bool = True

    def read(self, frame: pd.DataFrame, where: str) -> LabelledFrame:
        """Take labels, groups and features out of ``frame``.

        Args:
            frame: the table.
            where: what it is, for messages.

        Raises:
            DataError: if a column or value does not exist, a label or group is missing, there are not exactly two
                classes, or no feature is left.
        """
        wanted = {"label": [self.label], "sensitive": [self.sensitive], "drop": self.drop}
        require_columns(frame, wanted, where)
        require_filled(frame[self.label], "label", where)
        require_filled(frame[self.sensitive], "sensitive", where)
        y = indicator(frame[self.label], self.positive, "positive", where)
        group = indicator(frame[self.sensitive], self.favoured, "favoured", where)
        unused = {self.label, *self.drop} | (set() if self.use_sensitive else {self.sensitive})
        features = frame[[name for name in frame.columns if name not in unused]]
        if features.shape[1] == 0:
            raise DataError(f"No feature column is left in {where} beside {sorted(unused)}. Drop fewer columns.")
        classes = self._class_names(frame[self.label], y, where)
        return LabelledFrame(features, y, group, classes, _names(frame[self.sensitive], group))

    def _class_names(self, column: pd.Series, y: Tensor, where: str) -> tuple[str, str]:
        classes = text_of(column).unique()
        if len(classes) != 2:
            raise DataError(
                f"label={self.label!r} must have exactly two classes, but in {where} it has {len(classes)}: "
                f"{listed(classes)}. Choose another column, or map its values to two before."
            )
        return _names(column, y)


def _names(column: pd.Series, marked: Tensor) -> tuple[str, str]:
    """Name the cells marked 0 and 1; several values share the name 'not ...'."""
    text = text_of(column).to_numpy()
    one = str(text[int(torch.argmax(marked))])
    others = sorted(set(text[(marked == 0).numpy()]))
    return (others[0] if len(others) == 1 else f"not {one}"), one
