"""Weights that are sharded over the processes: FSDP2 through Lightning's ``ModelParallelStrategy``."""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.strategies import DDPStrategy, ModelParallelStrategy, SingleDeviceStrategy, Strategy
from torch import Tensor, nn

from fcco_lightning.algorithms import MSVR, OOA, DoubleLoop, SingleLoop
from fcco_lightning.errors import ConfigError
from fcco_lightning.state.processes import Processes
from fcco_lightning.state.sharded import is_gathered, is_sharded, parts_of, sharded_as

_SHARING = (SingleLoop, DoubleLoop, MSVR, OOA)  # they need neither second derivatives nor gradients of one process
_PATIENCE = 10.0  # seconds for the others to notice a failure, unless they wait for a part of the weights


class ShardedWeights(ModelParallelStrategy):
    """Lightning's strategy with the checkpoints of this package, which are written completely or not at all.

    Every process holds a part of the weights, of their gradients, of the optimizer's state and of the weights that an
    algorithm stores.  A block's weights are gathered while it is evaluated, and freed afterwards.
    """

    restore_checkpoint_after_setup = Strategy.restore_checkpoint_after_setup
    lightning_restore_optimizer = Strategy.lightning_restore_optimizer
    lightning_module_state_dict = Strategy.lightning_module_state_dict
    optimizer_state = Strategy.optimizer_state
    save_checkpoint = Strategy.save_checkpoint
    load_checkpoint = Strategy.load_checkpoint

    def setup_environment(self) -> None:
        """Shard the weights over all processes.

        Raises:
            ConfigError: if tensor parallelism is asked for, too.
        """
        if self._tensor_parallel_size not in ("auto", 1):
            raise ConfigError(
                f"tensor_parallel_size={self._tensor_parallel_size} of ModelParallelStrategy is refused: layers are "
                "computed whole, only their weights are sharded. Leave it out, or set it to 1."
            )
        everyone = self.num_nodes * self.num_processes
        if self._data_parallel_size not in ("auto", everyone):
            raise ConfigError(
                f"data_parallel_size={self._data_parallel_size} of ModelParallelStrategy is refused: the weights are "
                f"sharded over all {everyone} processes. Leave it out."
            )
        self._data_parallel_size, self._tensor_parallel_size = everyone, 1
        super().setup_environment()

    def load_model_state_dict(self, checkpoint: Mapping[str, Any], strict: bool = True) -> None:
        """Load this process's part of every weight."""
        assert self.lightning_module is not None  # noqa: S101
        present = self.lightning_module.state_dict()
        stored = {k: sharded_as(v, present.get(k)) for k, v in checkpoint["state_dict"].items()}
        self.lightning_module.load_state_dict(stored, strict=strict)

    def load_optimizer_state_dict(self, checkpoint: Mapping[str, Any]) -> None:
        """Load this process's part of the optimizer's state."""
        for optimizer, stored in zip(self.optimizers, checkpoint["optimizer_states"], strict=True):
            params = [p for group in optimizer.param_groups for p in group["params"]]
            for number, state in stored["state"].items():
                stored["state"][number] = {name: _as(value, params[number]) for name, value in state.items()}
        Strategy.load_optimizer_state_dict(self, checkpoint)


def _as(value: Any, parameter: Tensor) -> Any:
    return sharded_as(value, parameter) if isinstance(value, Tensor) and value.shape == parameter.shape else value


def take_strategy(trainer: Trainer) -> None:
    """Replace ``ModelParallelStrategy`` by :class:`ShardedWeights`, and refuse other strategies that shard weights.

    Raises:
        ConfigError: naming the strategy.
    """
    strategy = trainer.strategy
    if type(strategy) is ModelParallelStrategy:
        strategy.__class__ = ShardedWeights
    if not isinstance(strategy, SingleDeviceStrategy | DDPStrategy | ShardedWeights):
        raise ConfigError(
            f"strategy {type(strategy).__name__} is refused: gradients, rows and checkpoints would not be those of one "
            "process. Use --trainer.strategy ddp where the network fits on one device, and --trainer.strategy "
            "ModelParallelStrategy (FSDP2) to shard its weights over the processes."
        )


