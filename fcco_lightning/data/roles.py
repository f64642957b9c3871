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
    "x",
    "x2",
    "y",
    "group",
    "task",
    "text",
    "index",
    "weight",
    SAMPLE_WEIGHT,
    IN_HALVES,
    "stratum",
    "stratum_size",
    "strata",
    "replaced",
    KNOWN_STRATUM,
    POPULATION,
    HERE,
)
"""Names of batch columns that a further column must not take."""

MOST_GROUPS = 50
"""A column with more values is a number or a name, and no group has enough samples."""

_MOST_CLASSES = 20  # a label with more distinct values with decimal commas is a number, not a class

_NOT = "not "  # begins the name of a group of all other values

NOT_KNOWN = -1
"""What ``y`` holds of several labels in the place of one that is not known."""

_OF_SEVERAL = "Say what stands for a label that is not known: columns.missing, where '' is an empty cell."
_OF_ONE = (
    "Choose another column, leave columns.positive out if there are more than two, or set columns.target='number' if "
    "it is a number."
)


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
        if isinstance(self.label, list):
            if not self.label or self.positive is None or self.target != "class":
                raise ConfigError(
                    f"columns.label={self.label!r} must name at least one column, and columns.positive the value that "
                    f"becomes 1 in all of them, got positive={self.positive!r} and target={self.target!r}."
                )
            if len(set(self.label)) < len(self.label):
                raise ConfigError(f"columns.label={self.label!r} names a column twice. Leave one out.")
        elif self.missing is not None:
            raise ConfigError(
                f"columns.missing={self.missing!r} is for several labels, of which a sample may lack one, but "
                f"columns.label={self.label!r} is one. Remove the rows without a label."
            )
        if self.favoured is not None and not isinstance(self.sensitive, str):
            raise ConfigError(
                f"columns.favoured={self.favoured!r} is a value of one column, and columns.sensitive is "
                f"{self.sensitive!r}. Name the column, or leave favoured out."
            )
        list_of("columns.drop", self.drop)
        reserved = sorted(set(RESERVED) & set(self.extras))
        if reserved:
            raise ConfigError(
                f"columns.extra takes {reserved}, names that batches use for something else. Give them others as a "
                "mapping: name in the batch -> column."
            )

    @property
    def extras(self) -> dict[str, str]:
        """Name in the batch -> column of the table."""
        return (
            dict(self.extra)
            if isinstance(self.extra, Mapping)
            else {name: name for name in list_of("columns.extra", self.extra)}
        )

    @property
    def several(self) -> list[str]:
        """The columns of several labels; empty if there is one label."""
        return list(self.label) if isinstance(self.label, list) else []

    @property
    def label_columns(self) -> list[str]:
        """All columns of labels."""
        return [self.label] if isinstance(self.label, str) else list(self.label)

    @property
    def sensitive_columns(self) -> list[str]:
        """All columns that define groups."""
        return [self.sensitive] if isinstance(self.sensitive, str) else list(self.sensitive or ())

    @property
    def wanted(self) -> dict[str, list[str]]:
        """Argument -> the columns that it requires of a table."""
        required = {"label": self.label_columns, "drop": list(self.drop), "extra": list(self.extras.values())}
        required |= {"sensitive": self.sensitive_columns}
        required |= {} if self.weight is None else {"weight": [self.weight]}
        return {f"columns.{argument}": names for argument, names in required.items()}

    @property
    def unused(self) -> set[str]:
        """Columns that are not features."""
        hidden = set() if self.use_sensitive else set(self.sensitive_columns)
        weight = {self.weight} if self.weight is not None else set()
        return {*self.label_columns, *self.drop, *self.extras.values(), *hidden, *weight}


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
        self._classes: list[list[str]] = []  # classes of each of several labels
        self._hidden = set() if groups is None or groups.as_features else {part.column for part in groups.parts}
        if groups is not None:
            _refuse_other_roles(columns)

    def fit(self, frame: pd.DataFrame, where: str) -> None:
        """Define the classes and the groups by ``frame``, which is called ``where`` in messages.

        Raises:
            DataError: if a column is absent or has missing cells, or the number of classes is wrong.
        """
        self.require(frame, where)
        columns = self.columns
        if isinstance(columns.label, list):
            cells_of_labels = [frame[name][~self._missing(frame[name])] for name in columns.label]
            self._classes = [class_names(cells, columns.positive, where, _OF_SEVERAL) for cells in cells_of_labels]
        elif columns.target == "class":
            _refuse_numbers(frame[columns.label], columns.positive, where)
            self.class_names = class_names(frame[columns.label], columns.positive, where)
        if isinstance(columns.sensitive, str):
            self.group_names = _group_names(frame[columns.sensitive].dropna(), columns, where)
        if self.grouping is not None:
            self.group_names = self.grouping.fit(frame, where).names

    def know(self, class_names: Sequence[str], group_names: Sequence[str]) -> None:
        """Set the classes and the groups of a training table that is not available."""
        self.class_names, self.group_names = list(class_names), list(group_names)
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
        if isinstance(columns.label, list):
            labels = zip(columns.label, self._classes or [[]] * len(columns.label), strict=True)
            data = {"y": torch.stack([self._one_of_several(frame[n], classes, where) for n, classes in labels], dim=1)}
        else:
            data = {"y": self._labels(frame[columns.label], where)}
        if isinstance(columns.sensitive, str):
            data["group"] = self._groups(frame[columns.sensitive])
        if self.grouping is not None:
            data["group"] = self.grouping.assign(frame, where)
        if columns.weight is not None:
            data[SAMPLE_WEIGHT] = _weights(frame[columns.weight], where)
        return data | {name: _numbers(frame[column], "columns.extra", where) for name, column in columns.extras.items()}

    def features(self, frame: pd.DataFrame, where: str, others: Iterable[str] = ()) -> pd.DataFrame:
        """Return the columns of ``frame`` that are features, except ``others``.

        Raises:
            DataError: if there are none.
        """
        left_out = self.columns.unused | self._hidden | {*others}
        features = frame[[column for column in frame.columns if column not in left_out]]
        if features.shape[1] == 0:
            way_out = (
                "" if self.columns.use_sensitive else ", or let a sensitive one be a feature (columns.use_sensitive)"
            )
            raise DataError(
                f"No feature column is left in {where} beside {listed(left_out)}. Drop fewer columns{way_out}."
            )
        return features

    def _labels(self, column: pd.Series, where: str) -> Tensor:
        if self.columns.target == "number":
            return _numbers(column, "columns.label", where).float()
        if isinstance(self.columns.positive, list):
            return marked(column, self.columns.positive)
        y = places(self.class_names, column)
        _require_classes(column, y >= 0, self.class_names, where)
        return y

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
        number, favoured = places(self.group_names, cells), self.columns.favoured
        if favoured is None:
            return number
        is_favoured = marked(cells, [favoured])
        if self._any_group:
            number = torch.from_numpy(cells.notna().to_numpy().astype(np.int64)) - 1
        return torch.where(is_favoured == 1, is_favoured, number)

    def _missing(self, column: pd.Series) -> pd.Series:
        """Mark the unknown labels of a column, by ``columns.missing``."""
        missing = self.columns.missing
        values = missing if isinstance(missing, list) else [] if missing is None else [missing]
        listed = pd.Series(marked(column, values).bool().numpy(), index=column.index)
        return listed | column.isna() if "" in values else listed

    def _one_of_several(self, column: pd.Series, classes: list[str], where: str) -> Tensor:
        """Return one of several labels, 0, 1 or :data:`NOT_KNOWN`."""
        missing, positive = torch.tensor(self._missing(column).to_numpy()), self.columns.positive
        if isinstance(positive, list):  # all other values are negative
            return marked(column, positive).masked_fill(missing, NOT_KNOWN)
        if not classes:  # the training table is not available
            return marked(column, [positive]).masked_fill(missing, NOT_KNOWN)
        _require_classes(column, marked(column, classes).bool() | missing, classes, where)
        return indicator(column, positive, "columns.positive", where).masked_fill(missing, NOT_KNOWN)


