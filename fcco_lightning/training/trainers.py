"""Settings of a Trainer that a module of this package cannot follow, each refused with what to use instead."""

from lightning.pytorch import Trainer
from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy
from lightning.pytorch.strategies.launchers import _MultiProcessingLauncher

from fcco_lightning.errors import CheckpointError, ConfigError


def require_whole_weights(trainer: Trainer) -> None:
    """Refuse strategies that divide the weights.

    Raises:
        ConfigError: naming the strategy.
    """
    if not isinstance(trainer.strategy, SingleDeviceStrategy | DDPStrategy):
        raise ConfigError(
            f"strategy {type(trainer.strategy).__name__}: the weights must be whole on every process. Use "
            "--trainer.strategy ddp."
        )


def require_batches(trainer: Trainer) -> None:
    """Refuse a fit that would train nothing without a word, or on other batches than its own.

    Raises:
        ConfigError: naming the setting.
    """
    if share := trainer.overfit_batches:  # type: ignore[attr-defined]
        raise ConfigError(
            f"overfit_batches={share} is refused: it would replace the batches' own way of drawing samples. Train on a "
            "small table, or shorten epochs with --trainer.limit_train_batches."
        )
    if trainer.limit_train_batches == 0:
        raise ConfigError(
            f"limit_train_batches={trainer.limit_train_batches} is refused: it would train nothing, and report the "
            "weights of the start. Give a number of batches >= 1 or a share of an epoch; to evaluate weights, use "
            "`fcco validate`, or Trainer.validate."
        )


def require_rows(trainer: Trainer | None) -> None:
    """Refuse to save in the process that launched others, after they have ended and their rows with them.

    Args:
        trainer: of the module; None where it has let go of it after such a fit.

    Raises:
        CheckpointError: naming the way out.
    """
    if trainer is None or isinstance(trainer.strategy.launcher, _MultiProcessingLauncher):
        raise CheckpointError(
            "the dual state was in the processes that Trainer.fit started, which have ended: a checkpoint of this "
            "process would lack it. Save during the fit, with fcco_lightning.callbacks.Checkpoints, or start the "
            "processes with --trainer.strategy ddp or torchrun."
        )
