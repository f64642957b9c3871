"""What an objective measures: a direct part g_0(w) and/or inner functions g_i(w) under an outer function."""

from abc import ABC
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from fcco_lightning.errors import ConfigError, DataError
from fcco_lightning.models.batch import Columns
from fcco_lightning.objectives.measurable import Measurable
from fcco_lightning.outer import OuterFunction, Range
from fcco_lightning.state.processes import Processes

T = TypeVar("T", bound=tuple[Tensor, ...])


class SampleParameters(NamedTuple):
    """Parameters of which every sample has its own, trained beside the network (temperatures of pairs).

    Attributes:
        name: of the column (b, k) in which a batch brings them to the objective.
        width: k, parameters of a sample.
        start: where they begin.
        least: lower bound.
        most: upper bound.
        lr: step size of their projected gradient descent, > 0.
    """

    name: str
    width: int
    start: float
    least: float
    most: float
    lr: float


class RowDomain(NamedTuple):
    """Which rows a compositional part has.

    Attributes:
        num_rows: n, the number of rows; ignored where ``owners`` is given.
        per_sample: whether single samples own the rows (and not groups, tasks or constraints).
        owners: with ``per_sample``: which training samples own a row, shape (num_samples,), bool; None for all.  The
            rows are numbered 0, 1, ... in the order of their owners, but a batch names them by the samples' ``index``.
            Where a sample owns a row for each of some of T labels, shape (num_samples, T), and a row is named by ``T
            index + label`` (:attr:`~fcco_lightning.objectives.measurable.Rows.index`).
        range: the interval in which the inner values are known to lie, whatever the weights.
        partners: with ``owners``: samples of which a batch must hold one to measure any row, shape (num_samples,),
            bool, none of them an owner; None if a batch measures the row of every owner that it holds.
    """

    num_rows: int
    per_sample: bool = False
    owners: Tensor | None = None
    range: Range = Range()
    partners: Tensor | None = None


class Partition(Sequence[Sequence[Tensor]]):
    """Subsets of many rows of which every sample belongs to one at most: a sample of row i, and one of its partners.

    It is a list of the masks of every row, (n_samples,) bool each, which are formed where they are asked for only: n
    rows of n samples would take n^2 numbers.

    Args:
        of: row of every sample, shape (n_samples,), int64; another number than 0..num_rows - 1 for none.
        num_rows: n.
        partners: sets of samples, masks (n_samples,), bool, of which a batch must hold one too; none for just the row.
        partner_of: which of them is a row's, shape (n,), int64; none of its own samples are among them.

    Example:
        >>> [[mask.tolist() for mask in row] for row in Partition(torch.tensor([0, 1, 0]), 2)]
        [[[True, False, True]], [[False, True, False]]]
    """

    def __init__(
        self, of: Tensor, num_rows: int, partners: Sequence[Tensor] = (), partner_of: Tensor | None = None
    ) -> None:
        self.of, self.num_rows, self.partners = of, num_rows, partners
        self.partner_of = torch.full((num_rows,), -1) if partner_of is None else partner_of

    def __len__(self) -> int:
        return self.num_rows

    def __getitem__(self, row: Any) -> Any:
        """The masks of a row."""
        if not 0 <= row < self.num_rows:
            raise IndexError(f"row {row} of {self.num_rows}")
        partner = int(self.partner_of[row])
        return [self.of == row] if partner < 0 else [self.of == row, self.partners[partner]]