def _require_classes(column: pd.Series, known: Tensor, classes: list[str], where: str) -> None:
    """Refuse classes that the training rows do not have; ``known`` (n,) marks the rows of known classes."""
    if not bool(known.all()):
        unknown = text_of(column)[~known.numpy()].unique()
        raise DataError(
            f"columns.label={column.name!r} has classes {listed(unknown)} in {where} that the training "
            f"rows do not have; theirs are {listed(classes)}. Repair the table."
        )


def _refuse_other_roles(columns: Columns) -> None:
    """Refuse several labels and ``sensitive`` together with ``groups.by``."""
    if columns.several:
        raise ConfigError(
            f"columns.label={columns.several!r} names several labels, but batches of groups are made for one. Use "
            "TabularDataModule, or name one of them."
        )
    if columns.sensitive is not None:
        raise ConfigError(
            f"columns.sensitive={columns.sensitive!r} defines groups, but here groups.by defines them. Name the "
            "column in groups.by."
        )


def class_names(
    column: pd.Series, positive: Value | list[Value] | None, where: str, remedy: str = _OF_ONE
) -> list[str]:
    """Return the classes of a label in the order of their numbers; ``remedy`` is advice if there are not two.

    They are sorted, but the ``positive`` one of two is the last; a list of positive values is one class, the last.

    Raises:
        DataError: if there is only one class, or more than two although one ``positive`` is given, or a positive value
            does not occur.
    """
    if isinstance(positive, list):
        return _merged_names(column, positive, where)
    text = text_of(column)
    classes = sorted(text.unique(), key=float if is_number(column.dtype) else str)
    if len(classes) < 2 or (positive is not None and len(classes) != 2):
        requirement = (
            "at least two classes" if positive is None else f"exactly two classes for columns.positive={positive!r}"
        )
        raise DataError(
            f"columns.label={column.name!r} must have {requirement}, but in {where} it has {len(classes)}: "
            f"{listed(classes)}. {remedy}"
        )
    if positive is None:
        return classes
    is_positive = indicator(text, positive, "columns.positive", where)
    return classes[::-1] if is_positive[int((text == classes[0]).argmax())] else classes


