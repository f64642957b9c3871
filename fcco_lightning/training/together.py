"""Comparison of settings between the processes before the first hook, and ending all processes if one fails."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from inspect import signature
from typing import Any

from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import ProgressBar

from fcco_lightning.state.processes import Processes, require_same_everywhere

_TO_HEAR = 3.0  # seconds for the other processes to reach an exchange, in which they learn of the failure
_SETTINGS = (
    "accumulate_grad_batches",
    "check_val_every_n_epoch",
    "gradient_clip_algorithm",
    "gradient_clip_val",
    "limit_predict_batches",
    "limit_test_batches",
    "limit_train_batches",
    "limit_val_batches",
    "max_epochs",
    "max_steps",
    "min_epochs",
    "min_steps",
    "num_sanity_val_steps",
    "precision",
    "reload_dataloaders_every_n_epochs",
    "val_check_interval",
    "_val_check_time_interval",
)
_PLAIN = bool | int | float | str | timedelta
_OF_ONE_PROCESS = ("dirpath", "folder", "verbose")  # arguments of callbacks that may differ between processes


class Announce(Callback):
    """Informs the other processes if this one fails; if another one fails, adds its error to the one raised here.

    It must be the first callback: other callbacks may need all processes to handle an exception.
    """

    def on_exception(self, trainer: Trainer, pl_module: Any, exception: BaseException) -> None:  # noqa: ARG002
        if hasattr(pl_module, "processes"):  # the Trainer may now be used with another module
            announce(pl_module.processes, exception)

    def teardown(self, trainer: Trainer, pl_module: Any, stage: str) -> None:  # noqa: ARG002
        if hasattr(pl_module, "processes") and pl_module.processes.watch is not None:
            pl_module.processes.watch.stop()


def announce(processes: Processes, exception: BaseException) -> None:
    """Report an exception to all processes, and end the watch over them."""
    if processes.watch is not None:
        processes.watch.explain(exception)
    if isinstance(exception, Exception):
        processes.fail(exception, timeout=_TO_HEAR)
    if processes.watch is not None:
        processes.watch.stop()
        processes.watch.forget()


def begin_together(trainer: Trainer, module: Any) -> None:
    """Make the processes compare their settings as soon as they can communicate, before the first hook.

    Raises:
        ConfigError: at that time, if their settings differ.
    """
    present, strategy = settings(trainer, module), trainer.strategy
    join = type(strategy).setup_environment

    def joined() -> None:
        join(strategy)
        if module.processes.size != trainer.world_size:
            module.processes = Processes.apart()
        if module.processes.watch is not None:
            module.processes.watch.start()
            require_same_everywhere(module.processes, present)

    strategy.setup_environment = joined  # type: ignore[method-assign]


@contextmanager
def joined_by_failure(trainer: Trainer, module: Any) -> Iterator[None]:
    """If the body fails before the processes can communicate, join the process group and inform the others."""
    try:
        yield
    except Exception as error:
        if trainer.num_nodes * trainer.num_devices > 1:
            trainer.strategy.setup_environment()
            announce(module.processes, error)
        raise


def settings(trainer: Trainer, module: Any) -> dict[str, str]:
    """The settings of a Trainer and a module that determine the sequence of steps and exchanges, by name."""
    values = {name: str(getattr(trainer, name, None)) for name in _SETTINGS}  # some intervals are absent
    values |= {
        "command": str(trainer.state.fn),
        "strategy": type(trainer.strategy).__name__,
        "ckpt_path": "given" if trainer.ckpt_path else "none",
        "validation": str(trainer.enable_validation),
    }
    callbacks = [c for c in trainer.callbacks if not isinstance(c, ProgressBar)]  # type: ignore[attr-defined]
    values["callbacks"] = str([type(c).__name__ for c in callbacks])
    for name in ("algorithm", "objective", "evaluation", "average"):
        part = getattr(module, name)
        values[name] = "None" if part is None else f"{type(part).__name__} {_arguments(part)}"
    values["decisions"] = str(module.rule.state()["asked"])
    for name in ("execution", "clipping", "schedule"):
        values |= {f"{name}.{key}": value for key, value in _arguments(getattr(module, name)).items()}
    for number, callback in enumerate(callbacks):
        if type(callback).__module__.partition(".")[0] in ("lightning", "fcco_lightning"):
            prefix = f"callback {number} ({type(callback).__name__})"
            values |= {f"{prefix}.{key}": value for key, value in _arguments(callback).items()}
    return values


def _arguments(part: object) -> dict[str, str]:
    """The arguments of a part that are plain values and must agree between the processes."""
    names = [name for name in signature(type(part)).parameters if name not in _OF_ONE_PROCESS]
    values = {name: getattr(part, name, getattr(part, f"_{name}", None)) for name in names}
    return {name: str(value) for name, value in values.items() if isinstance(value, _PLAIN | None)}
