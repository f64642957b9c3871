"""A compositional term: its rows, its outer function, and what a batch contains of it."""

from collections.abc import Callable
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn

from fcco_lightning.engine.multiplier_rows import MultiplierRows
from fcco_lightning.engine.probability import Inclusion, count, estimated, of_samples
from fcco_lightning.errors import ConfigError, DataError, StateIndexError
from fcco_lightning.numerics import Known, widest
from fcco_lightning.objectives import Measurable, RowDomain
from fcco_lightning.objectives.base import required_column
from fcco_lightning.objectives.measurable import Rows
from fcco_lightning.outer import NoSmoothing, OuterFunction
from fcco_lightning.state import Copies, DualState, Layout, copies
from fcco_lightning.state.processes import Processes


class Seen(NamedTuple):
    """The part of one term that a batch contains, as r entries; entries of the same row are copies with equal values.

    Attributes:
        term: the term.
        rows: number of the row of each entry, shape (r,), int64; None for all n rows in order.
        g: the inner values g_i(w; batch), shape (r, k), with graph; arbitrary finite numbers where the batch lacks the
            row.
        before: the same at the previous weights, without graph, or None.
        held: the remembered rows, shape (r, k), NaN where never written; None if the term keeps no rows.
        present: whether the batch contains the row, shape (r,), bool.
        share: 1/c for each of c copies of a row, shape (r,); 0 for a row that is not present.
        weight: weight of f_i(u_i) in the estimate of F, shape (r,): the term's share in F times the weight of the row
            in the mean over all rows; 0 for a row that is not present.
        of_mean: ``1/(n p_i)``, the inverse inclusion probability over n, shape (r,), or one number.
        relevance: the row's own weight in the mean over all rows, shape (r,), a factor of ``weight``; None for 1.
        f: the outer function with its known parameters at their present values, as the algorithm smooths it.
        decided: the inner values measured on decisions in place of smooth rates, shape (r, k), without graph; None
            where multipliers do not use them.
        gap: running averages of ``decided`` minus the smooth values, shape (r, k), NaN where never written, or None.
    """

    term: "Term"
    rows: Tensor | None
    g: Tensor
    before: Tensor | None
    held: Tensor | None
    present: Tensor
    share: Tensor
    weight: Tensor
    of_mean: Tensor | float
    relevance: Tensor | None
    f: OuterFunction
    decided: Tensor | None = None
    gap: Tensor | None = None

    @property
    def inverse_inclusion(self) -> Tensor | float:
        """1/p_i, shape (r, 1), or one number."""
        per_row = isinstance(self.of_mean, Tensor) and self.of_mean.dim() > 0
        return self.term.num_rows * (self.of_mean.unsqueeze(1) if per_row else self.of_mean)  # type: ignore[union-attr]