def _merged_names(column: pd.Series, positive: list[Value], where: str) -> list[str]:
    for value in positive:
        indicator(column, value, "columns.positive", where)  # raises if it does not occur
    if not positive or bool(marked(column, positive).all()):
        raise DataError(
            f"columns.positive={positive!r} must be some of the classes of columns.label={column.name!r}, and not all "
            f"of them: in {where} these are {listed(text_of(column).unique())}."
        )
    name = " or ".join(str(value) for value in positive)
    return [f"not {name}", name]


def _refuse_numbers(column: pd.Series, positive: Value | list[Value] | None, where: str) -> None:
    """Refuse labels that are numbers with decimal commas, each of which would become a class."""
    count = column.nunique()
    if positive is None and count > _MOST_CLASSES and (remark := with_commas(column)):
        raise DataError(
            f"columns.label={str(column.name)!r} of {where} {remark}, and set columns.target='number'. As text, its "
            f"{count} values would be as many classes."
        )


def _numbers(column: pd.Series, argument: str, where: str) -> Tensor:
    """Return a column of numbers or bools: int64 if they are whole numbers by type, else float32."""
    require_filled(column, argument, where)
    if pd.api.types.is_integer_dtype(column.dtype) or pd.api.types.is_bool_dtype(column.dtype):
        return torch.from_numpy(column.to_numpy(dtype=np.int64, copy=True))
    if remark := with_commas(column):
        raise DataError(f"{argument}={str(column.name)!r} must hold numbers, but in {where} the column {remark}.")
    if not is_number(column.dtype):
        raise DataError(
            f"{argument}={str(column.name)!r} must hold numbers, but is {column.dtype} in {where}. Turn it into "
            "numbers before, for example with pandas.factorize."
        )
    return torch.from_numpy(column.to_numpy(dtype=np.float32, copy=True))


