"""The weights a run ends with: the best that are feasible on the validation split."""

import math
from pathlib import Path
from typing import Any

from lightning.fabric.utilities.rank_zero import rank_zero_info  # type: ignore[attr-defined]
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint

from fcco_lightning.checks import one_of
from fcco_lightning.errors import ConfigError
from fcco_lightning.training import FCCOModule


class BestFeasible(Callback):
    """Ends a run with the weights of the best validation at which all constraints held on the validation split.

    Of two validations the feasible one is better, of two feasible ones that with the better figure, and of two that are
    not feasible that with the smaller worst violation.  At the end of ``fit`` the network gets the weights of the best,
    which are also saved as ``feasible.ckpt`` (to evaluate; a run is continued from ``last.ckpt``), and :class:`Report`
    says in its last line which they are.  The kept weights are part of every checkpoint, so a resumed run chooses among
    all validations.  All processes have the same figures, hence choose alike.

    Where there is no validation split "val", or no constraint, nothing is chosen: on the training split the constraints
    hold by fitting, which is no evidence.  A split that chose the weights flatters them a little; the test split tells.

    Args:
        enabled: whether to do so.
        figure: of the validation split, to compare feasible weights by; None for the first that the evaluation shows.
        mode: "max" if larger figures are better, else "min".

    Attributes:
        chosen: ``epoch``, ``feasible``, ``worst_violation`` and the figure of the weights that are kept; empty without.

    Raises:
        ConfigError: if ``mode`` is neither, or the validation has no such figure.
    """

    def __init__(self, enabled: bool = False, figure: str | None = None, mode: str = "max") -> None:
        self.enabled, self.figure, self.mode = enabled, figure, one_of("mode", mode, ("max", "min"))
        self.chosen: dict[str, Any] = {}
        self._weights: dict[str, Any] = {}

    def state_dict(self) -> dict[str, Any]:
        """The weights that are best so far; nothing before the first validation."""
        return {"chosen": self.chosen, "weights": self._weights} if self.chosen else {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Choose among the validations before the checkpoint, too."""
        self.chosen, self._weights = dict(state_dict.get("chosen", {})), dict(state_dict.get("weights", {}))

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Keep the weights if they are the best so far."""
        if not self.enabled or trainer.sanity_checking or trainer.state.fn != "fit":
            return
        if not isinstance(pl_module, FCCOModule):
            return
        figures = pl_module.last_summaries.get("val", {})
        if "worst_violation" not in figures:
            return
        name = self.figure or pl_module.evaluation.bar[0]
        if name not in figures:
            raise ConfigError(f"feasible.figure={name!r} is not a figure of the validation: {sorted(figures)}.")
        worst = figures["worst_violation"]
        candidate = {
            "epoch": trainer.current_epoch,
            "feasible": worst <= 0,  # NaN is not
            "worst_violation": worst,
            name: figures[name],
        }
        if not self.chosen or self._rank(candidate, name) > self._rank(self.chosen, name):
            self.chosen = candidate
            self._weights = {k: v.detach().cpu().clone() for k, v in pl_module.network.state_dict().items()}

    def _rank(self, candidate: dict[str, Any], name: str) -> tuple[bool, float]:
        value = candidate[name] * (1 if self.mode == "max" else -1)
        rank = value if candidate["feasible"] else -candidate["worst_violation"]
        return candidate["feasible"], -math.inf if math.isnan(rank) else rank

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Put the best weights in place, before anything is reported of them."""
        if not self.chosen or trainer.interrupted or not isinstance(pl_module, FCCOModule):
            return
        pl_module.network.load_state_dict(self._weights)
        saver = trainer.checkpoint_callback
        if isinstance(saver, ModelCheckpoint) and saver.dirpath:
            trainer.save_checkpoint(Path(saver.dirpath) / "feasible.ckpt")
        rank_zero_info(chosen_line(self.chosen))


def chosen_line(chosen: dict[str, Any]) -> str:
    """Say of which epoch the weights are, and whether they are feasible.

    Example:
        >>> chosen_line({"epoch": 3, "feasible": False, "worst_violation": 0.0123})
        'No epoch was feasible on the validation split; these are the weights of epoch 3, violated least (h +0.012).'
    """
    if chosen["feasible"]:
        return f"The weights are those of epoch {chosen['epoch']}, the best that is feasible on the validation split."
    return (
        "No epoch was feasible on the validation split; these are the weights of epoch "
        f"{chosen['epoch']}, violated least (h {chosen['worst_violation']:+.3f})."
    )
