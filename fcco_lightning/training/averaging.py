"""Weights averaged over the updates of training, which are validated and reported in place of the last weights."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn, get_swa_multi_avg_fn

from fcco_lightning.checks import at_least, inside
from fcco_lightning.models import copy_of
from fcco_lightning.state.checkpoint_files import in_words, versioned

_PREFIX = "network."  # begins the names of the network's tensors in a checkpoint's ``state_dict``


@dataclass(eq=False)
class WeightAverage:
    r"""An average w_bar of the network's weights over the updates, which has no effect on training.

    After update ``start`` the average is w itself; each later update, with weights w_t, changes it by

    ``w_bar <- decay * w_bar + (1 - decay) * w_t``  (exponential moving average), or, if ``decay`` is None, by

    ``w_bar <- w_bar + (w_t - w_bar) / (k + 1)``, the mean of all weights, where k is the number of those so far.

    Statistics of BatchNorm and all other floating-point buffers are averaged like weights; other buffers are those of
    the last update.  During validation and after training the network has the averaged weights, to which all reported,
    logged and monitored figures belong.  A checkpoint holds them in its ``state_dict``, and separately the last
    weights, from which a resumed run continues bit for bit.

    Args:
        decay: weight of the past, in (0, 1); None for the mean.
        start: number of updates that are left out at the beginning, >= 0.

    Raises:
        ConfigError: if an argument is out of its range.
    """

    decay: float | None = 0.999
    start: int = 0

    def __post_init__(self) -> None:
        if self.decay is not None:
            inside("average.decay", self.decay)
        at_least("average.start", self.start, 0)
        self._other: AveragedModel | None = None  # the average; the last weights while the network has the average
        self._network: nn.Module | None = None  # the network that is averaged
        self._averaged = False
        self._finite: list[int] = []  # which buffers are averaged: not a mask with infinite numbers
        self._marks: list[float] = []  # identify the averaged weights after training, see _marks

    def begin(self, network: nn.Module, stored: dict[str, Any] | None = None) -> None:
        """Start to average, or continue an earlier average.

        Args:
            network: the network with its last weights, on its device.
            stored: the result of :meth:`state` in the checkpoint that is resumed; None for a new run.
        """
        if stored is None and self._other is not None and self._network is network:  # a second fit
            for tensor, other in zip(_tensors(network), _tensors(self._other.module), strict=True):
                other.data = other.data.to(tensor)  # precision or device may have changed
            if not self._averaged or self._marks == _marks(network):  # else other weights were loaded
                self.show(averaged=False)
                return
        averaging: Any = get_swa_multi_avg_fn if self.decay is None else partial(get_ema_multi_avg_fn, self.decay)
        self._other = AveragedModel(nn.Identity(), multi_avg_fn=averaging())  # a copy of the network would copy hooks
        self._other.module = copy_of(network)
        self._network, self._averaged = network, False
        self._finite = [k for k, buffer in enumerate(self.statistics) if bool(buffer.isfinite().all())]
        if stored is not None:
            with in_words("the checkpoint's averaged weights"):
                self._other.n_averaged.fill_(stored["count"])
                last = {k.removeprefix(_PREFIX): v for k, v in stored["weights"].items()}
                self._other.module.load_state_dict(versioned(network, last))

    def update(self, updates: int) -> None:
        """Add the network's weights to the average, after the update with number ``updates``."""
        if self._other is None or self._network is None or updates <= self.start:
            return
        moving, count = [self.statistics[k] for k in self._finite], int(self._other.n_averaged)
        averages = [buffer.clone() for buffer in moving]
        self._other.update_parameters(self._network)
        share = 1 / (count + 1) if self.decay is None or count == 0 else 1 - self.decay
        if moving:
            torch._foreach_lerp_(averages, moving, share)
            torch._foreach_copy_(moving, averages)

    @torch.no_grad()
    def show(self, *, averaged: bool) -> None:
        """Give the network the averaged weights, or give it back the last ones; without an average do nothing."""
        if self._other is None or self._network is None or self._averaged == averaged or self._other.n_averaged == 0:
            return
        for tensor, other in zip(_tensors(self._network), _tensors(self._other.module), strict=True):
            last = tensor.detach().clone()
            tensor.copy_(other)
            other.copy_(last)
        self._averaged, self._marks = averaged, _marks(self._network) if averaged else []

    @property
    def statistics(self) -> list[Tensor]:
        """Floating-point buffers of the weights that the network does not have now; they differ between processes."""
        return [] if self._other is None else [b for b in self._other.module.buffers() if b.is_floating_point()]

    def forget(self) -> None:
        """Drop the average; the next :meth:`begin` starts a new one."""
        self._other = self._network = None

    def state(self, weights: dict[str, Any]) -> dict[str, Any] | None:
        """The average's entry in a checkpoint; puts the averaged weights into ``weights``, the module's ``state_dict``.

        Returns:
            ``count``, the number of averaged updates, and ``weights``, the last weights; None without an average.
        """
        if self._other is None or self._other.n_averaged == 0:
            return None
        others = {f"{_PREFIX}{name}": value for name, value in self._other.module.state_dict().items()}
        state = {"count": int(self._other.n_averaged), "weights": others}
        if not self._averaged:
            exchange(weights, state)
        return state


def _tensors(network: nn.Module) -> list[Tensor]:
    """All parameters and buffers, tied ones once."""
    return [*network.parameters(), *network.buffers()]


def _marks(network: nn.Module) -> list[float]:
    """A few numbers that identify the weights and are the same on every device."""
    weights = [t.detach() for t in network.parameters() if t.numel()]
    marks = [mark.double() for t in weights for mark in (t.min(), t.max(), t.flatten()[0], t.flatten()[-1])]
    values: list[float] = torch.stack(marks).tolist() if marks else []  # in one transfer, for speed
    return values


def exchange(weights: dict[str, Any], state: dict[str, Any]) -> None:
    """Swap the network's tensors in a checkpoint's ``state_dict`` with those in the state of the average."""
    for name, value in state["weights"].items():
        state["weights"][name], weights[name] = weights[name], value