class Objective(nn.Module, Measurable, ABC):
    r"""``F(w) = g_0(w) + (1/n) sum_i f_i(g_i(w))``; a subclass offers either part or both.

    An objective is a module, so it may own parameters that are trained with the network (a temperature, a CVaR
    threshold).  It never sees the dual state.  ``outputs`` is what the network returned for the samples of its part of
    the batch.  By default every training sample owns a row.

    Attributes:
        outer: f, or None where there is no compositional part.
        dtype: of the rows, unless a wider one is asked for.
        sample_parameters: parameters that every sample has of its own, or None.
        growth: how many times a remembered row an inner value may be for an outer gradient taken at the row, > 1; None
            for any.
        against_overflow: what to change where gradients overflow, a sentence.
        by_blocks: whether samples are compared with each other block by block, in memory that grows with the number of
            samples and not with its square.
        most: the largest numbers of samples of its :meth:`kinds` in a batch, while it is trained on batches of a plan
            that knows them; empty elsewhere, where batches may hold any number.
        recommended_start: the share of the epochs, in (0, 1), that are better spent on another objective before this
            one, as measured, and that objective or None for cross-entropy; :class:`~fcco_lightning.FCCOModule` does so
            unless it is told otherwise.  None for no such start.
        recommended: whether it is trained as it recommends, which that module sets and leaves so; False for an
            objective that no such module was given, which is that of its paper.  Give another loop one of its own.
        num_samples: n, the size of the training split; None before the problem is posed, which sets it.
        needs_partner: whether rows are compared with samples of another class only, without which a batch measures
            none of them.
        direct_weight: what the engine multiplies g_0 by, since some batches lack a sample of :meth:`direct_subsets`.
        recommended_lam: the outer smoothing of f that SONEX then takes where it is told none, > 0, in squared units of
            g per unit of f; None for the same as elsewhere.
        scores_classes: whether one output per sample is a score of its class, of which decisions and probabilities are
            made; else it means something else, such as a log risk or a place in a list.
        settles: whether parameters of f then follow their best values given all rows, see :meth:`settle`.
    """

    against_overflow: str = "Scale the scores or the features down."
    outer: OuterFunction | None = None
    dtype: torch.dtype = torch.float32
    growth: float | None = None
    by_blocks: bool = False
    scores_classes: bool = True
    most: tuple[int, ...] = ()
    sample_parameters: SampleParameters | None = None
    num_samples: int | None = None
    direct_weight: float = 1.0
    needs_partner: ClassVar[bool] = False
    recommended_start: "tuple[float, Objective | None] | None" = None
    recommended: bool = False
    recommended_lam: float | None = None
    settles: bool = False

    def settle(self, rows: Tensor, f: OuterFunction) -> None:
        """Move parameters of f to the values that are best for the rows as they are remembered.

        The engine asks for it after every update where training is as recommended, if :attr:`settles` says so and the
        rows are running estimates of the inner values.  Elsewhere the parameters are trained beside the network.

        Args:
            rows: all rows, shape (n, k), without graph; NaN where never written.
            f: the outer function as the algorithm smooths it.
        """

    def join(self, processes: Processes) -> None:
        """Take the processes that share every batch, before the first one.

        All of them measure the samples of all.  An objective that compares these with each other divides that among
        the processes here; which samples are a process's own the column ``here`` says.
        """

    def kinds(self, columns: Columns) -> Sequence[Tensor]:  # noqa: ARG002
        """Kinds of samples of which fewer need be measured where batches hold few: masks of the training samples."""
        return ()

    def row_domain(self, num_samples: int, columns: Columns | None) -> RowDomain:  # noqa: ARG002
        """The rows of the compositional part: by default one for every training sample.

        Args:
            num_samples: size of the training split.
            columns: of the whole training split, without the network's input; None where only batches are known.  They
                have :data:`~fcco_lightning.models.batch.POPULATION` where batches stand for another population.
        """
        return RowDomain(num_samples, per_sample=True)

    @property
    def classifies(self) -> bool:
        """Whether a score above 0, or the largest of several, is what the objective gives to the class of a sample."""
        return bool(getattr(getattr(self, "loss", None), "classifies", False))

    @property
    def proper(self) -> bool:
        """Whether one score per sample is the log-odds of a positive where the loss is least, as with cross-entropy."""
        return bool(getattr(getattr(self, "loss", None), "proper", False))

    @property
    def in_words(self) -> str:
        """What is minimised, as the first lines of a run say it."""
        return type(self).__name__

    @property
    def instead(self) -> str | None:
        """What to compare it with, and why: a sentence for the end of a run, if it was seen not to pay; else None."""
        return None

    def know_presence(self, probability: Tensor) -> None:
        """Learn how likely a batch is to measure each row, shape (n,), where that follows from :meth:`subsets`.

        Each row's weight makes up for it.  An objective whose rows also depend on one another says here if that is not
        enough.
        """

    def direct_subsets(self, columns: Columns) -> Sequence[Tensor] | None:  # noqa: ARG002
        """Of which samples a batch must hold one each for g_0 to be measured, as masks (num_samples,); None for any.

        In a batch that lacks one of them g_0 is 0; the others weigh the more.
        """
        return None

    @property
    def always_measured(self) -> bool:
        """Whether every batch measures a part of g_0, also one that lacks a sample of :meth:`direct_subsets`."""
        return False

    def max_form(self) -> "Objective":
        """The same objective as a maximum over weights q, for algorithms that keep q (OOA, SMD).

        Raises:
            ConfigError: if it has none.
        """
        raise ConfigError(
            f"{type(self).__name__} is not a maximum over weights of groups, as OOA and SMD need. Use CVaRGroupDRO or "
            "WorstGroupDRO, or another algorithm, such as SONEX."
        )