class Term(nn.Module):
    r"""``share * (1/n) sum_i f(g_i(w))``.

    Args:
        name: its name in logs and checkpoints.
        measurable: the objective or constraint that measures the g_i.
        outer: f; where every row has its own parameters, such as thresholds, the f of a batch comes with
            :attr:`Rows.outer`.
        domain: the rows, which samples own them, and the interval in which the inner values are known to lie.
        inclusion: the inclusion probabilities of the rows.
        share: weight of the term in F.
        dtype: type of the rows.
        repeats: whether a batch may contain a row twice.
        processes: the processes that share the rows.
        layout: where the rows of single samples are stored, see :class:`DualState`.
        multipliers: the multipliers of a constraint's rows, which then determine f; None without.
        growth: largest ratio of an inner value to the row at which the outer gradient is taken, > 1; None for no bound.

    Attributes:
        state: the rows; None until :meth:`remember`, for algorithms that keep none.
        smoothing: the algorithm's smoothing of outer functions.
        smoothed: f after smoothing.
        corrected: whether inner values are also measured at the previous weights, if the algorithm evaluates batches
            there.
        number: position of the term in the problem.
        counts: how many batches have contained each row, and behind these the number of batches, shape (n + 1,),
            float64; None where the probabilities are known.
    """

    measurable: Measurable
    number: int = 0
    counts: Tensor | None

    def __init__(
        self,
        name: str,
        measurable: Measurable,
        outer: OuterFunction,
        domain: RowDomain,
        *,
        inclusion: Inclusion,
        share: float = 1.0,
        dtype: torch.dtype = torch.float32,
        repeats: bool = True,
        processes: Processes | None = None,
        layout: Layout = "auto",
        multipliers: MultiplierRows | None = None,
        growth: float | None = None,
    ) -> None:
        super().__init__()
        self.multipliers = multipliers
        self.__dict__["measurable"] = measurable  # not a submodule: its parameters are not the term's
        owners, num_rows = domain.owners, domain.num_rows if domain.owners is None else int(domain.owners.sum())
        self.name, self.num_rows, self.width = name, num_rows, measurable.width
        self.share, self.dtype, self.range, self.growth = share, dtype, domain.range, growth
        self.per_sample, self.repeats = domain.per_sample, repeats
        self.num_samples = num_rows if owners is None else len(owners)
        self.num_names = num_rows if owners is None else owners.numel()
        self._row_of = None if owners is None else Known(_numbered(owners))
        self._inclusion, inverse = inclusion, inclusion.inverse(num_rows)
        self._of_mean = inverse if isinstance(inverse, float) else self._known(inverse)
        relevance = inclusion.relevance()
        self._relevance = None if relevance is None else self._known(relevance)
        estimated = inclusion.probability is None
        self.register_buffer("counts", torch.zeros(num_rows + 1, dtype=torch.float64) if estimated else None)
        self._processes, self._layout = processes, layout if domain.per_sample else "auto"
        self.state: DualState | None = None
        self.smoothing: Callable[[OuterFunction], OuterFunction] = NoSmoothing()
        self.corrected = True
        self.take(outer)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        kept = self.counts
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if kept is not None and self.counts is not None:  # they stay float64, whatever the module's precision
            self.counts = kept.to(self.counts.device)
        return self

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        if (old := f"{prefix}weights.counts") in state_dict:  # the name in checkpoints of earlier versions
            state_dict[f"{prefix}counts"] = state_dict.pop(old)
        super()._load_from_state_dict(state_dict, prefix, *args)

    def take(self, outer: OuterFunction) -> None:
        """Replace f."""
        self.outer, self.smoothed = outer, self.smoothing(outer)

    def smooth(self, smoothing: Callable[[OuterFunction], OuterFunction]) -> None:
        """Set the smoothing of f."""
        self.smoothing = smoothing
        self.take(self.outer)

    def remember(self) -> None:
        """Allocate the rows, unless they exist."""
        if self.state is None:
            sink = self._row_of is not None
            self.state = DualState(self.num_rows, self.width, self.dtype, self._processes, self._layout, sink=sink)

    @property
    def never_measured(self) -> Tensor:
        """Which rows are known never to be in a batch, since all of their samples weigh 0; shape (n,), bool."""
        probability = torch.as_tensor(1.0 if self._inclusion.probability is None else self._inclusion.probability)
        return (probability == 0).expand(self.num_rows)

    @property
    def present_outer(self) -> OuterFunction:
        """The smoothed outer function of all rows, with their present multipliers."""
        return self.smoothed if self.multipliers is None else self.smoothing(self.multipliers.outer())

    def multiplier_values(self) -> Tensor:
        """The multiplier nu_i of every row of a constraint, shape (n,), float64 on the CPU; empty without multipliers.

        They weigh the constraints in the gradient: at a solution ``grad F + sum_i nu_i grad h_i = 0``.
        """
        if self.multipliers is None:
            return torch.empty(0, dtype=torch.float64)
        held = self.multipliers.state.rows
        unknown = held.new_full((self.num_rows, self.width), torch.nan)
        values = unknown if self.state is None else self.state.gather(None)
        if self.multipliers.decisions is not None:
            values = values + self.multipliers.decisions.gather(None)
        return self.multipliers.at(values).cpu().double()

    def seen(self, now: Rows, before: Rows | None, outputs: Any, columns: Any) -> Seen:
        """The part of the term that a batch contains.

        Args:
            now: the measurement at the present weights.
            before: the measurement at the previous weights, or None.
            outputs: the network's outputs for the term's part of the batch.
            columns: the columns of that part.

        Raises:
            IndexError: on the host, if the batch names a row that does not exist.
        """
        if now.values.dim() != 2 or now.values.shape[1] != self.width:
            raise self._wrong_width(now.values)
        names, again = self._names(now, columns), None
        rows = names if names is None or self._row_of is None else self._row(names)
        g, was = now.values, None if before is None else before.values.detach()
        alike = now.weight.dtype == torch.bool
        present = now.weight if alike else now.weight != 0
        share = present.to(widest(g))  # as outer functions are
        relevance = None if alike and self._relevance is None else self._relevant(rows, now.weight, share)
        if self.repeats and names is not None:  # every copy of a row holds the mean over all copies
            again = copies(names)
            share = share / again.total(share).clamp(min=1)
            g = _mean(g, share, again)
            was = None if was is None else _mean(was, share, again)
        of_mean = self.mean_weight(rows, columns, share, again)
        weight = share * (of_mean if self.share == 1 else self.share * of_mean)
        weight = weight if relevance is None else weight * relevance.to(weight.dtype)
        f = self.present_outer if now.outer is None else self.smoothing(now.outer)
        held = None if self.state is None else self.state.gather(rows)
        seen = Seen(self, rows, g, was, held, present, share, weight, of_mean, relevance, f)
        if self.multipliers is None or self.multipliers.decisions is None:
            return seen
        with torch.no_grad():
            decided = self.multipliers.constraint.decided(outputs, columns)
        return seen._replace(decided=decided, gap=self.multipliers.decisions.gather(None))

    def count(self, rows: Tensor | None, share: Tensor) -> None:
        """Count the rows that a batch has contained, where inclusion probabilities are estimated."""
        if self.counts is not None:
            count(self.counts, rows, share)

    def check_index(self, columns: Any) -> None:
        """Check the ``index`` of the samples of a batch, where samples own the rows.

        Raises:
            StateIndexError: naming an index that is not that of a training sample, and its position in the batch.
        """
        if self.per_sample:
            self._require_named(_sample_index(self.measurable, columns), self.num_samples)

    def check(self, outputs: Any, columns: Any) -> None:
        """Check the row numbers of a batch.

        Raises:
            StateIndexError: if one does not exist.
            ConfigError: if the objective or constraint returns another number of row numbers than of rows.
            DataError: if a sample owns a row according to the columns of the batch, but not of the training split.
        """
        self.check_index(columns)
        rows = self.measurable.measure(outputs, columns)[1]
        if rows is None:
            return
        names = self._names(rows, columns)
        if len(rows.values) != (self.num_rows if names is None else len(names)):
            raise self._wrong_number(rows, names)
        if names is None:
            return
        self._require_named(names, self.num_names)
        if self._row_of is None:
            return
        stray = ((self._row(names) == self.num_rows) & (rows.weight != 0)).nonzero().flatten()
        if len(stray):
            raise DataError(
                f"the sample with index {int(names[stray[0]])} has a row of the {self.name} according to the "
                "columns of its batch, but not according to those of the training split. Both must be equal and in "
                f"the same order: IndexedDataset(dataset, columns={{'y': labels}}), with the labels of the samples."
            )

    def mean_weight(self, rows: Tensor | None, columns: Any, share: Tensor, again: Copies | None) -> Tensor | float:
        """``1/(n p_i)`` of the entries of a batch, with inclusion probability p_i; shape (r,), or one number.

        Args:
            rows: row numbers of the entries, shape (r,); None for all rows.
            columns: the columns of the term's part of the batch.
            share: see :attr:`Seen.share`.
            again: which entries are copies of each other; None if no row occurs twice.
        """
        if self.counts is not None:
            return estimated(self.counts, rows, share)
        known: Tensor | float = self._of_mean if isinstance(self._of_mean, float) else _at(self._of_mean, rows, share)
        if self._inclusion.samples_per_row is None:
            return known
        owners = columns[self.measurable.part[0]] if isinstance(self.measurable.part, tuple) else columns
        inverse = of_samples(owners, self._inclusion, share, again)
        return inverse if self._of_mean == 1 else known * inverse

    def _names(self, measured: Rows, columns: Any) -> Tensor | None:
        """Names of the measured rows as the batch gives them, shape (r,); None for all rows in order."""
        if measured.index is not None or not self.per_sample:
            return measured.index
        return _sample_index(self.measurable, columns)

    def _require_named(self, names: Tensor, number: int) -> None:
        wrong = ((names < 0) | (names >= number)).nonzero().flatten()
        if len(wrong):
            raise StateIndexError(
                f"the dual state of the {self.name} has rows for the indices 0..{number - 1}, got index "
                f"{int(names[wrong[0]])} at batch position {int(wrong[0])}. Number the training split itself from "
                "0, and set num_samples to its size."
            )

    def _relevant(self, rows: Tensor | None, weight: Tensor, share: Tensor) -> Tensor:
        """Weight of each entry in the mean over all rows, (r,): the measured weight times that of the row's owner."""
        if self._relevance is None:
            return weight
        counted = _at(self._relevance, rows, share)
        return counted if weight.dtype == torch.bool else weight * counted

    def _known(self, numbers: Tensor) -> Known:
        """Numbers (n,) of the rows, with one more entry for samples without a row, if there are any."""
        return Known(numbers if self._row_of is None else torch.cat([numbers, numbers[:1]]))

    def _row(self, names: Tensor) -> Tensor:
        assert self._row_of is not None  # noqa: S101 - the caller has seen to it
        table = self._row_of.like(names)
        if names.device.type != "cpu":  # a GPU cannot raise: the state reads inf at n + 1
            names = torch.where((names < 0) | (names >= len(table)), len(table) - 1, names)
        return table.index_select(0, names).long()

    def _wrong_number(self, rows: Rows, names: Tensor | None) -> ConfigError:
        measured = f"{type(self.measurable).__name__} measured {len(rows.values)} rows"
        if rows.index is not None:
            return ConfigError(
                f"{measured}, but the `index` of its Rows has {len(rows.index)} entries. Return Rows(values, "
                "weight, index=...) with one row number for each row of values."
            )
        if names is not None:
            return ConfigError(
                f"{measured} for a batch of {len(names)} samples, each of which has a row of its own according to "
                "its `row_domain`. Return one row for each sample; or let row_domain return the number of rows, "
                "RowDomain(n), if these belong to groups or classes."
            )
        return ConfigError(
            f"{measured}, but its `row_domain` declares {self.num_rows}. Return the values of all rows in order, or "
            "name the rows: Rows(values, weight, index=...)."
        )

    def _wrong_width(self, values: Tensor) -> ConfigError:
        return ConfigError(
            f"inner values of the {self.name} must have shape (r, {self.width}), got {tuple(values.shape)}. Give the "
            "class the right `width`, or return values with two dimensions."
        )