def of_no_group(column: str, present: Any) -> str:
    """Return a message on the number of training rows without a group; empty if there are none.

    Args:
        column: name of the column whose values are the groups.
        present: whether a row has a group, (n,), bool.
    """
    missing = int((~present).sum())
    share = missing / max(1, len(present))
    remark = f"{missing} of {len(present)} training rows ({share:.1%}) have no value of {column!r}"
    return f"{remark}: constraints that compare its groups leave them out, the objective does not." if missing else ""


def of_unknown_groups(column: pd.Series, groups: Sequence[str], where: str) -> str:
    """Return a message on the number of rows of a split whose group does not occur in training; empty if it is 0.

    Args:
        column: column of the split whose values are the groups.
        groups: values of this column in training.
        where: name of the split.
    """
    unknown = text_of(column[(places(groups, column) < 0).numpy() & column.notna().to_numpy()])
    return (
        f"{len(unknown)} of {len(column)} rows of {where} have a value of {str(column.name)!r} that is no group of "
        f"training, {listed(unknown.unique())}: theirs are {listed(groups)}. What is measured of groups leaves these "
        "rows out. If these are the same groups, write them one way."
        if len(unknown)
        else ""
    )


def _weights(column: pd.Series, where: str) -> Tensor:
    """Return a column of weights, (n,), float32."""
    weights = _numbers(column, "columns.weight", where).float()
    invalid = ~((weights >= 0) & weights.isfinite())
    if bool(invalid.any()):
        raise DataError(
            f"columns.weight={str(column.name)!r} of {where} must hold finite numbers >= 0, but {int(invalid.sum())} "
            f"rows do not (first: {float(weights[invalid][0]):g}). A row that is not to count has the weight 0."
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
    invalid = ~((weights >= 0) & weights.isfinite())
    if bool(invalid.any()):
        raise DataError(
            f"the weights of samples of {where} must be finite numbers >= 0, but {int(invalid.sum())} are not (first: "
            f"{float(weights[invalid][0]):g}). A sample that is not to count has the weight 0."
        )
    require_some_weight(weights, where)
    return (weights.double() / weights.double().mean()).float()


def _group_names(cells: pd.Series, columns: Columns, where: str) -> list[str]:
    """Names of the groups of filled cells: their values, or two groups of which the favoured one is the last.

    Raises:
        DataError: if there is only one group, or the favoured value does not occur.
    """
    text = text_of(cells)
    values = sorted(text.unique())
    if len(values) < 2:
        raise DataError(
            f"columns.sensitive={str(cells.name)!r} has one group only in {where}, {listed(values)}, so there is "
            "nothing to compare. Name another column, or leave it out."
        )
    if columns.favoured is None:
        if len(values) > MOST_GROUPS:
            raise DataError(
                f"columns.sensitive={str(cells.name)!r} has {len(values)} values in {where}, of which each would be a "
                f"group, and there may be {MOST_GROUPS}. Compare one with all others (columns.favoured), or give the "
                "table a column of fewer groups."
            )
        return values
    favoured = indicator(cells, columns.favoured, "columns.favoured", where).bool().numpy()
    favoured_name, others = str(text[favoured].iloc[0]), sorted(text[~favoured].unique())
    return [others[0] if len(others) == 1 else f"{_NOT}{favoured_name}", favoured_name]
