"""Measuring a batch in two steps: what its columns say, then what the network's outputs say."""

from typing import Any

from torch import Tensor
from torch.utils import _pytree as pytree

from fcco_lightning.outer import OuterFunction
from fcco_lightning.records import Arrangement, Columns, Inner, Usual


class InTwoSteps:
    """What measures inner functions on a batch; objectives and constraints do.

    A class defines :meth:`inner`, or in its place the two steps of which it consists: :meth:`arrange`, which looks at
    columns, finds rows, positions and weights, and may raise or branch on what it sees; and :meth:`values`, which is a
    differentiable function of the outputs and does not look at numbers.  The second step alone goes through the
    network's device.  It can be compiled, and a second pass at other weights repeats it without the first.
    """

    def arrange(self, batch: Columns, like: Tensor) -> Arrangement | None:  # noqa: ARG002
        """The first step.

        Args:
            batch: columns of the part.
            like: a tensor of the device and dtype of the network's outputs.

        Returns: None where the batch is not measured in two steps.

        Raises:
            DataError: if a column is missing or wrong.
        """
        return None

    def arrange_usual(self, batch: Columns, like: Tensor) -> Usual | None:  # noqa: ARG002
        """The first step for a batch that speaks of all rows, as a function of tensors that does not look at numbers.

        On the CPU it is compiled together with the second one; other batches are then arranged by :meth:`arrange`.

        Args:
            batch: columns of the part.
            like: a tensor of the device and dtype of the network's outputs.

        Returns: None where there is no such function.
        """
        return None

    def values(self, outputs: Any, given: Any) -> Tensor:
        """The second step: inner values (b, k), with graph.

        Args:
            outputs: of the network.
            given: see :class:`Arrangement`.
        """
        raise NotImplementedError(f"{type(self).__name__} arranges batches and lacks `values`.")

    def known_outer(self, given: Any) -> OuterFunction | None:  # noqa: ARG002
        """F with its known parameters at their present values, where it has some: ``outer`` of :class:`Inner`."""
        return None

    def inner(self, outputs: Any, batch: Columns) -> Inner | None:
        """Mini-batch estimates of g_i(w) with graph, or None; rows of which the batch says nothing are absent."""
        arrangement = self.arrange(batch, first_tensor(outputs))
        return None if arrangement is None else self.arranged(outputs, arrangement)

    def arranged(self, outputs: Any, arrangement: Arrangement) -> Inner:
        """Both steps together, once the first is done."""
        index, given, relevance, owners = arrangement
        return Inner(index, self.values(outputs, given), self.known_outer(given), relevance, owners)


def in_two_steps(part: object, first: str = "arrange", whole: str = "inner") -> bool:
    """Whether the two steps are those of the whole: no subclass, and not the object itself, has another ``whole``.

    Args:
        part: an objective or a constraint.
        first: name of the method that is the first step.
        whole: name of the method that consists of both.
    """
    places: list[dict[str, Any]] = [vars(part), *(vars(c) for c in type(part).__mro__)]  # type: ignore[list-item]
    return next((first in place for place in places if first in place or whole in place), False)


def first_tensor(outputs: Any) -> Tensor:
    """The first tensor of a network's outputs, which says on what device and in what dtype they are."""
    if isinstance(outputs, Tensor):  # as most networks have it, at less cost
        return outputs
    return next(leaf for leaf in pytree.tree_leaves(outputs) if isinstance(leaf, Tensor))
