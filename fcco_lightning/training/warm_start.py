"""A callback that starts training with the weights and multipliers of another run."""

from lightning.pytorch import Callback, LightningModule, Trainer

from fcco_lightning.state.checkpoint_files import load_weights, read_file
from fcco_lightning.training.module import FCCOModule
from fcco_lightning.training.resuming.row_checkpoints import load


class WarmStart(Callback):
    """Starts a fit with the network's weights of a checkpoint, and with its multipliers if their number agrees.

    Running estimates, the optimizer, the schedule and the epochs start anew: it is a new run from another initial
    point.  ``fcco front`` uses it, since neighbouring points of a front of objective against violation have similar
    weights and multipliers.  It has no effect on a run that is resumed with ``--ckpt_path``.

    Args:
        ckpt: checkpoint of a run with the same network and constraints, whose kappas may differ; None for none.

    Raises:
        CheckpointError: when the fit begins, if the file is no checkpoint, holds the weights of another network, or
            multipliers of another set of constraints.
    """

    def __init__(self, ckpt: str | None = None) -> None:
        self.ckpt = ckpt

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Load weights and multipliers before the module's own hook uses them."""
        if self.ckpt is None or trainer.ckpt_path is not None or not isinstance(pl_module, FCCOModule):
            return
        content = read_file(self.ckpt, whole=True)
        stored = content["state_dict"]
        instead = " Name a run with the same network, or leave warm_start out."
        load_weights(pl_module.network, content, f"warm_start.ckpt={self.ckpt!r}", instead)
        widths = {name: stored[f"{name}.rows"].shape[1] for name in content["fcco"]["states"]}
        states = {k: s for k, s in pl_module.dual_states().items() if ".multipliers." in k and widths.get(k) == s.width}
        load(states, content, pl_module.processes)
        for name, buffer in pl_module.named_buffers():
            if name.endswith(".multipliers.unit") and name in stored:
                buffer.copy_(stored[name])