def _sample_index(measurable: Measurable, columns: Any) -> Tensor:
    """The column ``index`` of the samples that own the rows; of the first part, if there are several."""
    return required_column(
        columns[measurable.part[0]] if isinstance(measurable.part, tuple) else columns, "index", measurable
    )


def _mean(values: Tensor, share: Tensor, again: Copies) -> Tensor:
    """The mean over the copies, the same for all of them."""
    return again.total(values * share.unsqueeze(1).to(values.dtype))


def _at(known: Known, rows: Tensor | None, share: Tensor) -> Tensor:
    """The numbers that belong to the rows of a batch, with the type and device of ``share``."""
    values = known.like(share, share.dtype)
    return values if rows is None else values.index_select(0, rows)


def _numbered(owners: Tensor) -> Tensor:
    """The row number of every sample (or label of a sample), n for those without a row, shape (N + 1,), int32 or int64.

    Rows are numbered 0, 1, ... in the order of their owners.  The last entry, n + 1, stands for an invalid index.
    """
    owners = owners.flatten().cpu()
    rows, number = owners.cumsum(0) - owners.long(), int(owners.sum())
    kind = torch.int32 if number < 2**31 - 2 else torch.int64
    return torch.cat([torch.where(owners, rows, number), torch.tensor([number + 1])]).to(kind)
