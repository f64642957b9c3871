"""``fcco tune``: a search over the options of ``fcco fit``, with trials evaluated on the validation split."""

import logging
import math
import re
import shlex
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightning.pytorch import Callback, LightningModule, Trainer
from rich.console import Console

from fcco_lightning.checks import at_least, one_of, package
from fcco_lightning.cli.comparison import print_rows
from fcco_lightning.cli.lightning_cli import start
from fcco_lightning.cli.named_configs import named_searches
from fcco_lightning.cli.shorthands import written_out
from fcco_lightning.cli.yaml_files import read_yaml
from fcco_lightning.errors import ConfigError, NonFiniteError
from fcco_lightning.evaluation import direction, is_feasible, standing
from fcco_lightning.reports import BestFeasible
from fcco_lightning.training import FCCOModule

if TYPE_CHECKING:
    import optuna

_BROKEN = 1e8  # beyond every figure, so that all infeasible trials rank below all feasible ones
_BASE = {1: -_BROKEN, 0: -4 * _BROKEN}  # offset of a level of standing
_LAST = -6 * _BROKEN
_NEAR_EDGE = 0.05  # share of a range that counts as its edge
_REDUCTION = 3  # successive halving continues a third of the trials
_PRINTED_ROWS = 20
_KINDS = "{log: [LOW, HIGH]}, {uniform: [LOW, HIGH]}, {int: [LOW, HIGH]} or {choice: [VALUE, ...]}"
_LEAN = (  # a trial neither evaluates the test split nor saves checkpoints
    *("--report.enabled=false", "--baseline.enabled=false"),
    *("--trainer.enable_checkpointing=false", "--trainer.enable_progress_bar=false"),
)


class SearchedOption:
    """An option of ``fcco fit``, and the values that a search may give it.

    Args:
        path: path of the option, as on the command line (``model.optimizer.lr``).
        values: ``{log: [LOW, HIGH]}`` for a number on a logarithmic scale, ``{uniform: [LOW, HIGH]}``,
            ``{int: [LOW, HIGH]}`` for a whole number, or ``{choice: [VALUE, ...]}``.

    Raises:
        ConfigError: if ``values`` has another form.
    """

    def __init__(self, path: str, values: object) -> None:
        if not isinstance(values, Mapping) or len(values) != 1:
            raise ConfigError(f"search: {path}: {values!r} is no set of values. Give {_KINDS}.")
        ((kind, content),) = values.items()
        self.path = path
        self.kind: str = one_of(f"search: kind of {path}", kind, ("log", "uniform", "int", "choice"))
        self.values: list[Any] = [_number(value) for value in content] if isinstance(content, list) else []
        if kind == "choice":
            self._check_choices(content)
        else:
            self._check_range(content)

    def _check_choices(self, value: object) -> None:
        if not self.values or not all(v is None or isinstance(v, bool | int | float | str) for v in self.values):
            raise ConfigError(
                f"search: choice of {self.path} must be a list of numbers, texts, true, false or null, got {value!r}."
            )

    def _check_range(self, value: object) -> None:
        numbers = [v for v in self.values if isinstance(v, int | float) and not isinstance(v, bool)]
        valid = len(self.values) == len(numbers) == 2 and -math.inf < numbers[0] < numbers[1] < math.inf
        fractional = self.kind == "int" and not all(isinstance(number, int) for number in numbers)
        if not valid or fractional or (self.kind == "log" and numbers[0] <= 0):
            kind, bound = " of whole numbers" * (self.kind == "int"), "0 < " * (self.kind == "log")
            raise ConfigError(
                f"search: {self.kind} of {self.path} must be [LOW, HIGH]{kind} with {bound}LOW < HIGH, got {value!r}."
            )

    def suggest(self, trial: "optuna.Trial") -> Any:
        """The value of this option in a trial."""
        if self.kind == "choice":
            return trial.suggest_categorical(self.path, self.values)
        low, high = self.values
        if self.kind == "int":
            return trial.suggest_int(self.path, low, high)
        return trial.suggest_float(self.path, low, high, log=self.kind == "log")

    def on_edge(self, value: Any) -> bool:
        """Whether a value is the smallest or largest choice, or in the outer twentieths of a range."""
        if self.kind == "choice":
            numbers = [v for v in self.values if isinstance(v, int | float) and not isinstance(v, bool)]
            return len(numbers) == len(self.values) > 1 and value in (min(numbers), max(numbers))
        low, high = self.values
        if self.kind == "int":
            return value in (low, high)
        if self.kind == "log":
            low = math.log(low)
            high = math.log(high)
            value = math.log(value)
        return not _NEAR_EDGE < (value - low) / (high - low) < 1 - _NEAR_EDGE


