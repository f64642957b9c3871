"""The interface of objectives, which measure a direct part g_0(w) and/or inner functions g_i(w)."""

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
    """Parameters of single samples, such as temperatures of pairs, which are trained with the network.

    Attributes:
        name: name of the column (b, k) in which a batch passes them to the objective.
        width: k, the number of parameters per sample.
        start: initial value.
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
    """The rows of the compositional part of an objective.

    Attributes:
        num_rows: n, the number of rows; ignored where ``owners`` is given.
        per_sample: whether rows belong to single samples (and not to groups, tasks or constraints).
        owners: with ``per_sample``: the training samples that own a row, shape (num_samples,), bool; None for all.
            Rows are numbered 0, 1, ... in the order of their owners, but a batch identifies them by the samples'
            ``index``.  If a sample owns rows for some of T labels, the shape is (num_samples, T), and a row is
            identified by ``T index + label`` (:attr:`~fcco_lightning.objectives.measurable.Rows.index`).
        range: an interval that contains the inner values for all weights.
        partners: with ``owners``: samples of which a batch must hold at least one to measure any row, shape
            (num_samples,), bool, none of them an owner; None if a batch measures the row of every owner that it holds.
    """

    num_rows: int
    per_sample: bool = False
    owners: Tensor | None = None
    range: Range = Range()
    partners: Tensor | None = None


class Partition(Sequence[Sequence[Tensor]]):
    """The subsets of many rows, where every sample belongs to at most one row: the row's samples, and its partners.

    It is a sequence with a list of masks (n_samples,), bool, for every row, see :meth:`Measurable.subsets`.  Masks are
    computed on access, as all of them would take n * n_samples numbers.

    Args:
        of: row of every sample, shape (n_samples,), int64; a number outside 0..num_rows - 1 for no row.
        num_rows: n.
        partners: sets of samples, masks (n_samples,), bool, of one of which a batch must also hold a sample.
        partner_of: the position in ``partners`` of every row's set, shape (n,), int64, -1 for none; the set must not
            contain samples of the row.  None if no row has partners.

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
    r"""``F(w) = g_0(w) + (1/n) sum_i f_i(g_i(w))``; a subclass defines either part or both.

    An objective is a module and may own parameters that are trained with the network (a temperature, a CVaR threshold).
    It has no access to the remembered rows.  By default every training sample owns a row.

    Attributes:
        outer: f, or None without a compositional part.
        dtype: minimum type of the rows.
        sample_parameters: parameters of single samples, or None.
        growth: largest ratio of an inner value to the row at which the outer gradient is taken, > 1; None for no bound.
        against_overflow: a sentence for messages that says what to change if gradients overflow.
        by_blocks: whether samples are compared with each other block by block, in memory that grows with the number of
            samples and not with its square.
        most: the largest numbers of samples of its :meth:`kinds` in a batch, during training with a plan that
            determines them; otherwise empty.
        recommended_start: a fraction of the epochs, in (0, 1), for which pretraining on another objective gave better
            results, and that objective, or None for cross-entropy; :class:`~fcco_lightning.FCCOModule` does so by
            default.  None for no pretraining.
        recommended: whether it is trained as recommended, which FCCOModule sets permanently; False, the paper's
            objective, for objectives outside an FCCOModule.  Do not share one object between both.
        num_samples: n, the size of the training split; None before the problem is posed, which sets it.
        needs_partner: whether rows are compared with samples of another class only, so that a batch of one class
            measures none of them.
        direct_weight: the engine's factor on g_0, for batches that lack a sample of :meth:`direct_subsets`.
        recommended_lam: outer smoothing of f that SONEX uses by default if the objective is trained as recommended, >
            0, in squared units of g per unit of f; None for SONEX's own default.
        scores_classes: whether one output per sample is a score of its class, from which decisions and probabilities
            follow; otherwise it is something else, such as a log risk or a ranking score.
        settles: whether parameters of f are set to their best values given all rows, see :meth:`settle`, if the
            objective is trained as recommended.
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
        """Set parameters of f to the best values for the remembered rows.

        The engine calls it after every update if the objective is trained as recommended, :attr:`settles` is true, and
        the rows are running estimates of the inner values.  Otherwise the parameters are trained with the network.

        Args:
            rows: all rows, shape (n, k), without graph; NaN where never written.
            f: the outer function after the algorithm's smoothing.
        """

    def join(self, processes: Processes) -> None:
        """Receive the processes that share every batch, before the first batch.

        Every process measures the samples of all processes.  An objective that compares all pairs of samples can divide
        this work among the processes; the column ``here`` marks a process's own samples.
        """

    def kinds(self, columns: Columns) -> Sequence[Tensor]:  # noqa: ARG002
        """Sets of samples, masks (num_samples,), for which :attr:`most` saves computation."""
        return ()

    def row_domain(self, num_samples: int, columns: Columns | None) -> RowDomain:  # noqa: ARG002
        """The rows of the compositional part: by default one for every training sample.

        Args:
            num_samples: size of the training split.
            columns: the columns of the whole training split, without the network's input; None if only batches are
                known.  They contain :data:`~fcco_lightning.models.batch.POPULATION` if batches represent another
                population.
        """
        return RowDomain(num_samples, per_sample=True)

    @property
    def classifies(self) -> bool:
        """Whether the loss favours a score above 0, or the largest of several scores, for the class of a sample."""
        return bool(getattr(getattr(self, "loss", None), "classifies", False))

    @property
    def proper(self) -> bool:
        """Whether a single score per sample is the log-odds of a positive at the minimum, as with cross-entropy."""
        return bool(getattr(getattr(self, "loss", None), "proper", False))

    @property
    def in_words(self) -> str:
        """The objective's name in the first lines of a run."""
        return type(self).__name__

    @property
    def instead(self) -> str | None:
        """A sentence for the end of a run on an alternative that was better in benchmarks; None if there is none."""
        return None

    def know_presence(self, probability: Tensor) -> None:
        """Receive the inclusion probability of each row, shape (n,), if it follows from :meth:`subsets`.

        The weights of rows correct for it.  An objective whose rows depend on one another can warn here if that is not
        enough.
        """

    def direct_subsets(self, columns: Columns) -> Sequence[Tensor] | None:  # noqa: ARG002
        """Masks (num_samples,) of sets of each of which a batch must hold a sample to measure g_0; None for any batch.

        In a batch that lacks one of them g_0 is 0; other batches get a larger weight instead.
        """
        return None

    @property
    def always_measured(self) -> bool:
        """Whether every batch measures a part of g_0, even without the samples of :meth:`direct_subsets`."""
        return False

    def max_form(self) -> "Objective":
        """The same objective as a maximum over weights q, for algorithms that keep q (OOA, SMD).

        Raises:
            ConfigError: if the objective has no such form.
        """
        raise ConfigError(
            f"{type(self).__name__} is not a maximum over weights of groups, as OOA and SMD need. Use CVaRGroupDRO or "
            "WorstGroupDRO, or another algorithm, such as SONEX."
        )


