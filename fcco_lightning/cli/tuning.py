"""``fcco tune``: a search over the options of ``fcco fit``, with trials evaluated on the validation split."""

import logging
import math
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

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
_RULES = {
    "log": "[LOW, HIGH] with 0 < LOW < HIGH",
    "uniform": "[LOW, HIGH] with LOW < HIGH",
    "int": "[LOW, HIGH] of whole numbers with LOW < HIGH",
    "choice": "a list of numbers, texts, true, false or null",
}
_KINDS = "{log: [LOW, HIGH]}, {uniform: [LOW, HIGH]}, {int: [LOW, HIGH]} or {choice: [VALUE, ...]}"
_LEAN = (  # a trial neither evaluates the test split nor saves checkpoints
    *("--report.enabled=false", "--baseline.enabled=false"),
    *("--trainer.enable_checkpointing=false", "--trainer.enable_progress_bar=false"),
)


class SearchedOption(NamedTuple):
    """An option of ``fcco fit``, and the values that a search may give it.

    Attributes:
        path: path of the option, as on the command line (``model.optimizer.lr``).
        kind: "log" for a number on a logarithmic scale, "uniform", "int" for a whole number, or "choice".
        values: the choices, or the smallest and the largest value.
    """

    path: str
    kind: str
    values: list[Any]

    def suggest(self, trial: "optuna.Trial") -> Any:
        """The value of this option in a trial."""
        if self.kind == "choice":
            return trial.suggest_categorical(self.path, self.values)
        low, high = self.values
        if self.kind == "int":
            return trial.suggest_int(self.path, low, high)
        return trial.suggest_float(self.path, low, high, log=self.kind == "log")

    def on_edge(self, value: Any) -> bool:
        """Whether a value is the smallest or largest of several numbers, or in the outer twentieths of a range."""
        if self.kind in ("choice", "int"):
            return len(self.values) > 1 and _are_numbers(self.values) and value in (min(self.values), max(self.values))
        scale = math.log if self.kind == "log" else float
        low, at, high = (scale(number) for number in (self.values[0], value, self.values[1]))
        return not _NEAR_EDGE < (at - low) / (high - low) < 1 - _NEAR_EDGE