def _number(value: object) -> object:
    """Convert a text such as 1e-3, which YAML reads as a text, to a number."""
    match = isinstance(value, str) and re.fullmatch(r"[-+]?\d+(\.\d*)?e[-+]?\d+", value)
    return float(match[0]) if match else value


def read_search(path: str | Path) -> list[SearchedOption]:
    """The options of a search, from a YAML file that maps their paths to their values.

    Args:
        path: path of the file, or a name of :func:`fcco_lightning.cli.named_configs.named_searches`.

    Raises:
        ConfigError: if there is no such file, or it has another form.
    """
    file = Path(path) if Path(path).is_file() else named_searches().get(str(path))
    if file is None:
        raise ConfigError(
            f"--search {path}: there is no such file, and no search of that name; fcco list searches names them. A "
            f"search has a line for every option, such as `model.optimizer.lr: {{log: [1e-3, 1]}}`; others {_KINDS}."
        )
    search = read_yaml(file, f"--search {path}")
    if not isinstance(search, Mapping) or not search:
        raise ConfigError(f"--search {path}: must map paths of options to values, {_KINDS}; it holds {search!r}.")
    return [SearchedOption(str(option), values) for option, values in search.items()]


def rank(value: float, violation: float | None, vacuous: object = False) -> float:
    """One number by which trials are ordered, in the order of :func:`fcco_lightning.evaluation.standing`.

    Args:
        value: a figure that is better if it is larger.
        violation: the largest constraint value; None without constraints.
        vacuous: whether constraints are vacuous.

    Example:
        >>> rank(0.8, -0.01) > rank(0.7, 0.0) > rank(0.9, 0.01) > rank(0.9, 0.02) > rank(0.9, -0.1, vacuous=True)
        True
    """
    level, decides = standing(value, violation, vacuous)
    if decides == -math.inf:
        return _LAST
    return decides if level == 2 else _BASE[level] + max(-_BROKEN, min(decides, _BROKEN))


class Judge(Callback):
    """Records the validations of one trial, and ends it early if successive halving rejects it.

    The figures of a trial are those of its last validation, or of the one whose weights :class:`BestFeasible` chose.

    Args:
        trial: the trial of Optuna.
        figure: figure of the validation split; None for the evaluation's figure of merit.
        mode: "max" if larger figures are better, else "min"; None for "min" of losses, errors and gaps.

    Attributes:
        figure: name of the figure.
        validations: epoch -> value, largest constraint value (None without constraints), and whether constraints are
            vacuous.
        chosen: the epoch whose figures are those of the trial.

    Raises:
        ConfigError: if there is no validation split, it has no such figure, or several processes train.
    """

    def __init__(self, trial: "optuna.Trial", figure: str | None, mode: str | None) -> None:
        self.trial, self.figure, self.mode = trial, figure, mode
        self.validations: dict[int, tuple[float, float | None, bool]] = {}
        self.chosen = -1

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:  # noqa: ARG002
        """Check early that the trial can be evaluated."""
        if trainer.world_size > 1:
            raise ConfigError(
                f"fcco tune trains in one process, got {trainer.world_size}. Leave --trainer.devices at 1; several "
                "searches may share a --folder at the same time."
            )
        if "val" not in getattr(getattr(trainer, "datamodule", None), "val_names", ()):
            raise ConfigError(
                "fcco tune judges on a validation split 'val', and the data has none: the test split must not choose. "
                "Hold one out (--data.splits.val_fraction 0.2 for tables, --data.val_fraction for embedded problems)."
            )

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Record the figures; end the trial if successive halving rejects it."""
        import optuna  # noqa: PLC0415 - an extra

        if trainer.sanity_checking or not isinstance(pl_module, FCCOModule):
            return
        figures = pl_module.last_summaries["val"]
        self.figure = self.figure or pl_module.evaluation.figure_of_merit()
        if self.figure not in figures:
            raise ConfigError(f"--figure {self.figure} is not one of the validation: {', '.join(sorted(figures))}.")
        self.chosen = trainer.current_epoch
        value, violation = self._sign * figures[self.figure], figures.get("worst_violation")
        self.validations[self.chosen] = value, violation, bool(figures.get("vacuous"))
        self.trial.report(self.rank, self.chosen + 1)
        if self.chosen + 1 != trainer.max_epochs and self.trial.should_prune():
            self.keep()
            raise optuna.TrialPruned

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:  # noqa: ARG002
        """Choose the validation of the final weights."""
        if not self.validations:
            raise ConfigError(
                "the trial has ended without a validation, by which it would be judged. Let it validate: lower "
                "--trainer.check_val_every_n_epoch, or train longer."
            )
        for callback in trainer.callbacks:  # type: ignore[attr-defined]
            if isinstance(callback, BestFeasible) and callback.chosen:
                self.chosen = callback.chosen["epoch"]
        self.keep()

    def keep(self) -> None:
        """Store the figures of the chosen validation in the trial."""
        value, violation, vacuous = self.validations[self.chosen]
        attributes = {"figure": self.figure, "value": self._sign * value, "violation": violation, "epoch": self.chosen}
        attributes |= {"vacuous": vacuous}
        for name, content in attributes.items():
            self.trial.set_user_attr(name, content)

    @property
    def _sign(self) -> int:
        return 1 if (self.mode or direction(self.figure or "")) == "max" else -1

    @property
    def rank(self) -> float:
        """The trial's :func:`rank`."""
        return rank(*self.validations[self.chosen])