def whole_numbers(columns: Columns, name: str, needed_by: object, remedy: str, *, look: bool = True) -> Tensor:
    """A column of one whole number per sample, shape (n,), in its own type.

    Raises:
        DataError: if the column is missing, has another shape, or, with ``look``, holds a number that is not whole.
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
            f"that gives it, or name the column in the data (of a table: {option}). Encode a text column as "
            "numbers, for example with pandas.factorize."
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
    """Refuse the values (n, ...) of a column unless all are right; the message names the first wrong one.

    Raises:
        DataError: "<rule>, got <value> at position <sample>. <remedy>"
    """
    if not bool(right.all()):
        position = tuple((~right).nonzero()[0].tolist())
        raise DataError(f"{rule}, got {values[position].item()!r} at position {position[0]}. {remedy}")


def vectors(outputs: Any, part: str, kind: type[T], needed_by: object, network: str) -> T:
    """The outputs for a part of the batch of a network that returns a named tuple of vectors (B, d).

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
    """The number given by an argument or by the datamodule's attribute of the same name; None if neither is given.

    Raises:
        ConfigError: if both are given and differ.
    """
    data_value = getattr(datamodule, name, None)
    if argument is not None and data_value is not None and argument != data_value:
        raise ConfigError(
            f"{name}={argument} of {type(needed_by).__name__}, but the data has {data_value}. Leave {name} out."
        )
    return argument if data_value is None else int(data_value)


def whole_split(columns: Columns | None, needed_by: object, what: str) -> Columns:
    """The ``columns`` of :meth:`Objective.row_domain`, for an objective that needs the whole training split.

    Raises:
        ConfigError: if only batches are known, naming the class of ``needed_by`` and the information it needs.
    """
    if columns is None:
        raise ConfigError(
            f"{type(needed_by).__name__} must know the {what} of the whole training split, and how batches are drawn. "
            "Use a datamodule with `sampling()`, or DataLoader(IndexedDataset(dataset), shuffle=True) of a data set "
            "whose columns are known; in a loop of your own pass sampling={'target': Drawn(columns, plan)} to `pose`."
        )
    return columns


def mean_over_data(values: Tensor, batch: Columns) -> Tensor:
    """An unbiased estimate of the mean of a quantity over the data from its values (B,) in a batch, a scalar.

    It is the mean over the batch, weighted by the column ``weight`` if samples are not drawn uniformly.
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
