"""Lightning's callbacks that cannot do their work here, each with what does it instead."""

from collections.abc import Sequence

from lightning.pytorch import Callback, LightningModule
from lightning.pytorch.callbacks import (
    BackboneFinetuning,
    BatchSizeFinder,
    GradientAccumulationScheduler,
    LearningRateFinder,
    ModelCheckpoint,
    ModelPruning,
    SpikeDetection,
    StochasticWeightAveraging,
    WeightAveraging,
)

from fcco_lightning.errors import ConfigError

_AVERAGE = (
    "Use --model.average.decay 0.999 for an exponential moving average of the weights, or --model.average.decay null "
    "for their mean; it is validated, reported and part of every checkpoint."
)
REFUSED: dict[type[Callback], str] = {
    WeightAveraging: "it averages the rows of the dual state as if they were weights, and its checkpoints lack them. "
    + _AVERAGE,
    StochasticWeightAveraging: "its pass for the statistics of BatchNorm would go on training. " + _AVERAGE,
    GradientAccumulationScheduler: "the gradient of several small batches is not that of a large one. Set the batch "
    "size of the data, and --model.execution.micro_batch to what passes through the network at once.",
    BatchSizeFinder: "the batch size is part of the method here, not of the memory. Choose it with the data, and set "
    "--model.execution.micro_batch to what fits into the memory.",
    LearningRateFinder: "it follows the loss of training_step, and the surrogate's value means nothing. Compare the "
    "logged train_objective of short runs with several --model.optimizer.init_args.lr.",
    SpikeDetection: "it follows the loss of training_step, and the surrogate's value means nothing. Use "
    "--model.execution.skip_nonfinite true and --model.clipping.value.",
    ModelPruning: "it replaces the weights by others under new names, which the algorithm's memory of them and every "
    "checkpoint contradict. Prune the trained network with torch.nn.utils.prune, and remove its masks before a fit.",
}
"""Why a callback, or one derived of it, is refused, and the way out."""
_NO_BACKBONE = (
    "the module has no part of that name. Derive a callback of BaseFinetuning, whose freeze_before_training freezes "
    "layers of module.network, or give a subclass of FCCOModule an attribute `backbone`."
)
_NO_INTERVAL = (
    "with train_time_interval it would save nothing, since Lightning leaves the interval out where a module optimizes "
    "by itself. Use fcco_lightning.training.Checkpoints, which takes the same arguments, or every_n_train_steps."
)


def require_usable(callbacks: Sequence[Callback], module: LightningModule) -> None:
    """Refuse callbacks that would fail in the middle of training, or silently do something else.

    Args:
        callbacks: of the Trainer.
        module: that is going to be trained.

    Raises:
        ConfigError: naming the callback, the reason and what to use instead.
    """
    for callback in callbacks:
        reason = _objection(callback, module)
        if reason is not None:
            raise ConfigError(f"the callback {type(callback).__name__} is refused: {reason}")


def _objection(callback: Callback, module: LightningModule) -> str | None:
    if isinstance(callback, BackboneFinetuning) and not hasattr(module, "backbone"):
        return _NO_BACKBONE
    if (
        isinstance(callback, ModelCheckpoint)
        and callback._train_time_interval is not None
        and type(callback).on_train_batch_end is ModelCheckpoint.on_train_batch_end
    ):
        return _NO_INTERVAL
    return next((reason for kind, reason in REFUSED.items() if isinstance(callback, kind)), None)