def read_search(path: str | Path) -> list[SearchedOption]:
    """The options of a search, from a YAML file that maps their paths to their values.

    The values are ``{KIND: [LOW, HIGH]}`` or ``{choice: [VALUE, ...]}``, see :class:`SearchedOption`.

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
    return [searched_option(str(option), values) for option, values in search.items()]


def searched_option(path: str, described: object) -> SearchedOption:
    """The option of a path with its values as in a file of :func:`read_search`."""
    if not isinstance(described, Mapping) or len(described) != 1:
        raise ConfigError(f"search: {path}: {described!r} is not a set of values. Give {_KINDS}.")
    ((kind, content),) = described.items()
    one_of(f"search: kind of {path}", kind, tuple(_RULES))
    values = [_number(value) for value in content] if isinstance(content, list) else []
    if kind == "choice":
        valid = bool(values) and all(v is None or isinstance(v, bool | int | float | str) for v in values)
    else:
        valid = len(values) == 2 and _are_numbers(values) and -math.inf < values[0] < values[1] < math.inf
        valid = valid and (kind != "log" or values[0] > 0) and (kind != "int" or all(type(v) is int for v in values))
    if not valid:
        raise ConfigError(f"search: {kind} of {path} must be {_RULES[kind]}, got {content!r}.")
    return SearchedOption(path, kind, values)


def _number(value: object) -> Any:
    """Convert a text such as 1e-3, which YAML reads as a text, to a number."""
    match = isinstance(value, str) and re.fullmatch(r"[-+]?\d+(\.\d*)?e[-+]?\d+", value)
    return float(match[0]) if match else value


def _are_numbers(values: Sequence[Any]) -> bool:
    return all(type(value) in (int, float) for value in values)


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
    They become attributes of the trial: ``figure`` (name), ``value``, ``violation`` (the largest constraint value; None
    without constraints), ``vacuous`` (whether constraints are) and ``epoch``.

    Args:
        trial: the trial of Optuna.
        figure: figure of the validation split; None for the evaluation's figure of merit.
        mode: "max" if larger figures are better, else "min"; None for "min" of losses, errors and gaps.

    Attributes:
        rank: the :func:`rank` of the trial.

    Raises:
        ConfigError: if there is no validation split, it has no such figure, or several processes train.
    """

    def __init__(self, trial: "optuna.Trial", figure: str | None, mode: str | None) -> None:
        self.trial, self.figure, self.mode = trial, figure, mode
        self.rank = _LAST
        self._validations: dict[int, dict[str, Any]] = {}  # by epoch

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:  # noqa: ARG002
        """Check early that the trial can be evaluated."""
        if trainer.world_size > 1:
            raise ConfigError(
                f"fcco tune trains in one process, got {trainer.world_size}. Leave --trainer.devices at 1; several "
                "searches may share a --folder at the same time."
            )
        if "val" not in getattr(getattr(trainer, "datamodule", None), "val_names", ()):
            raise ConfigError(
                "fcco tune compares trials on a validation split 'val', which the data does not have; the test split "
                "must not be used for it. Hold one out (--data.splits.val_fraction 0.2 for tables, --data.val_fraction "
                "for embedded problems)."
            )

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Record the figures; end the trial if successive halving rejects it."""
        import optuna  # noqa: PLC0415 - an extra

        if trainer.sanity_checking or not isinstance(pl_module, FCCOModule):
            return
        figures, epoch = pl_module.last_summaries["val"], trainer.current_epoch
        name = self.figure or pl_module.evaluation.figure_of_merit()
        if name not in figures:
            raise ConfigError(
                f"--figure {name} is not a figure of the validation split. These are {', '.join(sorted(figures))}."
            )
        violation, vacuous = figures.get("worst_violation"), bool(figures.get("vacuous"))
        attributes = {"figure": name, "value": figures[name], "violation": violation, "vacuous": vacuous}
        self._validations[epoch] = {**attributes, "epoch": epoch}
        self._judge(epoch)
        self.trial.report(self.rank, epoch + 1)
        if epoch + 1 != trainer.max_epochs and self.trial.should_prune():
            self._store(epoch)
            raise optuna.TrialPruned

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:  # noqa: ARG002
        """Choose the validation of the final weights."""
        if not self._validations:
            raise ConfigError(
                "the trial ended without a validation, so it has no figure. Lower "
                "--trainer.check_val_every_n_epoch, or train longer."
            )
        epoch = max(self._validations)
        for callback in trainer.callbacks:  # type: ignore[attr-defined]
            if isinstance(callback, BestFeasible) and callback.chosen:
                epoch = callback.chosen["epoch"]
        self._judge(epoch)
        self._store(epoch)

    def _judge(self, epoch: int) -> None:
        """Compute the rank of the trial from the figures of a validation."""
        figures = self._validations[epoch]
        better = 1 if (self.mode or direction(figures["figure"])) == "max" else -1
        self.rank = rank(better * figures["value"], figures["violation"], figures["vacuous"])

    def _store(self, epoch: int) -> None:
        """Store the figures of a validation in the trial, which then counts as judged."""
        for name, content in self._validations[epoch].items():
            self.trial.set_user_attr(name, content)


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
    study = _study(Path(folder), settings)
    study.sampler = _sampler(sampler, options, seed + len(study.trials))  # a continued search repeats no draws

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


def _study(folder: Path, settings: Mapping[str, Any]) -> "optuna.Study":
    """The study of a folder, which must be of the same search; without trials a mistyped search is replaced."""
    package("optuna", "tune", "fcco tune")
    import optuna  # noqa: PLC0415 - an extra
    from optuna.storages.journal import JournalFileBackend  # noqa: PLC0415

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    folder.mkdir(parents=True, exist_ok=True)
    storage = optuna.storages.JournalStorage(JournalFileBackend(str(folder / "study.journal")))
    halving = optuna.pruners.SuccessiveHalvingPruner(min_resource=1, reduction_factor=_REDUCTION)
    pruner = optuna.pruners.NopPruner() if settings["full"] else halving

    def study() -> optuna.Study:
        return optuna.create_study(
            study_name="fcco", storage=storage, direction="maximize", load_if_exists=True, pruner=pruner
        )

    found = study()
    before = found.user_attrs.get("asked", settings)
    changed = [name for name in settings if before[name] != settings[name]]
    if changed and any("value" in trial.user_attrs for trial in found.trials):
        raise ConfigError(
            f"--folder {folder} holds a search with {changed[0]} {before[changed[0]]!r}, now it is "
            f"{settings[changed[0]]!r}. Name another folder, or repeat the same search."
        )
    if changed:
        optuna.delete_study(study_name="fcco", storage=storage)
        found = study()
    found.set_user_attr("asked", settings)
    return found


def _sampler(name: str, options: Sequence[SearchedOption], seed: int) -> "optuna.samplers.BaseSampler":
    from optuna import samplers  # noqa: PLC0415 - an extra

    one_of("sampler", name, ("tpe", "random", "grid"))
    if name != "grid":
        return samplers.TPESampler(seed=seed) if name == "tpe" else samplers.RandomSampler(seed)
    if ranges := [option.path for option in options if option.kind != "choice"]:
        raise ConfigError(f"--sampler grid needs choices, but {', '.join(ranges)} has a range. Use tpe or random.")
    return samplers.GridSampler({option.path: option.values for option in options}, seed=seed)


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
    print_rows([_row(trial) for trial in finished[:_PRINTED_ROWS]], "The best trials")
    best = finished[0]
    violation, vacuous = best.user_attrs["violation"], best.user_attrs["vacuous"]
    lines = [f"The best is trial {best.number}{_figures(best)}."]
    if not is_feasible(violation, vacuous):
        remark = "their constraints are vacuous there" if vacuous else "this one is violated least"
        lines.append(f"No trial was feasible on the validation split; {remark}.")
    if edges := [option.path for option in options if option.on_edge(best.params[option.path])]:
        lines.append(f"The best value is at the edge of its range: {', '.join(edges)}. Extend the range.")
    lines += ["To train it:", shlex.join(["fcco", "fit", *fit, *_arguments(best.params)])]
    Console().print("\n".join(lines), soft_wrap=True, highlight=False, markup=False)


def ordered(study: "optuna.Study") -> list["optuna.trial.FrozenTrial"]:
    """The trials that had all epochs, sorted by :func:`rank`, the best first."""
    finished = [trial for trial in study.trials if trial.state.name == "COMPLETE"]
    return sorted(finished, key=lambda trial: trial.value or 0.0, reverse=True)


def _arguments(params: Mapping[str, Any]) -> list[str]:
    return [f"--{path}={'null' if value is None else str(value)}" for path, value in params.items()]


def _print_trial(study: "optuna.Study", trial: "optuna.trial.FrozenTrial") -> None:  # noqa: ARG001 - Optuna's signature
    outcome = {"COMPLETE": "ended", "PRUNED": "ended early", "FAIL": "failed"}[trial.state.name]
    figures = _figures(trial) if "value" in trial.user_attrs else ""
    Console().print(f"trial {trial.number} {outcome}{figures}", highlight=False, soft_wrap=True)


def _figures(trial: "optuna.trial.FrozenTrial") -> str:
    attributes = trial.user_attrs
    violation = "" if attributes["violation"] is None else f", largest h {attributes['violation']:+.4f}"
    violation += ", constraints vacuous" if attributes["vacuous"] else ""
    return f": validation {attributes['figure']} {attributes['value']:.4f}{violation} (epoch {attributes['epoch']})"


def _row(trial: "optuna.trial.FrozenTrial") -> dict[str, Any]:
    """A row of the table: the options and the figures of a trial."""
    attributes = trial.user_attrs
    row = {"trial": trial.number, **trial.params, attributes["figure"]: attributes["value"]}
    if attributes["violation"] is not None:
        row |= {"largest h": attributes["violation"], "vacuous": "yes" if attributes["vacuous"] else "no"}
    return row
