"""What theory says of the solution, measured: at the end of a fit, or of a checkpoint."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from lightning.fabric.utilities.rank_zero import rank_zero_info  # type: ignore[attr-defined]
from lightning.pytorch import Callback, LightningModule, Trainer
from rich.table import Table
from torch import Tensor
from torch.utils.data import DataLoader

from fcco_lightning.analysis import MAX_VALUES, diagnose, jacobian, remembered_duals, required_size
from fcco_lightning.callbacks.summary_table import write_report
from fcco_lightning.checks import positive
from fcco_lightning.engine import InnerFunctions
from fcco_lightning.errors import ConfigError
from fcco_lightning.outer import MoreauSmoothing
from fcco_lightning.training import FCCOModule


class Diagnostics(Callback):
    r"""Measures, on a whole split, what the analysis of a group objective is about.

    The least eigenvalue of the Gram matrix of the exact inner functions' gradients (SONEX paper, Assumption 4.3 and
    Table 6), how many dual values are active and how large they are (Omega_y^0, ALEXR paper, Remark F.1), and the eps
    for which the solution is approximately eps-stationary (SONEX paper, Def. 4.1); see
    :func:`fcco_lightning.analysis.diagnose`.

    It runs at the end of ``fit``, and of ``test`` and ``validate`` on a checkpoint (``fcco test --config C --ckpt_path
    P --diagnostics.enabled true``), where the rows that the algorithm keeps are not known.  Writes
    ``diagnostics.json``, prints a table, and logs ``diagnostics/...``.  It costs a forward and a backward pass for
    every group in every evaluation batch: a large ``eval_batch_size`` is faster.

    Args:
        enabled: whether to do so.
        split: "train", "val" or "test".
        lam: smoothing at which stationarity is reported, > 0; None for the algorithm's, if it has one.
        max_values: most values of the Jacobian and of its Gram matrix, > 0; they lie on the CPU.
        folder: where to write; None for the logger's folder of this run.

    Raises:
        ConfigError: if a number is not positive, and before anything runs: if the objective is not made of groups'
            risks, constraints are penalised, the split is not evaluated, or there are too many values.
    """

    def __init__(
        self,
        enabled: bool = False,
        split: str = "train",
        lam: float | None = None,
        max_values: float = MAX_VALUES,
        folder: str | None = None,
    ) -> None:
        self.enabled, self.split, self.folder = enabled, split, folder
        self.lam = None if lam is None else positive("lam", lam)
        self.max_values = positive("max_values", max_values)
        self.diagnosis: dict[str, Any] = {}

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Find out now, not after hours, what is not possible."""
        self._check(trainer, pl_module)

    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """As at the start of a fit."""
        self._check(trainer, pl_module)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """As at the start of a fit."""
        if trainer.state.fn == "validate":
            self._check(trainer, pl_module)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Measure the final weights."""
        if not trainer.interrupted:
            self._measure(trainer, pl_module)

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Measure the checkpoint's weights."""
        self._measure(trainer, pl_module)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Measure the checkpoint's weights."""
        if trainer.state.fn == "validate":
            self._measure(trainer, pl_module)

    def _check(self, trainer: Trainer, module: LightningModule) -> None:
        if not self.enabled or not isinstance(module, FCCOModule):
            return
        self._loader(trainer)
        if module.algorithm.posed(module.objective, module.constraints)[1]:
            raise ConfigError(
                f"diagnostics are of an objective alone, this run penalises {len(module.constraints)} constraints. "
                "Switch diagnostics off."
            )
        module.objective.adapt(getattr(trainer, "datamodule", None))
        required_size(self._functions(module), self.max_values)

    def _loader(self, trainer: Trainer) -> DataLoader[Any]:
        loaders = getattr(getattr(trainer, "datamodule", None), "evaluation_loaders", None)
        if loaders is None:
            raise ConfigError("diagnostics need a datamodule with evaluation_loaders(), as those of this package.")
        diagnosis: dict[str, DataLoader[Any]] = loaders()
        if self.split not in diagnosis:
            raise ConfigError(
                f"diagnostics.split {self.split!r} is not evaluated, only {sorted(diagnosis)}. Choose one of them; for "
                "images --data.eval_train true adds train."
            )
        return diagnosis[self.split]

    def _functions(self, module: FCCOModule) -> InnerFunctions:
        return InnerFunctions(module.network, module.objective, [])

    def _measure(self, trainer: Trainer, module: LightningModule) -> None:
        if not self.enabled or not isinstance(module, FCCOModule):
            return
        batches = _moved(module, self._loader(trainer))
        jacobian_of_all = jacobian(self._functions(module), batches, module.processes, self.max_values)
        remembered = (
            None
            if module.problem is None or module.pretraining
            else remembered_duals(module.algorithm, module.problem.all_terms)
        )
        folder = Path(self.folder or trainer.log_dir or trainer.default_root_dir)  # log_dir asks all processes
        if not trainer.is_global_zero:
            return
        smoothing = getattr(module.algorithm, "smoothing", None)
        own = smoothing.lam if isinstance(smoothing, MoreauSmoothing) else None
        self.diagnosis = {"split": self.split} | diagnose(
            module.objective, jacobian_of_all, own if self.lam is None else self.lam, remembered
        )
        path = write_report(self.diagnosis, folder / "diagnostics.json")
        values = {f"diagnostics/{name}": value for name, value in _scalars(self.diagnosis).items()}
        for logger in trainer.loggers:
            logger.log_metrics(values, step=max(0, trainer.global_step - 1))
            logger.save()
        _print(self.diagnosis)
        rank_zero_info(f"Diagnostics: {path}")


def _moved(module: FCCOModule, loader: DataLoader[Any]) -> Iterator[dict[str, Tensor]]:
    for batch in loader:
        yield module.transfer_batch_to_device(batch, module.device, 0)


def _scalars(diagnosis: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    """All numbers, by the path to them; of stationarity not the grid."""
    values: dict[str, float] = {}
    for name, value in diagnosis.items():
        if isinstance(value, Mapping):
            values |= _scalars(value, f"{prefix}{name}/")
        elif isinstance(value, int | float):
            values[f"{prefix}{name}"] = float(value)
    return values


def _print(diagnosis: Mapping[str, Any]) -> None:
    from rich.console import Console  # noqa: PLC0415 - only where a table is printed

    table = Table("figure", title=f"Diagnostics ({diagnosis['split']})")
    table.add_column("value", justify="right")
    for name, value in _scalars(diagnosis).items():
        table.add_row(name.replace("/", ": ").replace("_", " "), f"{value:.6g}")
    Console().print(table)