def search(
    fit: Sequence[str],
    options: Sequence[SearchedOption],
    trials: int = 20,
    folder: str | Path = "tuning",
    figure: str | None = None,
    mode: str | None = None,
    sampler: str = "tpe",
    seed: int = 0,
    full: bool = False,
) -> "optuna.Study":
    """Run ``trials`` fits with different options, including earlier trials of the same search in the folder.

    Every trial has the seed, the data and the epochs of ``fit``.  Unless ``full``, asynchronous successive halving
    (ASHA) ends a trial after 1, 3, 9, ... validations if it is not among the best third of trials that came so far.
    A trial with weights that are not finite has failed.

    Args:
        fit: arguments of ``fcco fit``.
        options: the options that are searched.
        trials: number of trials in all.
        folder: folder of the search, with ``study.journal``, and configuration and log of trial k in ``trial_k``.
        figure: see :class:`Judge`.
        mode: see :class:`Judge`.
        sampler: "tpe", "random", or "grid", which tries all combinations of choices.
        seed: seed of the sampler.
        full: whether every trial has all epochs.

    Returns:
        Optuna's study; the value of a trial is :func:`rank`.

    Raises:
        ConfigError: if Optuna is missing, an argument is out of range, or the folder has another search.
    """
    at_least("trials", trials, 1)
    one_of("mode", mode, ("max", "min", None))
    settings: dict[str, Any] = {"fit": list(fit), "figure": figure, "mode": mode, "full": full}
    settings["search"] = {option.path: {option.kind: option.values} for option in options}
    one_of("sampler", sampler, ("tpe", "random", "grid"))
    study = _study(Path(folder), options, sampler, seed, settings)
    _check_same(study, settings, folder)

    def objective(trial: "optuna.Trial") -> float:
        suggested = _arguments({option.path: option.suggest(trial) for option in options})
        judge = Judge(trial, figure, mode)
        root = f"--trainer.default_root_dir={Path(folder) / f'trial_{trial.number}'}"
        start(written_out(["fit", *fit, *suggested, *_LEAN, root]), [judge])
        return judge.rank

    remaining = trials - sum(trial.state.is_finished() for trial in study.trials)
    if remaining > 0:
        logger = logging.getLogger("lightning.pytorch")
        level = logger.level
        logger.setLevel(logging.WARNING)  # else every trial prints the devices
        try:
            study.optimize(objective, n_trials=remaining, catch=(NonFiniteError,), callbacks=[_print_trial])
        finally:
            logger.setLevel(level)
    return study


def print_search(fit: Sequence[str], space: str, **settings: Any) -> None:
    """Carry out a search, and print its table and the command of the best trial.

    Args:
        fit: arguments of ``fcco fit``.
        space: file of :func:`read_search`.
        settings: arguments of :func:`search`.

    Raises:
        ConfigError: as :func:`search`, and if no trial has ended.
    """
    options = read_search(space)
    study = search(fit, options, **settings)
    finished = ordered(study)
    if not finished:
        raise ConfigError("no trial has ended with finite weights. Search smaller learning rates.")
    console = Console()
    listed = finished[:_PRINTED_ROWS]
    print_rows([_row(trial) for trial in listed], "The best trials")
    best = finished[0]
    console.print(_conclusion(best, [o.path for o in options if o.on_edge(best.params[o.path])]), soft_wrap=True)
    command = shlex.join(["fcco", "fit", *fit, *_arguments(best.params)])
    console.print(command, soft_wrap=True, highlight=False, markup=False)


