"""An engine's backward passes through Fabric."""

from collections.abc import Sequence

from lightning.fabric import Fabric
from torch import Tensor

from fcco_lightning.engine import Backend
from fcco_lightning.errors import ConfigError
from fcco_lightning.state.processes import Processes


class FabricBackend(Backend):
    """For an :class:`~fcco_lightning.Engine` in a loop with Fabric: mixed precision, and several processes by DDP.

    Make it behind ``fabric.launch()`` and ``fabric.setup``.

    Args:
        fabric: whose ``backward`` is called.

    Raises:
        ConfigError: if the precision scales losses, which makes the gradient's unit another one than the engine's.
    """

    def __init__(self, fabric: Fabric) -> None:
        super().__init__(Processes())
        self.fabric = fabric
        if getattr(fabric.strategy.precision, "scaler", None) is not None:
            raise ConfigError(
                "Fabric(precision='16-mixed') scales losses, and the engine looks at gradients. Use 'bf16-mixed' or "
                "'32-true', or an FCCOModule, which undoes the scaling."
            )

    def backward(self, surrogate: Tensor, leaf: Tensor | None = None) -> Tensor | None:
        """``fabric.backward``."""
        self.fabric.backward(surrogate)
        return None if leaf is None else leaf.grad

    def synchronise(self, params: Sequence[Tensor]) -> None:
        """Nothing: DistributedDataParallel averages during backward."""
