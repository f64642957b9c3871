"""Optimality measures of the theory, computed at the end of a fit or for a checkpoint."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeGuard

import torch
from lightning.fabric.utilities.rank_zero import rank_zero_info  # type: ignore[attr-defined]
from lightning.pytorch import Callback, LightningModule, Trainer
from rich.table import Table
from rich.text import Text
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils.data import DataLoader

from fcco_lightning.algorithms import Estimation
from fcco_lightning.analysis import (
    MAX_VALUES,
    Certificate,
    Samples,
    certificate,
    diagnose,
    jacobian,
    penalty_multipliers,
    remembered_duals,
    require_certifiable,
    required_size,
)
from fcco_lightning.checks import positive
from fcco_lightning.constraints import Penalty, unique_names
from fcco_lightning.engine import InnerFunctions
from fcco_lightning.errors import ConfigError
from fcco_lightning.models.batch import TARGET, Batch
from fcco_lightning.objectives import GroupObjective
from fcco_lightning.outer import MoreauSmoothing
from fcco_lightning.reports.left_out import LeftOut
from fcco_lightning.reports.summary_table import PRINTED_ROWS, print_tables, render_records, write_report
from fcco_lightning.training import FCCOModule


class Diagnostics(Callback):
    r"""Measures the optimality of a solution on a whole split.

    Under constraints, and for objectives that are not functions of groups' risks, it computes a certificate: the
    multipliers nu_i, ``|grad F + sum_i nu_i grad h_i|``, ``max_i |nu_i h_i|`` and ``max_i h_i``; the largest of these
    three is the eps for which the solution is an eps-KKT point (SONEX paper, Prop. 5.2;
    :func:`fcco_lightning.analysis.certificate`).  There is one with the multipliers of the run (``own``: those of its
    penalty's update rule, or the slopes of its fixed penalty) and one with the multipliers that minimise the residual
    (``best``), which alone is known for a checkpoint.  If the best multipliers leave a large residual, the weights are
    not optimal; if only the run's own multipliers do, these are inaccurate.

    For a group objective without constraints it computes the least eigenvalue of the Gram matrix of the exact inner
    functions' gradients (SONEX paper, Assumption 4.3 and Table 6), the number and size of the active dual values
    (Omega_y^0, ALEXR paper, Remark F.1), and the eps for which the solution is approximately eps-stationary (SONEX
    paper, Def. 4.1); see :func:`fcco_lightning.analysis.diagnose`.

    It runs at the end of ``fit``, and of ``test`` and ``validate`` on a checkpoint (``fcco test --config C --ckpt_path
    P --diagnostics.enabled true``), for which the algorithm's rows and multipliers are not known.  It writes
    ``diagnostics.json``, prints a table, and logs ``diagnostics/...``.  A certificate costs two forward passes over the
    split and m + 1 backward passes for m constraints; for a group objective the cost is a forward and a backward pass
    for every group in every evaluation batch, so that a large ``eval_batch_size`` is faster.

    If objective and constraints have different data, such as image-text pairs and labelled images, the certificate is
    computed on all training data (``split`` "train"), from the datamodule's ``part_loaders``: pairs have their first
    captions and no augmentation.

    Quantities that cannot be computed at the end of a fit on one process are left out of its report, with a warning.

    Temperatures of single samples have the values at the end of a fit; ``fcco test`` does not load them, so resume the
    checkpoint by ``fcco fit`` instead.

    Args:
        enabled: whether to run.
        split: "train", "val" or "test".
        lam: smoothing parameter for which stationarity is reported, > 0; None for the algorithm's, if it has one.
        max_values: largest number of entries of the Jacobian and of its Gram matrix, > 0; they are stored on the CPU.
        folder: folder of the file; None for the logger's folder of this run.
        every_epoch: whether the run's own certificate is logged after every validation, too, which costs two forward
            and two backward passes over the split.

    Raises:
        ConfigError: if a number is not positive; and, before anything runs, if the split is not evaluated, the problem
            has several data sets without ``part_loaders``, or there are too many values.
    """

    def __init__(
        self,
        enabled: bool = False,
        split: str = "train",
        lam: float | None = None,
        max_values: float = MAX_VALUES,
        folder: str | None = None,
        every_epoch: bool = False,
    ) -> None:
        self.enabled, self.split, self.folder, self.every_epoch = enabled, split, folder, every_epoch
        self.lam = None if lam is None else positive("lam", lam)
        self.max_values = positive("max_values", max_values)
        self.diagnosis: dict[str, Any] = {}
        self.left_out = LeftOut()

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Raise errors at the start of the fit rather than at its end."""
        self.left_out = LeftOut()
        if self._applies(pl_module):
            self._check(trainer, pl_module)

    on_test_start = on_fit_start

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Check as at the start of a fit."""
        if trainer.state.fn == "validate":
            self.on_fit_start(trainer, pl_module)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Measure the final weights, or those of the checkpoint."""
        if not self._applies(pl_module) or trainer.interrupted:
            return
        if trainer.state.fn == "fit" and pl_module.processes.size == 1:
            self.left_out.make("diagnostics", partial(self._measure, trainer, pl_module), None)
        else:
            self._measure(trainer, pl_module)

    on_test_end = on_fit_end

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Measure the checkpoint's weights; while training, log the run's certificate if that is requested."""
        if trainer.state.fn == "validate":
            self.on_fit_end(trainer, pl_module)
        elif self.every_epoch and not trainer.sanity_checking and self._applies(pl_module):
            residuals = self._certificates(trainer, pl_module, own_only=True).get("own")
            self._log(trainer, {} if residuals is None else {"own": residuals})

    def _applies(self, module: LightningModule) -> TypeGuard[FCCOModule]:
        return self.enabled and isinstance(module, FCCOModule)

    def _is_group_objective(self, module: FCCOModule) -> bool:
        """Whether the problem is a group objective without constraints."""
        return isinstance(module.objective, GroupObjective) and not module.constraints

    def _check(self, trainer: Trainer, module: FCCOModule) -> None:
        loaders = self._loaders(trainer)
        module.objective.adapt(getattr(trainer, "datamodule", None))
        parameters = module.objective.sample_parameters
        if parameters is not None and (trainer.state.fn != "fit" or self.split != "train"):
            raise ConfigError(
                f"the certificate of {type(module.objective).__name__} needs the {parameters.name} of every training "
                "sample, which is known only during training. Use --diagnostics.split train with fcco fit; for a "
                "checkpoint, resume it by fcco fit --ckpt_path with the same number of epochs."
            )
        if self._is_group_objective(module):
            required_size(_functions(module), self.max_values)
        else:
            require_certifiable(_functions(module), list(loaders), self.max_values)

    def _loader(self, trainer: Trainer) -> DataLoader[Any]:
        loaders = getattr(getattr(trainer, "datamodule", None), "evaluation_loaders", None)
        if loaders is None:
            raise ConfigError(
                "diagnostics need a datamodule with a method evaluation_loaders(), such as those of this package. Add "
                "the method, or set --diagnostics.enabled to false."
            )
        diagnosis: dict[str, DataLoader[Any]] = loaders()
        if self.split not in diagnosis:
            raise ConfigError(
                f"diagnostics.split {self.split!r} is not evaluated, only {sorted(diagnosis)}. Choose one of these; "
                "for images, --data.eval_train true adds train."
            )
        return diagnosis[self.split]

    def _loaders(self, trainer: Trainer) -> dict[str, DataLoader[Any]]:
        """The loaders of all data sets of objective and constraints, by the part of a training batch."""
        loader = self._loader(trainer)
        part_loaders = getattr(trainer.datamodule, "part_loaders", None)  # type: ignore[attr-defined]
        return {TARGET: loader} if part_loaders is None else part_loaders(self.split)

    def _measure(self, trainer: Trainer, module: FCCOModule) -> None:
        measured = self._group_diagnosis if self._is_group_objective(module) else self._certificates
        with module.where_trained():
            diagnosis = measured(trainer, module)
        folder = Path(self.folder or trainer.log_dir or trainer.default_root_dir)  # log_dir is a collective call
        if not trainer.is_global_zero:
            return
        self.diagnosis = {"split": self.split} | diagnosis
        path = write_report(self.diagnosis, folder / "diagnostics.json")
        self._log(trainer, self.diagnosis)
        print_tables(diagnosis_tables(self.diagnosis, PRINTED_ROWS))
        rank_zero_info(f"Diagnostics: {path}")

    def _log(self, trainer: Trainer, diagnosis: Mapping[str, Any]) -> None:
        values = {f"diagnostics/{name}": value for name, value in _scalars(diagnosis).items()}
        for logger in trainer.loggers if values else ():
            logger.log_metrics(values, step=max(0, trainer.global_step - 1))
            logger.save()

    def _group_diagnosis(self, trainer: Trainer, module: FCCOModule) -> dict[str, Any]:
        batches = _moved(module, self._loader(trainer))
        jacobian_of_all = jacobian(_functions(module), batches, module.processes, self.max_values)
        problem = None if module.phases.pretraining else module.problem
        remembered = None if problem is None else remembered_duals(module.algorithm, problem.all_terms)
        if not trainer.is_global_zero:
            return {}
        algorithm = module.algorithm
        smoothing = algorithm.smoothing_of(module.objective) if isinstance(algorithm, Estimation) else None
        smoothing_lam = smoothing.lam if isinstance(smoothing, MoreauSmoothing) else None
        return diagnose(module.objective, jacobian_of_all, smoothing_lam if self.lam is None else self.lam, remembered)

    def _certificates(self, trainer: Trainer, module: FCCOModule, *, own_only: bool = False) -> dict[str, Any]:
        """The certificates with the run's own multipliers, if they are known, and with the best ones."""
        loaders = self._loaders(trainer)
        with torch.inference_mode(False):  # these tensors need gradients later
            samples = _samples(module, loaders)
            run_multipliers = _own_multipliers(module, samples)
            certificates = {
                name: certificate(
                    _functions(module),
                    samples,
                    {part: _moved(module, loader) for part, loader in loaders.items()},
                    multipliers,
                    module.processes,
                    self.max_values,
                )
                for name, multipliers in (("own", run_multipliers), ("best", None))
                if (name == "best" and not own_only) or multipliers is not None
            }
        names = unique_names(module.constraints)
        residuals = {k: {n: v for n, v in c._asdict().items() if isinstance(v, float)} for k, c in certificates.items()}
        return residuals | {"constraints": _records(names, certificates)}


def _functions(module: FCCOModule) -> InnerFunctions:
    return InnerFunctions(module.network, module.objective, module.constraints)


def _samples(module: FCCOModule, loaders: Mapping[str, DataLoader[Any]]) -> Samples:
    """Outputs and columns of whole data sets on the module's device, with parameters of single samples as a column."""
    splits = {part: module.evaluate(loader) for part, loader in loaders.items()}
    moved = pytree.tree_map(lambda leaf: leaf.to(module.device), splits)
    columns: Batch = {part: c for part, (_, c) in moved.items()}
    row_parameters = None if module.problem is None else module.problem.row_parameters
    outputs = {part: o for part, (o, _) in moved.items()}
    return Samples(outputs, columns if row_parameters is None else row_parameters.attach(columns))


def _own_multipliers(module: FCCOModule, samples: Samples) -> list[float] | None:
    """The run's multipliers of the constraints' gradients; None if they are not known."""
    if module.problem is None or module.phases.pretraining or not module.algorithm.penalises:
        return None
    if len(module.problem.constraints) < bool(module.constraints):
        return None
    penalty = module.problem.penalty
    if not isinstance(penalty, Penalty):
        return list(module.problem.multipliers().values())
    smoothing = getattr(module.algorithm, "smoothing", None)
    return penalty_multipliers(penalty, module.constraints, samples, smoothing)


def _records(names: Sequence[str], certificates: Mapping[str, Certificate]) -> list[dict[str, Any]]:
    """A record for every constraint, those with the largest multipliers first."""
    some = next(iter(certificates.values()), None)
    records = [
        {"constraint": name, "h": h} | {f"{kind} multiplier": c.multipliers[i] for kind, c in certificates.items()}
        for i, (name, h) in enumerate(zip(names, some.values if some else (), strict=False))
    ]
    return sorted(records, key=lambda record: -float(list(record.values())[-1]))


def _moved(module: FCCOModule, loader: DataLoader[Any]) -> Iterator[dict[str, Tensor]]:
    for batch in loader:
        yield module.received(batch)


def _scalars(diagnosis: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    """All numbers of a diagnosis, by their path, without the grid of stationarity."""
    values: dict[str, float] = {}
    for name, value in diagnosis.items():
        if isinstance(value, Mapping):
            values |= _scalars(value, f"{prefix}{name}/")
        elif isinstance(value, int | float):
            values[f"{prefix}{name}"] = float(value)
    return values


def diagnosis_tables(diagnosis: Mapping[str, Any], most: int | None = None) -> list[Table]:
    """Tables of a diagnosis's figures and of the ``most`` constraints (None for all) with the largest multipliers."""
    figures = [
        {"figure": name.replace("/", ": ").replace("_", " "), "value": Text(f"{value:.6g}")}
        for name, value in _scalars(diagnosis).items()
    ]
    table = render_records(f"Diagnostics ({diagnosis['split']})", figures)
    records = diagnosis.get("constraints")
    return [table, render_records("Constraints, largest multipliers first", records[:most])] if records else [table]
