"""How gradients are computed and optimizers stepped: what differs between a bare loop and a Trainer."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.optim import Optimizer

from fcco_lightning.state.processes import Processes


class Backend:
    """A bare PyTorch loop, which clips no gradients and scales no losses; subclasses are for other loops.

    Args:
        processes: of the job; this one alone by default.

    Attributes:
        drops_overflows: whether a step with gradients that are not finite is dropped by the step itself, as a loss
            scaler does.
    """

    drops_overflows: bool = False

    def __init__(self, processes: Processes | None = None) -> None:
        self.processes = processes or Processes()

    def backward(self, estimate: Tensor, params: Sequence[Tensor], leaf: Tensor | None = None) -> Tensor | None:
        """Leave the gradient of ``estimate`` in ``.grad``, averaged over the processes.

        Args:
            estimate: what is differentiated, a scalar.
            params: the parameters.
            leaf: a further tensor with respect to which it is differentiated, such as parameters of samples; None for
                none.

        Returns: the gradient with respect to the leaf, in true units; None where the estimate does not depend on it.
        """
        estimate.backward()  # type: ignore[no-untyped-call]
        if self.processes.size > 1:
            self.processes.average_([p.grad for p in params if p.grad is not None])
        return None if leaf is None else leaf.grad

    def takes_gradients(self, params: Sequence[Tensor]) -> bool:
        """Whether gradients that were computed with the estimate may take the place of a backward pass.

        They may not where a subclass has a backward pass of its own, or a parameter has hooks.
        """
        return type(self).backward is Backend.backward and not hooked(params)

    def put(self, value: Tensor, params: Sequence[Tensor], gradients: Sequence[Tensor | None]) -> None:  # noqa: ARG002
        """Leave gradients that were computed with the estimate in ``.grad``, as :meth:`backward` would.

        Args:
            value: the estimate's, without graph.
            params: the parameters.
            gradients: of their shapes; None for one that the estimate does not depend on.
        """
        for p, g in zip(params, gradients, strict=True):
            p.grad = g

    def gradients(
        self, estimate: Tensor, weights: Sequence[Tensor], *, keep: bool = False, graph: bool = False
    ) -> Sequence[Tensor | None]:
        """This process's gradients with respect to other tensors, in the unit of ``.grad`` when a step runs.

        Args:
            estimate: what is differentiated, a scalar.
            weights: with respect to what.
            keep: whether the estimate's graph is kept for what shares it.
            graph: whether the gradients have a graph of their own, for second derivatives; the other one is then kept.
        """
        return torch.autograd.grad(
            estimate, list(weights), retain_graph=keep or graph, create_graph=graph, allow_unused=True
        )

    def everywhere(self, usable: bool) -> bool:
        """Whether a step is usable on every process, where they do not all see the same gradient."""
        return usable

    def unscale(self, optimizer: Optimizer) -> None:
        """Bring ``.grad`` into its true unit; called where losses are scaled, so that overflows are dropped."""

    def step(self, optimizer: Optimizer, *, inner: bool, from_backward: bool, clip: bool) -> None:  # noqa: ARG002
        """Let an optimizer step.

        Args:
            optimizer: which one.
            inner: whether it is an inner iteration, which does not count as an update of w.
            from_backward: whether ``.grad`` is what :meth:`backward` left; else it was set by hand.
            clip: whether gradients are clipped, if the user asked for that.
        """
        optimizer.step()


def hooked(params: Sequence[Tensor]) -> bool:
    """Whether something is to be called when a gradient of one of the parameters is computed."""
    return any(p._backward_hooks or p._post_accumulate_grad_hooks for p in params)