def require_shardable(trainer: Trainer, module: Any) -> None:
    """If the weights are sharded, refuse settings that need whole weights.

    Raises:
        ConfigError: naming the setting.
    """
    if not isinstance(trainer.strategy, ShardedWeights):
        return
    refused = {
        "average": module.average is not None,
        "pretrain": module.phases.pretrain is not None and not module.phases.seamless,
        "execution.compiled": module.execution.compiled,
        f"algorithm {module.algorithm.name}": not isinstance(module.algorithm, _SHARING),
    }
    for option, refuses in refused.items():
        if refuses:
            raise ConfigError(
                f"{option} needs whole weights on every process, which ModelParallelStrategy shards. Leave it out or "
                "choose another one, or use --trainer.strategy ddp, with --model.execution.micro_batch where memory is "
                "short."
            )


def shard(network: nn.Module, mesh: Any, processes: Processes) -> None:
    """Shard a network's weights over the processes, unless they are sharded already.

    The weights of the first process are used.  A network with a method ``shard(mesh)`` shards itself, by
    ``torch.distributed.fsdp.fully_shard``.  In other networks every block (see :func:`blocks_of`) is a unit, and the
    remaining layers are another one.  Parameters with a single value (``logit_scale``) are not sharded.  The mesh has
    one dimension, the processes.

    Raises:
        ConfigError: if a parameter is sharded along another dimension than the first.
    """
    from torch.distributed.fsdp import FSDPModule, fully_shard  # noqa: PLC0415 - slow to import

    if is_gathered(network):
        return
    processes.patience = _PATIENCE
    processes.copy_first_([*network.parameters(), *network.buffers()])
    own = getattr(network, "shard", None)
    if callable(own):
        own(mesh)
    else:
        single = {p for p in network.parameters() if p.dim() == 0}
        for unit in [*blocks_of(network), network]:
            fully_shard(unit, mesh=mesh, ignored_params=single)
    for module in network.modules():
        if isinstance(module, FSDPModule):
            module.set_reshard_after_forward(True)  # the root, too: a second pass is at previous weights
    _require_rows(network, mesh)


def _require_rows(network: nn.Module, mesh: Any) -> None:
    from torch.distributed.tensor import Shard  # noqa: PLC0415 - slow to import

    for name, p in network.named_parameters():
        if is_sharded(p) and (p.device_mesh != mesh or list(p.placements) != [Shard(0)]):  # type: ignore[attr-defined]
            raise ConfigError(
                f"the parameter {name} of {type(network).__name__} is sharded as {p.placements}, must be along its "  # type: ignore[attr-defined]
                "first dimension over all processes: fully_shard(module, mesh=mesh) in shard(mesh)."
            )


def blocks_of(network: nn.Module) -> list[nn.Module]:
    """The repeated blocks of a network: the members, with parameters, of lists of at least two modules of one type.

    Examples are the layers of a transformer and the blocks in a ResNet's stages.  Blocks within a block belong to it.

    Example:
        >>> layer = torch.nn.TransformerEncoderLayer(8, 2, 16)
        >>> len(blocks_of(torch.nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)))
        3
    """
    if isinstance(network, nn.ModuleList | nn.Sequential):
        inside = [child for child in network if any(True for _ in child.parameters())]
        if len(inside) > 1 and len(inside) == len(network) and len({type(child) for child in inside}) == 1:
            return inside
    return [block for child in network.children() for block in blocks_of(child)]


@torch.no_grad()
def clip(params: Iterator[Tensor], value: float, processes: Processes, *, by_value: bool) -> None:
    """Clip gradients of which some are sharded over the processes.

    Args:
        params: the parameters whose gradients are clipped in place.
        value: largest norm of all gradients together, or largest absolute value in them, > 0.
        processes: the processes of the job.
        by_value: whether to clip by value instead of by norm.
    """
    gradients = [p.grad for p in params if p.grad is not None]
    parts = parts_of(gradients)
    if by_value:
        for part in parts:
            part.clamp_(-value, value)
        return
    squares = [part.float().square().sum() for part in parts]
    zero = torch.zeros((), device=parts[0].device)
    sharded = sum((s for s, g in zip(squares, gradients, strict=True) if is_sharded(g)), zero)
    whole = sum((s for s, g in zip(squares, gradients, strict=True) if not is_sharded(g)), zero)
    norm = (processes.sum_(sharded.clone()) + whole).sqrt()
    for part in parts:
        part.mul_((value / (norm + 1e-6)).clamp(max=1.0))