def whole_numbers(columns: Columns, name: str, needed_by: object, remedy: str, *, look: bool = True) -> Tensor:
    """A column of one whole number per sample, shape (n,), in the type that it has.

    Raises:
        DataError: if the column is missing, has another shape or, where one looks at the numbers, holds another number.
    """
    values = one_label_each(columns, needed_by, name)
    if look and values.is_floating_point():
        require(values == values.round(), values, f"`{name}` must hold one whole number per sample", remedy)
    return values


def required_column(batch: Columns, name: str, needed_by: object) -> Tensor:
    """A column of a batch.

    Raises:
        DataError: if the batch lacks it, or it is no tensor of real numbers, naming the class of ``needed_by``.
    """
    column = batch.get(name)
    if column is None:
        option = "columns.sensitive or groups.by" if name == "group" else "columns.extra"
        raise DataError(
            f"{type(needed_by).__name__} needs the column `{name}`, the batch has {sorted(batch)}. Use a datamodule "
            f"that gives it, or name the column in the data (of a table: {option}). A column of texts is none: number "
            "what it names, for example with pandas.factorize."
        )
    if not isinstance(column, Tensor) or column.is_complex():
        got = column.dtype if isinstance(column, Tensor) else f"a {type(column).__name__}"
        raise DataError(
            f"{type(needed_by).__name__} needs the column `{name}` as a tensor of real numbers, got {got}. Number what "
            "it names, for example with pandas.factorize."
        )
    return column


def one_label_each(batch: Columns, needed_by: object, column: str = "y") -> Tensor:
    """A column of one number per sample, shape (B,), such as the labels; of shape (B, 1) it loses the last dimension.

    Raises:
        DataError: if the column is missing, or is no tensor of these shapes.
    """
    y = batch.get(column)
    if isinstance(y, Tensor) and y.dim() == 1 and not y.is_complex():
        return y
    y = required_column(batch, column, needed_by)
    if y.dim() == 2 and y.shape[1] == 1:
        return y.squeeze(1)
    if y.dim() != 1:
        raise DataError(
            f"{type(needed_by).__name__} needs one number `{column}` per sample, a tensor of shape (B,), got shape "
            f"{tuple(y.shape)}. Give one column of it, {column}[:, 0], or choose what takes several labels."
        )
    return y


def require_binary_labels(batch: Columns, needed_by: object, column: str = "y") -> None:
    """Refuse labels that are not 0 or 1 and would silently count as one of them.

    Raises:
        DataError: if the column is missing or has another value, which is named beside the class of ``needed_by``.
    """
    y = one_label_each(batch, needed_by, column)
    require(
        (y == 0) | (y == 1),
        y,
        f"{type(needed_by).__name__} needs labels `{column}` of 0 and 1",
        f"Recode them: ({column} + 1) // 2 for -1 and 1, ({column} == k) for class k of several, ({column} > 0.5) for "
        "probabilities.",
    )


