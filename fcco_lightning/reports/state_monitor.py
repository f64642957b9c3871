"""The dual states during training: how much of them is used, how fast they move, what their exchange costs."""

import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from numpy.typing import NDArray
from torch import Tensor

from fcco_lightning.checks import at_least
from fcco_lightning.engine import Problem
from fcco_lightning.engine.terms import Term
from fcco_lightning.evaluation.pictures.style import BLUE, new_figure, quiet_frame, save, shown
from fcco_lightning.reports.left_out import LeftOut
from fcco_lightning.state import DualState
from fcco_lightning.state.processes import Processes
from fcco_lightning.training import FCCOModule

if TYPE_CHECKING:
    from matplotlib.axes import Axes

T = TypeVar("T")
_MOST_PANELS, _MOST_LINES, _MOST_LETTERS = 6, 8, 60
_FEW = 30  # values, too few for a histogram


class Watch:
    """A fixed random sample of the rows of one dual state that this process holds, at most ``sample`` of them.

    The state is read, never written; without any communication.  Replicas of a state have the same sample.  ``name`` is
    for logs, ``title`` for pictures.

    Attributes:
        positions: of the sample in ``state.rows``, increasing.
    """

    def __init__(self, name: str, title: str, state: DualState, sample: int, seed: Sequence[int]) -> None:
        self.name, self.title, self.state = name, title, state
        held = len(state.rows)
        count = min(sample, held)
        chosen = np.random.default_rng([*seed, state.first]).choice(held, count, replace=False, shuffle=False)
        self.positions = torch.from_numpy(np.sort(chosen))
        self._weight = held / max(1, count)  # rows that one of the sample stands for
        self._before: Tensor | None = None
        self._changed_at = torch.zeros(count, dtype=torch.int64)

    def sampled(self) -> Tensor:
        """The sampled rows, (m, k) float64 on the CPU; NaN where never written."""
        rows = self.state.rows  # on the CPU when training has ended, wherever they were before
        return rows.index_select(0, self.positions.to(rows.device)).cpu().double()

    def look(self, step: int) -> tuple[Tensor, float]:
        """Compare the sample, after so many updates, with the look before.  O(sample).

        Returns:
            What :func:`figures_of` is made of, estimated for all rows that this process holds: sum and number of what
            is averaged (whether a row was ever written, the squared values, the known ages of rows in updates, the
            absolute changes since the look before), shape (4, 2); and the largest age.
        """
        now, before = self.sampled(), self._before
        self._before, written = now, ~now[:, 0].isnan()
        there, ages = now[:0], self._changed_at[:0]
        if before is None:
            self._changed_at.fill_(step)
        else:
            self._changed_at[(now != before).any(1)] = step  # rows never written too, NaN is not NaN
            ages = step - self._changed_at[written]
            there = (now - before)[written & ~before[:, 0].isnan()].abs()
        values = now[written]
        averaged = [
            (len(values), len(now)),
            (values.square().sum(), values.numel()),
            (ages.sum(), len(ages)),
            (there.sum(), there.numel()),
        ]
        sums = self._weight * torch.tensor(averaged, dtype=torch.float64)
        return sums, float(ages.max()) if len(ages) else 0.0


def figures_of(looks: Sequence[tuple[Tensor, float]]) -> dict[str, float]:
    """What is logged of a state, as far as it is known, from the looks of the processes that hold its rows."""
    sums = torch.stack([own for own, _ in looks]).sum(0).tolist()
    names = ("seen", "rms", "age_mean", "drift")
    figures = {name: total / count for name, (total, count) in zip(names, sums, strict=True) if count}
    if "rms" in figures:
        figures["rms"] = math.sqrt(figures["rms"])
    if "age_mean" in figures:
        figures["age_max"] = max(oldest for _, oldest in looks)
    return figures


