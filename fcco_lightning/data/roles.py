"""Roles of the columns of a table: label, groups, weights, further columns of a batch, and features."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from fcco_lightning.checks import list_of, one_of
from fcco_lightning.data.columns import (
    indicator,
    is_number,
    listed,
    marked,
    places,
    require_columns,
    require_filled,
    text_of,
    with_commas,
)
from fcco_lightning.data.conditions import Value
from fcco_lightning.data.grouping import Grouping, Groups
from fcco_lightning.errors import ConfigError, DataError
from fcco_lightning.models.batch import HERE, IN_HALVES, KNOWN_STRATUM, POPULATION, SAMPLE_WEIGHT

RESERVED = (
    *("x", "x2", "y", "group", "task", "text", "index", "weight", SAMPLE_WEIGHT, IN_HALVES),
    *("stratum", "stratum_size", "strata", "replaced", KNOWN_STRATUM, POPULATION, HERE),
)
"""Names of batch columns that a further column must not take."""

MOST_GROUPS = 50
"""A column with more values is a number or a name, and no group has enough samples."""

NOT_KNOWN = -1
"""What ``y`` holds of several labels in the place of one that is not known."""

_MOST_CLASSES = 20  # a label with more distinct values with decimal commas is a number, not a class
_OF_SEVERAL = "Mark labels that are not known by columns.missing, where '' is an empty cell."
_NOT = "not "  # begins the name of a group of all other values


@dataclass(frozen=True)
class Columns:
    """The roles of the columns of a table.

    Args:
        label: column of the labels; a list of T columns gives every sample T labels of two classes, y (n, T).
        positive: value of a ``label`` with two classes that becomes y = 1, or a list of values of any label that become
            1 while all others become 0; None numbers the classes 0..C-1 in sorted order.  Several label columns need
            it.  True and False also match the words "yes", "TRUE" and so on in a table.
        missing: value, or list of values, of several label columns that marks unknown labels, "" for an empty cell;
            their ``y`` is -1, which an objective with ``missing: -1`` leaves out.  None refuses unknown labels.
        target: "class" if the label is one of several classes (y int64); "number" if it is a number to be predicted
            (y float32).
        sensitive: column whose values, in sorted order, are the groups 0, 1, ...; or a list of columns, each of which
            defines groups for constraints with ``by``; None for none.  A row with an empty cell belongs to no group
            (-1) and is left out of constraints on groups.
        favoured: value of a single column ``sensitive`` that becomes group 1; all other values become group 0.
        use_sensitive: whether ``sensitive`` is also a feature.
        weight: column of sample weights, numbers >= 0: a sample of weight 2 counts as two in every mean, objective,
            constraint and figure.  Only their ratios matter.  The column is not a feature.
        drop: columns that are not features.
        extra: further columns of every batch, which are not features, such as a query, a time or an event: their names,
            or a mapping from the name in the batch to the column of the table.  Whole numbers and bools become int64,
            other numbers float32.

    Raises:
        ConfigError: if ``positive`` is given for numbers or missing for several labels, ``missing`` is given for one
            label, ``favoured`` is given without a single column ``sensitive``, or a further column has a name that
            batches use.
    """

    label: str | list[str]
    positive: Value | list[Value] | None = None
    missing: Value | list[Value] | None = None
    target: Literal["class", "number"] = "class"
    sensitive: str | list[str] | None = None
    favoured: Value | None = None
    use_sensitive: bool = False
    weight: str | None = None
    drop: list[str] = field(default_factory=list)
    extra: dict[str, str] | list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        one_of("columns.target", self.target, ("class", "number"))
        if self.target == "number" and self.positive is not None:
            raise ConfigError(
                f"columns.positive={self.positive!r} is a class, but target='number' makes the label a number. Leave "
                "one of them out."
            )
        if isinstance(self.label, list) and (not self.label or self.positive is None):
            raise ConfigError(
                f"columns.label={self.label!r} must name at least one column, and columns.positive the value that "
                f"becomes 1 in all of them, got positive={self.positive!r} and target={self.target!r}."
            )
        if len(set(self.label_columns)) < len(self.label_columns):
            raise ConfigError(f"columns.label={self.label!r} names a column twice. Leave one out.")
        if self.missing is not None and not self.several:
            raise ConfigError(
                f"columns.missing={self.missing!r} is for several labels, but columns.label={self.label!r} is one. "
                "Remove the rows without a label."
            )
        if self.favoured is not None and not isinstance(self.sensitive, str):
            raise ConfigError(
                f"columns.favoured={self.favoured!r} is a value of one column, and columns.sensitive is "
                f"{self.sensitive!r}. Name the column, or leave favoured out."
            )
        list_of("columns.drop", self.drop)
        if reserved := sorted(set(RESERVED) & set(self.extras)):
            raise ConfigError(
                f"columns.extra takes {reserved}, names that batches use for something else. Give them others as a "
                "mapping: name in the batch -> column."
            )

    @property
    def extras(self) -> dict[str, str]:
        """Name in the batch -> column of the table."""
        if isinstance(self.extra, Mapping):
            return dict(self.extra)
        return {name: name for name in list_of("columns.extra", self.extra)}

    @property
    def several(self) -> list[str]:
        """The columns of several labels; empty if there is one label."""
        return [] if isinstance(self.label, str) else list(self.label)

    @property
    def label_columns(self) -> list[str]:
        """All columns of labels."""
        return _each(self.label)

    @property
    def sensitive_columns(self) -> list[str]:
        """All columns that define groups."""
        return _each(self.sensitive)

    @property
    def wanted(self) -> dict[str, list[str]]:
        """Argument -> the columns that it requires of a table."""
        return {
            "columns.label": self.label_columns,
            "columns.drop": list(self.drop),
            "columns.extra": list(self.extras.values()),
            "columns.sensitive": self.sensitive_columns,
            "columns.weight": _each(self.weight),
        }

    @property
    def unused(self) -> set[str]:
        """Columns that are not features."""
        features = self.sensitive_columns if self.use_sensitive else ()
        others = {name for argument, names in self.wanted.items() if argument != "columns.sensitive" for name in names}
        return others | ({*self.sensitive_columns} - {*features})


def _each(value: Any) -> list[Any]:
    """Return the entries of a list, one value as a list, and none for None."""
    return list(value) if isinstance(value, list) else [] if value is None else [value]


@dataclass(frozen=True)
class TableRows:
    """The n rows of a ``table``, with ``columns`` of tensors (n, ...), such as ``y`` and ``group``, read from it."""

    table: pd.DataFrame
    columns: dict[str, Tensor]

    def __len__(self) -> int:
        return len(self.table)

    def take(self, rows: Tensor | None) -> "TableRows":
        """Return the given rows, in that order and with their numbers in the original table; None for all rows."""
        if rows is None:
            return self
        columns = {name: column[rows] for name, column in self.columns.items()}
        return TableRows(self.table.iloc[rows.numpy()], columns)


class Roles:
    """Reads labels, groups and further columns of tables, with classes and groups defined by the training table.

    Args:
        columns: the roles of the columns.
        groups: which columns define the groups; None for ``columns.sensitive``, or no groups.

    Attributes:
        class_names: names in the table of the labels 0..C-1; empty for numbers and for several labels.
        group_names: names of the groups of the training table; empty without groups.
        grouping: assigns groups to rows; None without ``groups``.

    Raises:
        ConfigError: if ``groups`` are given, and ``columns`` names several labels, or two groups as well.
    """

    def __init__(self, columns: Columns, groups: Groups | None = None) -> None:
        self.columns, self.grouping = columns, None if groups is None else Grouping(groups)
        self.class_names: list[str] = []
        self.group_names: list[str] = []
        self._classes: list[list[str]] = [[] for _ in columns.label_columns]  # classes of each label
        self._hidden = set() if groups is None or groups.as_features else {part.column for part in groups.parts}
        if groups is not None and columns.several:
            raise ConfigError(
                f"columns.label={columns.several!r} names several labels, but batches of groups are made for one. Use "
                "TabularDataModule without groups, or name one of them."
            )
        if groups is not None and columns.sensitive is not None:
            raise ConfigError(
                f"columns.sensitive={columns.sensitive!r} defines groups, but here groups.by defines them. Name the "
                "column in groups.by."
            )

    def fit(self, frame: pd.DataFrame, where: str) -> None:
        """Define the classes and the groups by ``frame``, which is called ``where`` in messages.

        Raises:
            DataError: if a column is absent or has missing cells, or the number of classes is wrong.
        """
        self.require(frame, where)
        columns = self.columns
        if columns.target == "class":
            cells = [frame[name][~self._missing(frame[name])] for name in columns.label_columns]
            self._classes = [_class_names(column, columns, where) for column in cells]
            self.class_names = [] if columns.several else self._classes[0]
        if isinstance(columns.sensitive, str):
            self.group_names = _group_names(frame[columns.sensitive].dropna(), columns.favoured, where)
        if self.grouping is not None:
            self.group_names = self.grouping.fit(frame, where).names

    def know(self, class_names: Sequence[str], group_names: Sequence[str]) -> None:
        """Set the classes and the groups of a training table that is not available."""
        self.class_names, self.group_names = list(class_names), list(group_names)
        self._classes = [[] if self.columns.several else self.class_names for _ in self._classes]
        if self.grouping is not None:
            self.grouping.know(group_names)

    @property
    def named(self) -> set[str]:
        """The columns that the arguments name."""
        grouped = () if self.grouping is None else self.grouping.columns
        return {*grouped, *(name for names in self.columns.wanted.values() for name in names)}

    def require(self, frame: pd.DataFrame, where: str) -> None:
        """Raise :class:`DataError` unless ``frame`` has all columns that the arguments name, and no missing label."""
        require_columns(frame, self.columns.wanted, where)
        for name in self.columns.label_columns:
            cells = frame[name][~self._missing(frame[name])]
            require_filled(cells, "columns.label", where, _OF_SEVERAL if self.columns.several else "")

    def read(self, frame: pd.DataFrame, where: str) -> dict[str, Tensor]:
        """Return ``y``, ``group`` (if there are groups; -1 for rows without one) and the further columns of ``frame``.

        Each has shape (n,), except y (n, T) for several labels.

        Raises:
            DataError: if a column is absent or has missing cells, or a class is not one of the training table's.
        """
        self.require(frame, where)
        columns = self.columns
        labels = zip(columns.label_columns, self._classes, strict=True)
        y = [self._label(frame[name], classes, where) for name, classes in labels]
        data = {"y": torch.stack(y, dim=1) if columns.several else y[0]}
        if isinstance(columns.sensitive, str):
            data["group"] = self._groups(frame[columns.sensitive])
        if self.grouping is not None:
            data["group"] = self.grouping.assign(frame, where)
        if columns.weight is not None:
            weights = _numbers(frame[columns.weight], "columns.weight", where).float()
            data[SAMPLE_WEIGHT] = _valid(weights, f"columns.weight={columns.weight!r} of {where}")
        return data | {name: _numbers(frame[column], "columns.extra", where) for name, column in columns.extras.items()}

    def features(self, frame: pd.DataFrame, where: str, others: Iterable[str] = ()) -> pd.DataFrame:
        """Return the columns of ``frame`` that are features, except ``others``.

        Raises:
            DataError: if there are none.
        """
        left_out = self.columns.unused | self._hidden | {*others}
        features = frame[[column for column in frame.columns if column not in left_out]]
        if features.shape[1] == 0:
            raise DataError(
                f"No feature column is left in {where} beside {listed(left_out)}. Drop fewer columns, or let sensitive "
                "ones be features (columns.use_sensitive)."
            )
        return features

    def of_unknown_groups(self, frame: pd.DataFrame, where: str) -> str:
        """Return the message of :func:`of_unknown_groups` for a split."""
        name = self.columns.sensitive
        if not isinstance(name, str) or self._any_group:
            return ""
        return of_unknown_groups(frame[name], self.group_names, where)

    @property
    def _any_group(self) -> bool:
        """Whether all values of the sensitive column except the favoured one, known or not, form one group."""
        return self.columns.favoured is not None and self.group_names[0] == f"{_NOT}{self.group_names[1]}"

    def _groups(self, cells: pd.Series) -> Tensor:
        """The group of every cell; -1 if the cell is empty or its group does not occur in training."""
        group = (
            torch.tensor(cells.notna().to_numpy()).long() - 1 if self._any_group else places(self.group_names, cells)
        )
        favoured = _each(self.columns.favoured)
        return torch.where(marked(cells, favoured) == 1, 1, group) if favoured else group

    def _missing(self, column: pd.Series) -> pd.Series:
        """Mark the unknown labels of a column, by ``columns.missing``."""
        values = _each(self.columns.missing)
        if not values:  # comparing the texts of a million cells takes a while
            return pd.Series(False, column.index)
        missing = pd.Series(marked(column, values).bool().numpy(), column.index)
        return missing | column.isna() if "" in values else missing

    def _label(self, column: pd.Series, classes: list[str], where: str) -> Tensor:
        """Return a label as the number of its class, of several labels :data:`NOT_KNOWN` if it is missing."""
        positive, several = _each(self.columns.positive), bool(self.columns.several)
        if self.columns.target == "number":
            return _numbers(column, "columns.label", where).float()
        missing = torch.tensor(self._missing(column).to_numpy())
        if isinstance(self.columns.positive, list) or (several and not classes):  # all other values are negative
            return marked(column, positive).masked_fill(missing, NOT_KNOWN)
        y = places(classes, column)
        known = marked(column, classes).bool() | missing if several else y >= 0
        if not bool(known.all()):
            raise DataError(
                f"columns.label={column.name!r} has classes {listed(text_of(column)[~known.numpy()].unique())} in "
                f"{where}, which the training rows do not have. They have {listed(classes)}. Correct the table."
            )
        return indicator(column, positive[0], "columns.positive", where).masked_fill(missing, -1) if several else y


def _class_names(column: pd.Series, columns: Columns, where: str) -> list[str]:
    """Return the classes of a label in the order of their numbers, with the positive one of two as the last.

    A list of positive values is one class.

    Raises:
        DataError: if there is only one class, or more than two although one ``positive`` is given; if a positive value
            does not occur; or if the label is a number with decimal commas.
    """
    label, positive = f"columns.label={str(column.name)!r}", columns.positive
    text = text_of(column)
    if isinstance(positive, list):
        found = [indicator(column, value, "columns.positive", where).bool() for value in positive]
        if not found or bool(torch.stack(found).any(0).all()):
            raise DataError(
                f"columns.positive={positive!r} must be some of the classes of {label}, and not all of them: in "
                f"{where} these are {listed(text.unique())}."
            )
        name = " or ".join(map(str, positive))
        return [f"{_NOT}{name}", name]
    classes = sorted(text.unique(), key=float if is_number(column.dtype) else str)
    if positive is None and len(classes) > _MOST_CLASSES and (remark := with_commas(column)):
        raise DataError(
            f"{label} of {where} {remark}, and set columns.target='number'. As text, its {len(classes)} values would "
            "be as many classes."
        )
    if len(classes) < 2 or (positive is not None and len(classes) != 2):
        number = "at least two classes" if positive is None else f"exactly two classes for columns.{positive=}"
        way_out = "Choose another column, leave columns.positive out, or set columns.target='number'."
        raise DataError(
            f"{label} must have {number}, but in {where} it has {len(classes)}: {listed(classes)}. "
            f"{_OF_SEVERAL if columns.several else way_out}"
        )
    if positive is None:
        return classes
    is_positive = indicator(text, positive, "columns.positive", where)
    return classes[::-1] if is_positive[int((text == classes[0]).argmax())] else classes


def _group_names(cells: pd.Series, favoured: Value | None, where: str) -> list[str]:
    """Names of the groups of filled cells: their values, or two groups of which the favoured one is the last.

    Raises:
        DataError: if there is only one group or more than 50, or the favoured value does not occur.
    """
    text, name = text_of(cells), f"columns.sensitive={str(cells.name)!r}"
    values = sorted(text.unique())
    if len(values) < 2:
        raise DataError(
            f"{name} has one group only in {where}, {listed(values)}, so there is nothing to compare. Name another "
            "column, or leave it out."
        )
    if favoured is not None:
        is_favoured = indicator(cells, favoured, "columns.favoured", where).bool().numpy()
        own, others = str(text[is_favoured].iloc[0]), sorted(text[~is_favoured].unique())
        return [others[0] if len(others) == 1 else f"{_NOT}{own}", own]
    if len(values) > MOST_GROUPS:
        raise DataError(
            f"{name} has {len(values)} values in {where}, each of which would be a group; at most {MOST_GROUPS} are "
            "allowed. Compare one with all others (columns.favoured), or name a column with fewer values."
        )
    return values


def _numbers(column: pd.Series, argument: str, where: str) -> Tensor:
    """Return a column of numbers or bools: int64 if they are whole numbers by type, else float32."""
    require_filled(column, argument, where)
    if pd.api.types.is_integer_dtype(column.dtype) or pd.api.types.is_bool_dtype(column.dtype):
        return torch.from_numpy(column.to_numpy(dtype=np.int64, copy=True))
    if not is_number(column.dtype):
        remark = with_commas(column) or f"is {column.dtype}. Convert it, for example with pandas.factorize"
        raise DataError(f"{argument}={str(column.name)!r} must hold numbers, but in {where} the column {remark}.")
    return torch.from_numpy(column.to_numpy(dtype=np.float32, copy=True))


def of_no_group(column: str, present: Any) -> str:
    """Return a message on the number of training rows without a group; empty if there are none.

    Args:
        column: name of the column whose values are the groups.
        present: whether a row has a group, (n,), bool.
    """
    missing = int((~present).sum())
    if not missing:
        return ""
    remark = f"{missing} of {len(present)} training rows ({missing / len(present):.1%}) have no value of {column!r}"
    return f"{remark}: constraints that compare its groups leave them out, the objective does not."


def of_unknown_groups(column: pd.Series, groups: Sequence[str], where: str) -> str:
    """Return a message on the number of rows of a split whose group does not occur in training; empty if it is 0.

    Args:
        column: column of the split whose values are the groups.
        groups: values of this column in training.
        where: name of the split.
    """
    unknown = text_of(column[(places(groups, column) < 0).numpy() & column.notna().to_numpy()])
    if not len(unknown):
        return ""
    return (
        f"{len(unknown)} of {len(column)} rows of {where} have a value of {str(column.name)!r} that is no group of "
        f"training: {listed(unknown.unique())}. The groups are {listed(groups)}. Figures and constraints on groups "
        "leave these rows out. If a group is spelled in two ways, use one spelling."
    )


def _valid(weights: Tensor, what: str) -> Tensor:
    """Return sample weights (n,) if all are finite numbers >= 0; ``what`` names them in messages."""
    invalid = ~((weights >= 0) & weights.isfinite())
    if bool(invalid.any()):
        raise DataError(
            f"{what} must be finite numbers >= 0, but {int(invalid.sum())} are not (first: "
            f"{float(weights[invalid][0]):g}). Give a sample that is not to count the weight 0."
        )
    return weights


def require_some_weight(weights: Tensor, where: str) -> None:
    """Raise :class:`DataError` if no sample weight (n,) is > 0: nothing could be trained or evaluated."""
    if not bool((weights > 0).any()):
        raise DataError(f"none of the weights of the {len(weights)} samples of {where} is > 0. Give some a weight > 0.")


def of_mean_one(weights: Tensor, where: str) -> Tensor:
    """Return sample weights (n,) divided by their mean.

    Raises:
        DataError: if all are 0, or one is no finite number >= 0.
    """
    require_some_weight(_valid(weights, f"the weights of samples of {where}"), where)
    return (weights.double() / weights.double().mean()).float()