def ordered(study: "optuna.Study") -> list["optuna.trial.FrozenTrial"]:
    """The trials that had all epochs, sorted by :func:`rank`, the best first."""
    finished = [trial for trial in study.trials if trial.state.name == "COMPLETE"]
    return sorted(finished, key=lambda trial: -(trial.value if trial.value is not None else math.inf))


def _study(
    folder: Path, options: Sequence[SearchedOption], sampler: str, seed: int, settings: Mapping[str, Any]
) -> "optuna.Study":
    package("optuna", "tune", "fcco tune")
    import optuna  # noqa: PLC0415 - an extra
    from optuna.storages.journal import JournalFileBackend  # noqa: PLC0415

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    folder.mkdir(parents=True, exist_ok=True)
    storage = optuna.storages.JournalStorage(JournalFileBackend(str(folder / "study.journal")))
    halving = optuna.pruners.SuccessiveHalvingPruner(min_resource=1, reduction_factor=_REDUCTION)
    create = partial(
        optuna.create_study,
        study_name="fcco",
        storage=storage,
        direction="maximize",
        load_if_exists=True,
        pruner=optuna.pruners.NopPruner() if settings["full"] else halving,
    )
    study = create()
    if study.user_attrs.get("asked", settings) != settings and not any("value" in t.user_attrs for t in study.trials):
        optuna.delete_study(study_name="fcco", storage=storage)  # without trials a mistyped search is replaced
        study = create()
    seed += len(study.trials)  # a continued search must not repeat its draws
    if sampler == "grid":
        study.sampler = optuna.samplers.GridSampler(_grid(options), seed=seed)
    elif sampler == "random":
        study.sampler = optuna.samplers.RandomSampler(seed)
    else:
        study.sampler = optuna.samplers.TPESampler(seed=seed)
    return study


def _grid(options: Sequence[SearchedOption]) -> dict[str, list[Any]]:
    ranges = [option.path for option in options if option.kind != "choice"]
    if ranges:
        raise ConfigError(f"--sampler grid needs choices, but {', '.join(ranges)} has a range. Use tpe or random.")
    return {option.path: option.values for option in options}


def _check_same(study: "optuna.Study", settings: dict[str, Any], folder: str | Path) -> None:
    before = study.user_attrs.get("asked")
    if before is None:
        study.set_user_attr("asked", settings)
        return
    for name, value in settings.items():
        if before[name] != value:
            raise ConfigError(
                f"--folder {folder} holds a search with {name} {before[name]!r}, now it is {value!r}. Name another "
                "folder, or ask for the same."
            )


def _arguments(params: Mapping[str, Any]) -> list[str]:
    return [f"--{path}={'null' if value is None else str(value)}" for path, value in params.items()]


def _print_trial(study: "optuna.Study", trial: "optuna.trial.FrozenTrial") -> None:  # noqa: ARG001 - Optuna's signature
    outcome = {"COMPLETE": "ended", "PRUNED": "ended early", "FAIL": "failed"}[trial.state.name]
    figures = _figures(trial) if "value" in trial.user_attrs else ""
    Console().print(f"trial {trial.number} {outcome}{figures}", highlight=False, soft_wrap=True)


def _figures(trial: "optuna.trial.FrozenTrial") -> str:
    attributes = trial.user_attrs
    violation = "" if attributes["violation"] is None else f", largest h {attributes['violation']:+.4f}"
    violation += ", constraints vacuous" if attributes.get("vacuous") else ""
    return f": validation {attributes['figure']} {attributes['value']:.4f}{violation} (epoch {attributes['epoch']})"


def _row(trial: "optuna.trial.FrozenTrial") -> dict[str, Any]:
    """A row of the table: the options and the figures of a trial."""
    attributes = trial.user_attrs
    violation = {}
    if attributes["violation"] is not None:
        violation = {"largest h": attributes["violation"], "vacuous": "yes" if attributes.get("vacuous") else "no"}
    return {"trial": trial.number, **trial.params, attributes["figure"]: attributes["value"]} | violation


def _conclusion(best: "optuna.trial.FrozenTrial", edges: Sequence[str]) -> str:
    violation, vacuous = best.user_attrs["violation"], best.user_attrs.get("vacuous", False)
    remark = "their constraints are vacuous there" if vacuous else "this one is violated least"
    feasible = is_feasible(violation, vacuous)
    lines = [
        f"The best is trial {best.number}{_figures(best)}.",
        *([] if feasible else [f"No trial was feasible on the validation split; {remark}."]),
        *([f"On the edge of what was offered: {', '.join(edges)}. Offer more beyond it."] if edges else []),
        "To train it:",
    ]
    return "\n".join(lines)
