"""Comparison of the first batches with the declared sampling."""

import warnings
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fcco_lightning.data.batches import BatchDraws, Drawn
from fcco_lightning.engine.problem import Problem
from fcco_lightning.errors import DataError
from fcco_lightning.models.batch import Batch, Columns

WATCHED = 32
"""Number of batches that are compared."""
_LABELS = ("y", "group", "event")  # columns with fixed values per sample
_FEWEST = 4  # batches, for a warning about their composition
_OFTEN = 1 / 4  # of the batches
_MOST_STRATA = 64
_AWAITED = 40  # samples that should have occurred


class Arrivals:
    """Watches the first batches of all processes, and refuses batches that contradict the declared sampling.

    The number of samples is declared, and with ``sampling`` the batch size, whether the samples of a batch are
    distinct, their labels, and how many samples of every stratum a batch holds.  All of these enter the weights of
    rows, so that other batches would silently train another problem.  A finding that need not be an error, such as
    batches of one class, causes a warning that says how often it occurred.

    The first batch, and the size of every watched batch, is compared before it is trained on; the samples of the other
    batches are kept on their device and compared after the last watched batch or the first epoch.  This costs one
    exchange between the processes for each watched batch, and nothing afterwards.

    Args:
        problem: the problem, which holds the declared sampling.

    Attributes:
        left: number of batches that are still to be watched.
        batches: the batches watched so far; empty after the final comparison.
    """

    def __init__(self, problem: Problem) -> None:
        self._problem, self._processes = problem, problem.processes
        self.left = WATCHED
        self._sizes = {name: drawn.plan.batch_size for name, drawn in problem.declared.items()}
        self._other_size = set[str]()  # parts whose last batch did not have the declared size
        self.batches = list[dict[str, _Watched]]()
        self._estimates = list[Mapping[str, Tensor]]()
        self._compared = 0
        self._bounds: dict[str, tuple[Tensor, Tensor]] = {}
        self._same_everywhere = False

    def look(self, batch: Batch) -> None:
        """Record a batch, of which this process has a part; all processes must call it.

        Raises:
            DataError: if the size is not the declared one.
        """
        if not self.left:
            return
        self.left, watched = self.left - 1, dict[str, _Watched]()
        for name, part in batch.items():
            columns = {n: part[n] for n in ("index", *_LABELS) if _is_whole_numbers(part.get(n))}
            sizes = [len(next(iter(part.values())))]
            if self._processes.size > 1:
                union = self._processes.gather(list(columns.values()) or [torch.empty(sizes[0], 0)])
                columns, sizes = dict(zip(columns, union.tensors, strict=False)), union.sizes
            self._compare_size(name, sum(sizes), self._problem.declared.get(name))
            watched[name] = _Watched(columns, sizes, "task" not in part, name not in self._other_size)
        self.batches.append(watched)

    def compare(self) -> None:
        """Compare the batches since the last call with the declared sampling.

        Raises:
            DataError: naming what was declared, what arrived, and the remedy.
        """
        for batch in self.batches[self._compared :]:
            self._compare(batch)
        self._compared = len(self.batches)

    def note(self, estimates: Mapping[str, Tensor], *, last_batch: bool) -> None:
        """Record the estimates of a batch; after the last watched batch compare all of them, and warn.

        Args:
            estimates: the summands of F as estimated on the batch.
            last_batch: whether the epoch ends with it.

        Raises:
            DataError: as :meth:`compare`.
        """
        if not self.batches:
            return
        self._estimates.append(estimates)
        if last_batch or not self.left:
            batches, every_estimate, self.left = self.batches, self._estimates, 0
            try:
                self.compare()
            finally:
                self.batches, self._estimates = [], []
            if self._processes.rank == 0:
                self._warn([next(iter(batch.values())).on_cpu() for batch in batches], every_estimate)

    # ------------------------------------------------------------------------------------------- what is an error

    def _compare(self, batch: Mapping[str, "_Watched"]) -> None:
        for name, part in batch.items():
            watched, drawn = part.on_cpu(), self._problem.declared.get(name)
            index = watched.columns.get("index")
            if index is None:
                continue
            if watched.labelled:
                _require_own_index(watched.columns, index)
            self._compare_different(watched, index, None if drawn is None else drawn.plan)
            if drawn is None or len(index) == 0 or not 0 <= int(index.min()) <= int(index.max()) < _rows(drawn.columns):
                continue  # for an invalid index the engine raises a clearer error
            if watched.labelled:
                _require_labels(watched.columns, index, drawn.columns)
            if watched.as_declared:
                self._compare_strata(name, index, drawn)

    def _compare_size(self, name: str, size: int, drawn: Drawn | None) -> None:
        """Refuse the second batch in a row without the declared size; a single one may be the last of an epoch.

        Any number of batches may be shorter where samples that cannot be read are left out.
        """
        declared = self._sizes.get(name)
        other = declared is not None and size != declared
        unread = declared is not None and size < declared and drawn is not None and drawn.shorter
        if other and not unread and name in self._other_size:
            raise DataError(
                f"the batches{self._everywhere} hold {size} samples, and were declared to hold {declared}. With "
                "several processes the batch size counts the samples of all of them: declare "
                f"sampling=data.drawn(batch_size={size}), or let the loader give batches as declared."
            )
        self._other_size = self._other_size | {name} if other else self._other_size - {name}

    def _compare_different(self, part: "_Watched", index: Tensor, plan: BatchDraws | None) -> None:
        """Refuse copies where samples were declared to be distinct, and warn if all processes have the same samples."""
        copies, parts = len(index) - _different(index), torch.split(index, part.sizes)
        first = parts[0].sort().values
        same = len(parts) > 1 and len(first) > 1 and all(torch.equal(first, p.sort().values) for p in parts[1:])
        allowed = self._most_copies(plan)
        if allowed is not None and copies > allowed:
            raise DataError(
                f"a batch{self._everywhere} holds {len(index)} samples, of which {len(index) - copies} are different, "
                "and was declared to hold different ones. "
                + (_GIVEN_TWICE if len(parts) > 1 else _ONE_INDEX + " Or declare how the loader draws.")
            )
        all_samples = len(first) >= self._problem.num_samples
        if same and allowed is None and not all_samples and not self._same_everywhere and self._processes.rank == 0:
            self._same_everywhere = True
            warnings.warn(
                f"all {len(parts)} processes have been given the same {len(first)} samples, so that a batch holds "
                f"{len(first)} different ones and not {len(index)}. {_GIVEN_TWICE}",
                stacklevel=6,
            )

    def _most_copies(self, plan: BatchDraws | None) -> int | None:
        """The allowed number of copies in a batch; None for any number.

        torch's DistributedSampler repeats a few samples at the end of an epoch to give every process the same number.
        """
        if plan is None or (plan.certain and not plan.distinct):
            return None
        return 0 if plan.distinct else self._processes.size - 1

    def _compare_strata(self, name: str, index: Tensor, drawn: Drawn) -> None:
        plan, strata = drawn.plan, drawn.plan.strata
        if strata is None:
            return
        sizes = torch.bincount(strata)
        if len(sizes) > _MOST_STRATA:
            return
        if name not in self._bounds:
            strata_alone = torch.diag(sizes)
            at_most = [plan.most(counts) for counts in strata_alone]
            if None in at_most:
                return
            least = torch.tensor([plan.absence(counts) == 0 for counts in strata_alone]).long()
            self._bounds[name] = least, torch.tensor(at_most)
        least, most = self._bounds[name]
        held = torch.bincount(strata[index], minlength=len(sizes))
        for stratum in ((held < least) | (held > most)).nonzero().flatten().tolist():
            declared = f"at most {int(most[stratum])}" if held[stratum] > most[stratum] else "at least one"
            raise DataError(
                f"a batch{self._everywhere} holds {int(held[stratum])} samples of stratum {stratum} (the class or "
                f"group by which batches are drawn), and was declared to hold {declared}. Let the loader draw as "
                "`sampling` says, ResumableLoader(table, plan), or declare how it draws."
            )

    @property
    def _everywhere(self) -> str:
        size = self._processes.size
        return f" of all {size} processes together" if size > 1 else ""

    # -------------------------------------------------------------------------------------------- what is strange

    def _warn(self, batches: Sequence["_Watched"], estimates: Sequence[Mapping[str, Tensor]]) -> None:
        number = len(batches)
        if number < _FEWEST:
            return
        classes, objective = [batch.columns.get("y") for batch in batches], self._problem.objective
        pairs = self._problem.may_lack_direct or objective.needs_partner
        beside = pairs and objective.always_measured  # the cross-entropy is a number without pairs, too
        unmeasured = sum(
            bool(value.isnan()) or ((beside or value == 0) and y is not None and _different(y) == 1)
            for value, y in zip((estimate.get("objective") for estimate in estimates), classes, strict=False)
            if value is not None
        )
        known = self._problem.direct_weight > 2  # a warning about rare pairs has been given
        if unmeasured > number / 2 and not known:
            warnings.warn(
                f"{unmeasured} of the first {number} batches contain nothing that {type(objective).__name__} measures, "
                f"such as samples of one class only: they train nothing{' but the cross-entropy' * beside}. {_MIXED}",
                stacklevel=5,
            )
        else:
            self._warn_of_labels(batches)
        if all("penalty" in estimate and bool(estimate["penalty"].isnan()) for estimate in estimates):
            warnings.warn(
                f"none of the first {number} batches contains what {self._problem.constraints[0].names[0]!r} and the "
                "other constraints compare: these have no effect. Check groups or subsets, or draw larger batches.",
                stacklevel=5,
            )
        self._warn_of_range(batches)

    def _warn_of_labels(self, batches: Sequence["_Watched"]) -> None:
        """Warn if more batches contain only one class or group than chance explains."""
        drawn = next(iter(self._problem.declared.values()), None)
        if drawn is not None and drawn.plan.strata is not None:
            return
        for name in _LABELS:
            columns = [batch.columns[name] for batch in batches if name in batch.columns]
            if not columns:
                continue
            values, counts = torch.unique(torch.cat(columns), return_counts=True)
            alone = sum(_different(column) == 1 for column in columns)
            chance = sum(float((counts / counts.sum()).pow(len(column)).sum()) for column in columns)
            if len(values) > 1 and alone > _OFTEN * len(columns) and chance < _OFTEN * alone:
                warnings.warn(
                    f"{alone} of the first {len(columns)} batches contain one value of `{name}` only, and together "
                    f"they contain {len(values)}; of shuffled batches it would be {chance:.1g}. {_MIXED}",
                    stacklevel=6,
                )
                return

    def _warn_of_range(self, batches: Sequence["_Watched"]) -> None:
        """Warn if the indices seem to end below the declared number of samples, unless they arrive in order."""
        n = self._problem.num_samples
        columns = [batch.columns["index"] for batch in batches if "index" in batch.columns]
        if not self._problem.needs_index or not columns:
            return
        index = torch.cat(columns)
        last, half = int(index.max()), int(index[: len(index) // 2].max())
        awaited = len(index) * (1 - (last + 1) / n)
        if awaited > _AWAITED and half > 0.9 * last:
            warnings.warn(
                f"the {len(index)} samples of the first {len(batches)} batches have the indices 0..{last}, and "
                f"num_samples={n} declares 0..{n - 1}: the objective is a mean over {n} samples, of which "
                f"the last {n - 1 - last} do not seem to occur. Declare the size of the training split; {_ONE_INDEX}",
                stacklevel=6,
            )


class _Watched(NamedTuple):
    """A watched batch of all processes.

    Attributes:
        columns: ``index`` and labels, as far as the batch has them.
        sizes: number of samples of every process.
        labelled: whether a sample always has the same labels, and not those of one of several tasks.
        as_declared: whether the batch has the declared size.
    """

    columns: Columns
    sizes: list[int]
    labelled: bool
    as_declared: bool

    def on_cpu(self) -> "_Watched":
        """The same on the CPU."""
        return self._replace(columns={name: column.cpu() for name, column in self.columns.items()})


_ONE_INDEX = (
    "if two data sets were joined, number the samples of both together, IndexedDataset(ConcatDataset([first, second]))."
)
_GIVEN_TWICE = (
    "Give every process samples of its own: leave Trainer(use_distributed_sampler=True), or pass "
    "DataLoader(..., sampler=DistributedSampler(dataset))."
)
_MIXED = (
    "Shuffle the training data, DataLoader(..., shuffle=True), or draw batches that contain some samples of every "
    "class or group (data.batches: BalancedSampling or GroupSampling)."
)


def _is_whole_numbers(column: object) -> bool:
    return isinstance(column, Tensor) and column.dim() == 1 and not (column.is_floating_point() or column.is_complex())


def _different(column: Tensor) -> int:
    """The number of distinct values in a column."""
    return len(torch.unique(column))


def _rows(columns: Columns) -> int:
    """The number of samples in columns; 0 without columns."""
    return len(next(iter(columns.values()), ()))


def _require_own_index(columns: Columns, index: Tensor) -> None:
    """Refuse a batch in which samples with different labels have the same index."""
    order = index.argsort(stable=True)
    again = index[order][1:] == index[order][:-1]
    for name in columns.keys() - {"index"}:
        labels = columns[name][order]
        wrong = (again & (labels[1:] != labels[:-1])).nonzero().flatten()
        if len(wrong):
            position = int(wrong[0])
            raise DataError(
                f"two samples of a batch have the same index {int(index[order][position])}, but the {name} "
                f"{int(labels[position])} and {int(labels[position + 1])}, and would share a row. The index is the "
                f"position of a sample in the whole training split; {_ONE_INDEX}"
            )


def _require_labels(columns: Columns, index: Tensor, declared: Columns) -> None:
    """Refuse samples whose labels differ from those declared for their index."""
    for name in columns.keys() & {n for n in _LABELS if _is_whole_numbers(declared.get(n))}:
        expected, actual = declared[name].cpu()[index], columns[name]
        wrong = (expected != actual).nonzero().flatten()
        if len(wrong):
            position = int(wrong[0])
            raise DataError(
                f"{len(wrong)} of {len(index)} samples of a batch have another {name} than declared: the sample with "
                f"index {int(index[position])} has {int(actual[position])}, not {int(expected[position])}. "
                "Let the columns of `sampling` be those of the training split that the loader draws from, in the same "
                "order."
            )
