"""The dual states during training: how much of them is used, how fast they move, what their exchange costs."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor

from fcco_lightning.callbacks.pictures import BLUE, _figure, _quiet_frame, _save
from fcco_lightning.checks import at_least
from fcco_lightning.distributed import Processes
from fcco_lightning.problem import Problem
from fcco_lightning.problem.terms import Term
from fcco_lightning.state import DualState
from fcco_lightning.training import FCCOModule

T = TypeVar("T")
_MOST_PANELS = 6


class Look(NamedTuple):
    """Sums over the rows of a dual state that a process holds, estimated from its sample.

    Attributes:
        rows: their number.
        written: how many of them were ever written.
        squares: sum of their squared values.
        aged: how many of them have a known age.
        age: sum of the ages, in updates.
        compared: values that were there at the look before.
        moved: sum of their absolute changes since.
        oldest: largest age.
    """

    rows: float
    written: float
    squares: float
    aged: float
    age: float
    compared: float
    moved: float
    oldest: float

    def figures(self, width: int) -> dict[str, float]:
        """What is logged of it, as far as it is known."""
        found = {"seen": self.written / self.rows} if self.rows else {}
        if self.written:
            found["rms"] = math.sqrt(self.squares / (self.written * width))
        if self.aged:
            found |= {"age_mean": self.age / self.aged, "age_max": self.oldest}
        if self.compared:
            found["drift"] = self.moved / self.compared
        return found


def together(looks: Sequence[Look]) -> Look:
    """The look at the rows of several processes."""
    *sums, oldest = zip(*looks, strict=True)
    return Look(*map(sum, sums), max(oldest))


class Watch:
    """A fixed random sample of the rows of one dual state that this process holds.

    Args:
        name: in logs.
        title: in pictures.
        state: is read, never written; without any communication.
        sample: most rows to look at.
        seed: of the sample, whole numbers >= 0; replicas of a state have the same sample.
    """

    def __init__(self, name: str, title: str, state: DualState, sample: int, seed: Sequence[int]) -> None:
        self.name, self.title, self.state = name, title, state
        held = len(state.rows)
        count = min(sample, held)
        chosen = np.random.default_rng([*seed, state.first]).choice(held, count, replace=False, shuffle=False)
        self._positions = torch.from_numpy(np.sort(chosen)).to(state.rows.device)
        self._weight = held / max(1, count)  # rows that one of the sample stands for
        self._before: Tensor | None = None
        self._changed_at = torch.zeros(count, dtype=torch.int64)

    def sampled(self) -> Tensor:
        """The sampled rows, (m, k) float64 on the CPU; NaN where never written."""
        return self.state.rows.index_select(0, self._positions).cpu().double()

    def look(self, step: int) -> Look:
        """Compare the sample with the look before.  O(sample).

        Args:
            step: updates so far.
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
        sums = (len(now), len(values), values.square().sum(), len(ages), ages.sum(), there.numel(), there.sum())
        oldest = float(ages.max()) if len(ages) else 0.0
        return Look(*(self._weight * float(s) for s in sums), oldest)


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

    and ``algo/exchange_seconds``, ``algo/exchange_bytes``: spent on and sent in exchanges between the processes, per
    update since the look before (0 with one process).  What is not known yet is not logged: the first look, also after
    a resume, has neither drift nor ages.  So nothing needs to be in a checkpoint; the sample is that of the seed.

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
        self._watches: list[Watch] | None = None  # while training is watched
        self._looked_at = 0  # the step of the look before
        self._exchanged = (0.0, 0)  # seconds and bytes until then

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Choose the rows."""
        self._watches = None
        if not self.enabled or not isinstance(pl_module, FCCOModule) or pl_module.problem is None:
            return
        self._watches = watches(pl_module.problem, self.sample, self.seed)
        self._start_from(trainer.global_step, pl_module.processes)

    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,  # noqa: ARG002
        batch: Any,  # noqa: ARG002
        batch_idx: int,
    ) -> None:
        """Look, where the end of the epoch does not."""
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
        processes = module.processes
        seconds, sent = self._exchanged
        values = {
            "algo/exchange_seconds": (processes.seconds - seconds) / updates,
            "algo/exchange_bytes": (processes.bytes - sent) / updates,
        }
        looks = [watch.look(step) for watch in self._watches]
        shares: list[dict[str, float]] = [{}] * len(looks)
        if whole:
            own = [(look, count) for look, count in zip(looks, _written(self._watches), strict=True)]
            parts = _of_all(self._watches, own, processes)
            looks = [together([look for look, _ in part]) for part in parts]
            shares = [{"seen": share} for share in _shares(self._watches, parts)]
        for watch, look, share in zip(self._watches, looks, shares, strict=True):
            found = look.figures(watch.state.width) | share | {"bytes": float(watch.state.rows.nbytes)}
            values |= {f"algo/{watch.name}/{name}": value for name, value in found.items()}
        for logger in trainer.loggers:  # as FCCOModule does: the x-axis is updates
            logger.log_metrics(values, step=step - 1)
        self._start_from(step, processes)

    def _start_from(self, step: int, processes: Processes) -> None:
        self._looked_at, self._exchanged = step, (processes.seconds, processes.bytes)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Draw the picture."""
        watched, self._watches = self._watches, None
        if not watched or not self.picture or trainer.interrupted or not isinstance(pl_module, FCCOModule):
            return
        sampled = [watch.sampled() for watch in watched]
        own = [(rows[~rows[:, 0].isnan()].flatten(), n) for rows, n in zip(sampled, _written(watched), strict=True)]
        parts = _of_all(watched, own, pl_module.processes)
        folder = Path(self.folder or trainer.log_dir or trainer.default_root_dir)  # log_dir asks all processes
        if trainer.is_global_zero:
            panels = [
                Panel(watch.title, torch.cat([values for values, _ in part]), share, watch.state.num_rows)
                for watch, part, share in zip(watched, parts, _shares(watched, parts), strict=True)
            ]
            plot_dual_states(panels, folder / "dual_state.png")