class StateMonitor(Callback):
    r"""Logs what the dual states do, without changing a bit of them.

    Every ``every_n_steps`` updates and at the end of each epoch it looks at a fixed random sample S of the rows that
    this process holds, and logs for every dual state (``objective``, ``penalty``, or ``penalty0``, ``penalty1``, ...
    where there are several):

    - ``algo/<state>/seen``: share of rows ever written; at the end of an epoch exact, else of S;
    - ``algo/<state>/rms``: root mean square of the values in written rows of S;
    - ``algo/<state>/drift``: ``mean |u_t - u_s|`` over the values of S that were written at the look before, s;
    - ``algo/<state>/age_mean``, ``age_max``: updates since a written row of S last changed.  A change is known by the
      look that finds it, and none before the first look, so ages are too small by up to the time between two looks;
    - ``algo/<state>/bytes``: of the rows that this process holds;

    and ``algo/exchange_seconds``, ``algo/exchange_bytes``: spent on and sent in exchanges by this process's training
    steps, per update since the look before (0 with one process).  What is not known yet is not logged: the first look,
    also after a resume, has neither drift nor ages.  So nothing needs to be in a checkpoint; the seed gives the sample.

    A look costs O(``sample``).  Between the ends of epochs it is that of the first process and its rows; at the end of
    an epoch all processes add up theirs (one exchange, O(n/P) work).  At the end of ``fit`` a histogram of the values
    in written rows is drawn into ``dual_state.png``.

    Args:
        enabled: whether to do so.
        every_n_steps: updates between two looks, >= 1.
        sample: most rows to look at, of every state and process, >= 1.
        seed: of the sample, >= 0.
        picture: draw ``dual_state.png``.
        folder: of the picture; None for the logger's folder of this run.

    Raises:
        ConfigError: if a number is not whole or too small.
    """

    def __init__(
        self,
        enabled: bool = True,
        every_n_steps: int = 50,
        sample: int = 4096,
        seed: int = 0,
        picture: bool = True,
        folder: str | None = None,
    ) -> None:
        self.every_n_steps = at_least("every_n_steps", every_n_steps, 1)
        self.sample, self.seed = at_least("sample", sample, 1), at_least("seed", seed, 0)
        self.enabled, self.picture, self.folder = enabled, picture, folder
        self.left_out = LeftOut()
        self._watches: list[Watch] | None = None  # while training is watched
        self._problem: Problem | None = None  # whose states these are
        self._looked_at = 0  # the step of the look before
        self._seconds, self._bytes = 0.0, 0  # in exchanges of training steps since then

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Choose the rows."""
        self._watches, self.left_out = None, LeftOut()
        if not self.enabled or not isinstance(pl_module, FCCOModule) or pl_module.problem is None:
            return
        self._problem = pl_module.problem
        self._watches = watches(pl_module.problem, self.sample, self.seed)
        self._start_from(trainer.global_step)

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        """Read the clock: validation and checkpoints communicate too."""
        if self._watches is not None and isinstance(pl_module, FCCOModule):
            if self._problem is not pl_module.problem:  # a new phase has begun
                self.on_train_start(trainer, pl_module)
            self._seconds -= pl_module.processes.seconds
            self._bytes -= pl_module.processes.bytes

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, _outputs: Any, _batch: Any, batch_idx: int
    ) -> None:
        """Look, where the end of the epoch does not."""
        if self._watches is None or not isinstance(pl_module, FCCOModule):
            return
        self._seconds += pl_module.processes.seconds
        self._bytes += pl_module.processes.bytes
        last = trainer.is_last_batch or batch_idx + 1 >= trainer.num_training_batches
        if not last and trainer.global_step % self.every_n_steps == 0:
            self._look(trainer, pl_module, whole=False)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Look at the rows of all processes."""
        self._look(trainer, pl_module, whole=True)

    def _look(self, trainer: Trainer, module: LightningModule, *, whole: bool) -> None:
        step, updates = trainer.global_step, trainer.global_step - self._looked_at
        if self._watches is None or not isinstance(module, FCCOModule) or updates == 0:
            return
        values = {"algo/exchange_seconds": self._seconds / updates, "algo/exchange_bytes": self._bytes / updates}
        own = [watch.look(step) for watch in self._watches]
        looks = _of_all(self._watches, own, module.processes) if whole else [([look], None) for look in own]
        for watch, (of_processes, share) in zip(self._watches, looks, strict=True):
            figures = figures_of(of_processes) | {"bytes": float(watch.state.rows.nbytes)}
            figures |= {} if share is None else {"seen": share}
            values |= {f"algo/{watch.name}/{name}": value for name, value in figures.items()}
        for logger in trainer.loggers:  # as FCCOModule does: the x-axis is updates
            logger.log_metrics(values, step=step - 1)
        self._start_from(step)

    def _start_from(self, step: int) -> None:
        self._looked_at, self._seconds, self._bytes = step, 0.0, 0

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Draw the picture."""
        watched, self._watches = self._watches, None
        unwanted = not self.picture or trainer.interrupted or trainer.fast_dev_run  # type: ignore[attr-defined]
        if not watched or unwanted or not isinstance(pl_module, FCCOModule):
            return
        own = [rows[~rows[:, 0].isnan()].flatten() for rows in (watch.sampled() for watch in watched)]
        parts = _of_all(watched, own, pl_module.processes)
        folder = Path(self.folder or trainer.log_dir or trainer.default_root_dir)  # log_dir asks all processes
        if trainer.is_global_zero:
            states = [
                Values(watch.title, torch.cat(values), share, watch.state.num_rows)
                for watch, (values, share) in zip(watched, parts, strict=True)
            ]
            name = "dual_state.png"
            self.left_out.make(name, partial(plot_dual_states, states, folder / name), None)


def watches(problem: Problem, sample: int, seed: int) -> list[Watch]:
    """A watch for every dual state of the problem."""
    states = [(t.name, t.state) for t in problem.terms if isinstance(t, Term) and t.state is not None]
    penalties = iter(enumerate(problem.constraints))
    made = []
    for number, (kind, state) in enumerate(states):
        name = title = kind
        if kind == "penalty":
            k, constraint = next(penalties)
            name = f"penalty{k}" if len(problem.constraints) > 1 else kind
            title = f"{name}: {constraint.names[0] if constraint.num_rows == 1 else type(constraint).__name__}"
        made.append(Watch(name, title, state, sample, (seed, number)))
    return made


def _of_all(watched: Sequence[Watch], own: Sequence[T], processes: Processes) -> list[tuple[list[T], float]]:
    """For every state what each process says about the rows it holds, and the share of all its rows ever written.

    Of replicas one process speaks.
    """
    said = [(one, int(watch.state.seen.sum())) for watch, one in zip(watched, own, strict=True)]
    everyone = processes.everyone(said) if any(watch.state.divided for watch in watched) else [said]
    found = []
    for k, watch in enumerate(watched):
        parts = [of[k] for of in everyone] if watch.state.divided else [said[k]]
        found.append(([one for one, _ in parts], sum(count for _, count in parts) / watch.state.num_rows))
    return found


# ------------------------------------------------------------------------------------------------------------- picture


class Values(NamedTuple):
    """What is drawn of one dual state: the values in its written rows, the share of rows ever written, their number."""

    title: str
    written: Tensor
    seen: float
    rows: int

    @property
    def drawn(self) -> NDArray[np.float64]:
        """The values that have a place on an axis."""
        values: NDArray[np.float64] = self.written.numpy()
        return values[np.isfinite(values)]

    @property
    def caption(self) -> str:
        """Name and share, which is 100% only if it is; and how many values are not drawn."""
        share = self.seen if self.seen == 1 else min(self.seen, 0.999)
        bad = len(self.written) - len(self.drawn)
        not_drawn = f"\n{bad:,} of {len(self.written):,} values are NaN or infinite" if bad else ""
        rows = f"{self.rows:,} row{'s' * (self.rows > 1)}"
        return f"{shown(self.title, _MOST_LETTERS)}\n{share:.1%} of {rows} written{not_drawn}"


def plot_dual_states(states: Sequence[Values], path: str | Path) -> Path | None:
    """Draw a histogram of the values of every dual state; those with few values share one panel, a dot for each.

    Beyond six panels, or eight lines of dots, the last ones are drawn as one.  Values that are not finite are counted.

    Returns: the PNG file written, or None without a state.
    """
    if not states:
        return None
    small = _at_most(_MOST_LINES, [state for state in states if len(state.written) < _FEW])
    large = _at_most(_MOST_PANELS - bool(small), [state for state in states if len(state.written) >= _FEW])
    panels = [[state] for state in large] + ([small] if small else [])
    columns = min(3, len(panels))
    lines = -(-len(panels) // columns)
    figure = new_figure(max(5.4, 4.2 * columns), 3.3 * lines + 0.3)
    for k, panel in enumerate(panels, start=1):
        axes = figure.add_subplot(lines, columns, k)
        if panel is small:
            _draw_dots(axes, panel)
        else:
            _draw_histogram(axes, panel[0])
        axes.set_xlabel("value in a row ($u_i$ or $y_i$)")
        quiet_frame(axes)
    return save(figure, path)


def _draw_histogram(axes: "Axes", state: Values) -> None:
    values = state.drawn
    shares = np.full(len(values), 100 / max(1, len(values)))
    axes.hist(values, _bins(values).tolist(), weights=shares, color=BLUE, edgecolor="white", linewidth=0.4)
    axes.set_title(state.caption, fontsize=10)
    axes.set_ylabel("% of values")


def _bins(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """The edges of the bins of a histogram: one bin around values that are too near to each other to be divided."""
    if not len(values):
        return np.array([0.0, 1.0])
    low, high, number = values.min(), values.max(), min(50, int(2 * len(values) ** (1 / 3)))  # the rule of Rice
    edges: NDArray[np.float64] = np.linspace(low, high, number + 1)
    around = max(0.5, 1e-3 * abs(low))
    return edges if bool((edges[1:] > edges[:-1]).all()) else np.array([low - around, high + around])


def _draw_dots(axes: "Axes", states: Sequence[Values]) -> None:
    for line, state in enumerate(states):
        axes.plot(state.drawn, np.full(len(state.drawn), line), "o", color=BLUE, alpha=0.6)
    axes.set_yticks(range(len(states)), [state.caption for state in states], fontsize=8 if len(states) < 6 else 6)
    axes.set_ylim(len(states) - 0.5, -0.5)  # the first on top
    axes.set_title("every value of the states with few rows" if len(states) > 1 else "every value", fontsize=10)


def _at_most(count: int, states: Sequence[Values]) -> list[Values]:
    """The last ones as one, where there are more."""
    if len(states) <= count:
        return list(states)
    rest = states[count - 1 :]
    rows = sum(state.rows for state in rest)
    title = f"{rest[0].title.partition(':')[0]} to {rest[-1].title.partition(':')[0]}"
    seen = sum(state.seen * state.rows for state in rest) / rows
    return [*states[: count - 1], Values(title, torch.cat([state.written for state in rest]), seen, rows)]
