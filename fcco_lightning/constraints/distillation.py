"""Distillation of the old model as a constraint, and as the penalty of learning without forgetting."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.nn.functional import kl_div, log_softmax

from fcco_lightning.checks import non_negative, positive
from fcco_lightning.constraints.forgetting import ProtectedTasks
from fcco_lightning.errors import DataError
from fcco_lightning.models.batch import Columns
from fcco_lightning.outer import Range


class Distillation(ProtectedTasks):
    r"""``h_k(w) = (1/|D_k|) sum_{i in D_k} KL(p_i(w_old) || p_i(w)) - kappa <= 0`` for every protected task k.

    ``p_i(w) = softmax(z_i(w) / T)`` are the class probabilities of sample i at temperature T, with logits z_i of shape
    (C,); w_old are the weights from which training starts.  The divergence, in nats, is 0 where the odds of the classes
    are those of the old model, right or wrong.  The old model's logits are the column ``old_logits``, shape (n, C).

    With ``kappa=0`` and ``HingePenalty(rho)`` it is learning without forgetting (LwF; Li and Hoiem, 2018), on whose
    distillation loss the hinge does nothing, as that is never negative: the problem becomes
    ``F(w) + (rho/m) sum_k KL_k(w)``.  There the old model is distilled on the new task's samples, as nothing else is
    kept; here on those of the protected tasks, which the other constraints are measured on, too.

    Args:
        temperature: T > 0; Li and Hoiem (2018) take 2.
        kappa: the divergence that a task may have, in nats, >= 0.  Multipliers need one > 0: at 0 nothing may change.
        names: of the tasks; None takes them from the datamodule.

    Raises:
        ConfigError: if an argument is out of range.
    """

    range = Range(least=0.0)
    remembered = "old_logits"

    def __init__(self, temperature: float = 2.0, kappa: float = 0.0, names: Sequence[str] | None = None) -> None:
        super().__init__(non_negative("kappa", kappa), names)
        self.temperature = positive("temperature", temperature)

    def reference(self, outputs: Any, batch: Columns) -> dict[str, Tensor]:  # noqa: ARG002
        """``old_logits``, shape (n, C), float32."""
        return {self.remembered: outputs.detach().float()}

    def change(self, outputs: Any, batch: Columns, old: Tensor) -> Tensor:  # noqa: ARG002
        """``KL(p(w_old) || p(w))``."""
        if not isinstance(outputs, Tensor) or outputs.dim() != 2:
            got = f"shape {tuple(outputs.shape)}" if isinstance(outputs, Tensor) else f"a {type(outputs).__name__}"
            raise DataError(
                f"Distillation needs class logits, shape (B, C), got {got}. Use a network that returns them."
            )
        now, before = (log_softmax(z / self.temperature, 1) for z in (outputs, old.to(outputs.dtype)))
        return kl_div(now, before, reduction="none", log_target=True).sum(1)
