"""Weights averaged over the updates of training, which are validated and reported in place of the last ones."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn, get_swa_multi_avg_fn

from fcco_lightning.checks import at_least, inside
from fcco_lightning.models import copy_of
from fcco_lightning.state.checkpoint_files import in_words, versioned

_PREFIX = "network."  # of the network's tensors in a checkpoint's ``state_dict``


@dataclass(eq=False)
class WeightAverage:
    r"""An average of the network's weights over the updates, beside the training and without any effect on it.

    From update ``start`` on, after which the average is w itself, every update w_t moves it to

    ``w_bar <- decay * w_bar + (1 - decay) * w_t``  (exponential moving average), or, where ``decay`` is None, to

    ``w_bar <- w_bar + (w_t - w_bar) / (k + 1)`` for the (k + 1)-th update, the mean of all of them.

    Statistics of BatchNorm are averaged like weights, as is any buffer of floating numbers; other buffers are those of
    the last update.  While the network is validated, and from the end of training on, it has the averaged weights; so
    what is reported, logged, monitored and chosen is theirs, and a checkpoint's ``state_dict`` holds them, too, beside
    the last weights, from which a resumed run continues bit for bit.

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
        self._other: AveragedModel | None = None  # the average; while that is shown, the last weights
        self._network: nn.Module | None = None  # whose average it is
        self._averaged = False
        self._finite: list[int] = []  # which statistics are averaged: a mask of infinite numbers stays as it is
        self._marks: list[float] = []  # of the weights that are shown

    def begin(self, network: nn.Module, stored: dict[str, Any] | None = None) -> None:
        """Average from now on, or go on with what was averaged.

        Args:
            network: with its last weights, on its device.
            stored: of :meth:`state`, from the checkpoint that training continues.
        """
        if stored is None and self._other is not None and self._network is network:  # a second fit
            for tensor, other in zip(_tensors(network), _tensors(self._other.module), strict=True):
                other.data = other.data.to(tensor)  # it may be in another precision or place
            if not self._averaged or self._marks == _marks(network):  # else other weights have been loaded since
                self.show(averaged=False)
                return
        averaging: Any = get_swa_multi_avg_fn if self.decay is None else partial(get_ema_multi_avg_fn, self.decay)
        self._other = AveragedModel(nn.Identity(), multi_avg_fn=averaging())  # which would copy what hooks belong to
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
        """Give the network the averaged weights, or the last ones back; nothing before there is an average."""
        if self._other is None or self._network is None or self._averaged == averaged or self._other.n_averaged == 0:
            return
        for tensor, other in zip(_tensors(self._network), _tensors(self._other.module), strict=True):
            last = tensor.detach().clone()
            tensor.copy_(other)
            other.copy_(last)
        self._averaged, self._marks = averaged, _marks(self._network) if averaged else []

    @property
    def statistics(self) -> list[Tensor]:
        """What BatchNorm has seen, of those weights that are not shown; each process has updated its own."""
        return [] if self._other is None else [b for b in self._other.module.buffers() if b.is_floating_point()]

    def forget(self) -> None:
        """Begin anew with the next :meth:`begin`."""
        self._other = self._network = None

    def state(self, weights: dict[str, Any]) -> dict[str, Any] | None:
        """What a checkpoint holds of it; puts the averaged weights into ``weights``, the module's ``state_dict`` there.

        Returns:
            ``count``, the number of updates in the average, and ``weights``, the last ones; None before there is one.
        """
        if self._other is None or self._other.n_averaged == 0:
            return None
        others = {f"{_PREFIX}{name}": value for name, value in self._other.module.state_dict().items()}
        state = {"count": int(self._other.n_averaged), "weights": others}
        if not self._averaged:
            exchange(weights, state)
        return state


def _tensors(network: nn.Module) -> list[Tensor]:
    """All of them, tied ones once."""
    return [*network.parameters(), *network.buffers()]


def _marks(network: nn.Module) -> list[float]:
    """A few numbers that tell other weights, and are the same on every device."""
    weights = [t.detach() for t in network.parameters() if t.numel()]
    marks = [mark.double() for t in weights for mark in (t.min(), t.max(), t.flatten()[0], t.flatten()[-1])]
    values: list[float] = torch.stack(marks).tolist() if marks else []  # read at once, as every validation asks
    return values


def exchange(weights: dict[str, Any], state: dict[str, Any]) -> None:
    """Exchange the network's tensors between a checkpoint's ``state_dict`` and what is stored of an average."""
    for name, value in state["weights"].items():
        state["weights"][name], weights[name] = weights[name], value