def require(right: Tensor, values: Tensor, rule: str, remedy: str) -> None:
    """Refuse the values (n, ...) of a column where not all are right, naming the first that is not.

    Raises:
        DataError: "<rule>, got <value> at position <sample>. <remedy>"
    """
    if not bool(right.all()):
        position = tuple((~right).nonzero()[0].tolist())
        raise DataError(f"{rule}, got {values[position].item()!r} at position {position[0]}. {remedy}")


def vectors(outputs: Any, part: str, kind: type[T], needed_by: object, network: str) -> T:
    """What a network that returns a named tuple of vectors (B, d) returned for a part of the batch.

    Raises:
        DataError: if the outputs are something else, naming the class of ``needed_by`` and the network to use.
    """
    output = outputs.get(part) if isinstance(outputs, Mapping) else None
    if not isinstance(output, kind) or any(vector.dim() != 2 for vector in output):
        raise DataError(
            f"{type(needed_by).__name__} needs {kind.__name__} of shape (B, d) for the part {part!r} of a batch, got "
            f"{type(output).__name__}. Use {network}, and batches with a part {part!r}."
        )
    return output


def agreed(name: str, argument: int | None, datamodule: Any, needed_by: object) -> int | None:
    """A number that an argument gives, or else the attribute of that name of the datamodule (or None).

    Raises:
        ConfigError: if they differ.
    """
    data_value = getattr(datamodule, name, None)
    if argument is not None and data_value is not None and argument != data_value:
        raise ConfigError(
            f"{name}={argument} of {type(needed_by).__name__}, but the data has {data_value}. Leave {name} out."
        )
    return argument if data_value is None else int(data_value)


def whole_split(columns: Columns | None, needed_by: object, what: str) -> Columns:
    """The columns that :meth:`Objective.row_domain` gets, of the whole training split, on which rows depend.

    Raises:
        ConfigError: if only batches are known, naming the class of ``needed_by`` and what of the split it must know.
    """
    if columns is None:
        raise ConfigError(
            f"{type(needed_by).__name__} must know the {what} of the whole training split, and how batches are drawn. "
            "Use a datamodule with `sampling()`, or DataLoader(IndexedDataset(dataset), shuffle=True) of a data set "
            "whose columns are known; in a loop of your own pass sampling={'target': Drawn(columns, plan)} to `pose`."
        )
    return columns


def mean_over_data(values: Tensor, batch: Columns) -> Tensor:
    """Estimate of the mean of a quantity over the data from its values (B,) in a batch, a scalar.

    The mean over the batch, weighted by its column ``weight`` where samples are not drawn uniformly.
    """
    weight = batch.get("weight")
    return values.mean() if weight is None else (weight.to(values.dtype) * values).sum() / len(values)


def one_tensor(outputs: Any) -> Tensor:
    """The network's outputs, which must be one tensor.

    Raises:
        DataError: if they are something else, saying how a network returns one tensor.
    """
    if isinstance(outputs, Tensor):
        return outputs
    keys = f" with the keys {list(outputs)}" if isinstance(outputs, Mapping) else ""
    place = repr(next(iter(outputs))) if isinstance(outputs, Mapping) and outputs else "0"
    raise DataError(
        f"the network returned a {type(outputs).__name__}{keys} where one tensor is needed, with a row for every "
        "sample. Return that tensor, if need be from a network around it: class Scores(nn.Sequential): def "
        f"forward(self, x): return super().forward(x)[{place}], with Scores(network)."
    )


def binary_scores(outputs: Tensor) -> Tensor:
    """Network outputs of shape (B,) or (B, 1) as scores of shape (B,).

    Raises:
        DataError: for any other shape, or outputs that are not one tensor.
    """
    outputs = outputs if isinstance(outputs, Tensor) else one_tensor(outputs)
    if outputs.dim() == 2 and outputs.shape[1] == 1:
        return outputs.squeeze(1)
    if outputs.dim() != 1:
        raise DataError(
            "objectives and constraints of two classes need one score per sample, shape (B,) or (B, 1), got "
            f"{tuple(outputs.shape)}. Give the network a single output; of a label of several classes make one of 0 "
            "and 1, or choose others."
        )
    return outputs
