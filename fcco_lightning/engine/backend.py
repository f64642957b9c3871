"""How gradients are computed and optimizers stepped, which differs between a bare loop and a Trainer."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from fcco_lightning.errors import ConfigError


class Backend:
    """A bare PyTorch loop, which clips no gradients and scales no losses; subclasses are for other loops.

    Attributes:
        scaler: the loss scaler of half precision, which keeps small gradients from underflow and skips steps whose
            gradients overflowed; None without.
        averages: whether :meth:`backward` averages gradients over the processes; otherwise the engine does.
    """

    scaler: torch.amp.GradScaler | None = None
    averages: bool = False

    @property
    def plain(self) -> bool:
        """Whether :meth:`backward` is torch's, so that gradients may be computed together with the value."""
        return type(self).backward is Backend.backward

    def backward(
        self, value: Tensor, leaves: Sequence[Tensor], gradients: Sequence[Tensor | None] | None = None
    ) -> None:
        """Compute the gradient of ``value`` into ``.grad`` of the leaves, scaled if there is a scaler.

        Args:
            value: the scalar to differentiate.
            leaves: the trained parameters, followed by the parameters of single samples.
            gradients: the gradients of the leaves, if they were computed together with the value, which has no graph
                then; None for a leaf that the value does not depend on.
        """
        if gradients is None:
            value.backward()  # type: ignore[no-untyped-call]
            return
        for leaf, gradient in zip(leaves, gradients, strict=True):
            leaf.grad = gradient

    def step(self, optimizer: Optimizer, *, inner: bool, from_backward: bool, clip: bool) -> None:  # noqa: ARG002
        """Let an optimizer step.

        Args:
            optimizer: the optimizer.
            inner: whether it is an inner iteration, which does not count as an update of w.
            from_backward: whether ``.grad`` was computed by :meth:`backward`; otherwise the algorithm has set it.
            clip: whether gradients are clipped, if the user asked for that.
        """
        optimizer.step()


def require_own(optimizer: Optimizer, params: Sequence[Tensor], objective: nn.Module) -> None:
    """Refuse an optimizer that evaluates a batch several times, or lacks parameters that must be trained.

    Args:
        optimizer: the user's optimizer.
        params: the trained parameters, of which it must hold some.
        objective: the objective, all of whose parameters (a CVaR threshold, a temperature) it must hold.

    Raises:
        ConfigError: naming it.
    """
    require_one_evaluation(optimizer)
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    if not any(id(p) in held for p in params):
        raise ConfigError(
            f"the optimizer {type(optimizer).__name__} holds no parameter of the network that the engine trains, so "
            "the network would not change. Create the optimizer from its parameters: Adam(network.parameters())."
        )
    left_out = [name for name, p in objective.named_parameters() if p.requires_grad and id(p) not in held]
    if left_out:
        raise ConfigError(
            f"{type(objective).__name__} has trainable parameters, and the optimizer {type(optimizer).__name__} "
            f"does not hold {', '.join(left_out)}, which would never change. Pass all trained parameters, "
            "Adam(engine.params), or self.parameters() of a LightningModule; or freeze the objective's, "
            "objective.requires_grad_(False), before the engine is created."
        )


def require_one_evaluation(optimizer: Optimizer) -> None:
    """Refuse an optimizer that evaluates a batch several times.

    Raises:
        ConfigError: naming it.
    """
    if type(optimizer).__name__ == "LBFGS":
        raise ConfigError(
            "LBFGS evaluates a batch several times; the dual state allows one evaluation per batch. Use another "
            "optimizer, such as Adam or SGD."
        )