def watches(problem: Problem, sample: int, seed: int) -> list[Watch]:
    """A watch for every dual state of the problem."""
    terms = [term for term in problem.terms if isinstance(term, Term) and term.state is not None]
    constraints = iter(problem.constraints)
    several = sum(term.name == "penalty" for term in terms) > 1
    made: list[Watch] = []
    for number, term in enumerate(terms):
        name = title = term.name
        if name == "penalty":
            constraint = next(constraints)
            name = f"penalty{number - len(terms) + len(problem.constraints)}" if several else name
            kind = constraint.names[0] if constraint.num_rows == 1 else type(constraint).__name__
            title = f"{name}: {kind}"
        if term.state is not None:
            made.append(Watch(name, title, term.state, sample, (seed, number)))
    return made


def _written(watched: Sequence[Watch]) -> list[int]:
    """Rows ever written of those held here, exactly."""
    return [int(watch.state.seen.sum()) for watch in watched]


def _of_all(watched: Sequence[Watch], own: Sequence[T], processes: Processes) -> list[list[T]]:
    """For every state what each process says about the rows it holds; of replicas, one speaks."""
    if not any(watch.state.divided for watch in watched):
        return [[value] for value in own]
    everyone = processes.everyone(own)
    return [[of[k] for of in everyone] if w.state.divided else [own[k]] for k, w in enumerate(watched)]


def _shares(watched: Sequence[Watch], parts: Sequence[Sequence[tuple[Any, int]]]) -> list[float]:
    return [sum(n for _, n in part) / watch.state.num_rows for watch, part in zip(watched, parts, strict=True)]


# ------------------------------------------------------------------------------------------------------------- picture


class Panel(NamedTuple):
    """What is drawn of one dual state.

    Attributes:
        title: its name.
        values: in written rows, any number.
        seen: share of rows ever written.
        rows: their number.
    """

    title: str
    values: Tensor
    seen: float
    rows: int


def plot_dual_states(panels: Sequence[Panel], path: str | Path) -> Path:
    """Draw a histogram of the values of every dual state; from the sixth on they share a panel.

    Args:
        panels: at least one.
        path: PNG file to write; its folder is created.

    Returns:
        The file written.
    """
    if len(panels) > _MOST_PANELS:
        panels = [*panels[: _MOST_PANELS - 1], _merged(panels[_MOST_PANELS - 1 :])]
    columns = min(3, len(panels))
    lines = -(-len(panels) // columns)
    figure = _figure(max(4.8, 4.0 * columns), 3.3 * lines + 0.3)
    for k, panel in enumerate(panels):
        axes = figure.add_subplot(lines, columns, k + 1)
        axes.set_title(f"{panel.title}\n{panel.seen:.1%} of {panel.rows:,} rows written", fontsize=10)
        if not len(panel.values):
            axes.text(0.5, 0.5, "no row written", ha="center", va="center", transform=axes.transAxes)
            axes.set_axis_off()
            continue
        bins = min(50, max(10, int(2 * len(panel.values) ** (1 / 3))))  # the rule of Rice
        values, share = panel.values.numpy(), np.full(len(panel.values), 100 / len(panel.values))
        axes.hist(values, bins, weights=share, color=BLUE, edgecolor="white", linewidth=0.3)
        axes.set_xlabel("value in a row ($u_i$ or $y_i$)")
        if k % columns == 0:
            axes.set_ylabel("% of values")
        _quiet_frame(axes)
    return _save(figure, path)


def _merged(panels: Sequence[Panel]) -> Panel:
    rows = sum(panel.rows for panel in panels)
    title = f"{panels[0].title.partition(':')[0]} to {panels[-1].title.partition(':')[0]}"
    seen = sum(panel.seen * panel.rows for panel in panels) / rows
    return Panel(title, torch.cat([panel.values for panel in panels]), seen, rows)
