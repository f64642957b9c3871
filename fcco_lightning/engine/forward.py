"""Evaluating all inner functions at the present and at other weights."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils import _pytree as pytree

from fcco_lightning.checks import at_least
from fcco_lightning.constraints import Constraint
from fcco_lightning.engine.micro_batches import recomputed
from fcco_lightning.engine.parts import outputs_of, part_name
from fcco_lightning.errors import ConfigError
from fcco_lightning.hosted import Hosted, each_column
from fcco_lightning.objectives import Objective
from fcco_lightning.objectives.two_steps import first_tensor, in_two_steps
from fcco_lightning.records import Arrangement, Batch, Columns, Inner

DUAL = "dual"
"""Name of the part with the independent draw of samples that dual steps can take (``dual_PART`` for another part)."""

_HALF = (torch.bfloat16, torch.float16)


class Estimated(NamedTuple):
    """What a batch says at one point.

    Attributes:
        direct: estimate of g_0, a scalar, or None.
        inner: per term (the objective first if it has inner functions, then the constraints), or None for a term that
            was not measured.
        arrangements: what the columns said.
    """

    direct: Tensor | None
    inner: list[Inner | None]
    arrangements: "Arrangements"


class Arrangements(NamedTuple):
    """What the columns of a batch say; see :class:`~fcco_lightning.objectives.two_steps.InTwoSteps`.

    Attributes:
        terms: per term that is measured; None for one that is not measured in two steps.
        direct: of g_0; None where it is not measured in two steps, or there is none.
    """

    terms: list[Arrangement | None]
    direct: Any = None


class Samples(NamedTuple):
    """The network's outputs for some samples, with their columns, by part."""

    outputs: Mapping[str, Any]
    batch: Batch

    def halves(self) -> tuple["Samples", "Samples"]:
        """The first and the second half of the samples of every part."""
        return self._cut(first=True), self._cut(first=False)

    def _cut(self, *, first: bool) -> "Samples":
        outputs, batch = {}, {}
        for name, columns in self.batch.items():
            size = len(next(iter(columns.values())))
            if size < 2:
                raise ConfigError(
                    f"the part {name!r} of a batch holds {size} sample, two half-batches need two. Use larger batches, "
                    "or another choice of `jacobian`."
                )
            half = slice(0, size // 2) if first else slice(size // 2, None)
            outputs[name] = pytree.tree_map(lambda leaf, half=half: leaf[half], self.outputs[name])
            cut = each_column(columns, lambda column, half=half: column[half])  # type: ignore[misc]
            batch[name] = _copies_halved(cut)
        return Samples(outputs, batch)

    def part(self, name: str) -> "Samples":
        """The samples of one part.

        Raises:
            ConfigError: if there is no such part.
        """
        part_name(self.batch, name)
        return Samples({name: self.outputs[name]}, {name: self.batch[name]})

    def dual_part(self) -> "Samples":
        """The independent draws ("dual", "dual_protected", ...) under the names of the parts that they stand for.

        Raises:
            ConfigError: if the loaders give none.
        """
        names = list(self.batch)
        if DUAL not in names:
            raise ConfigError(
                f"jacobian='part' takes y from a second, independent draw of samples, the part {DUAL!r} of a batch; "
                f"the loaders give {names}. Wrap the datamodule's `batches` in TwoDraws, or use jacobian='halves'."
            )
        pairs = {names[0]: DUAL} | {n.removeprefix(f"{DUAL}_"): n for n in names if n.startswith(f"{DUAL}_")}
        return Samples(
            {name: self.outputs[dual] for name, dual in pairs.items()},
            {name: self.batch[dual] for name, dual in pairs.items()},
        )


def _copies_halved(columns: Columns) -> Columns:
    """Half of a batch, with half as many copies of every draw, of which both halves hold all; one copy is in one half.

    Raises:
        ConfigError: if the halves do not hold all draws equally often.
    """
    if "replaced" not in columns:
        return columns
    copies = columns["replaced"]
    halved = {**columns, "replaced": torch.where(copies > 1, copies // 2, copies)}
    if isinstance(columns, Hosted):
        return Hosted(halved, _copies_halved(columns.host))
    if bool((copies % 2 * (copies > 1)).any()):
        raise ConfigError(
            f"a batch drawn with replacement holds every draw {int(copies.max())} times, of which two half-batches do "
            "not hold equally many. Use an even number of copies, or another choice of `jacobian`."
        )
    return halved


class Names(NamedTuple):
    """Names of tensors of a module.

    Attributes:
        trained: of the trained parameters.
        buffers: of the buffers.
        again: where other modules hold some of these, too (tied weights): place -> its name among the above.  A module
            that is there twice, as in Fabric's wrapper, counts once: torch would replace its tensors for good.
        network_alone: whether all that is trained is the network's, so that the other parts are the same at other
            weights.
    """

    trained: list[str]
    buffers: list[str]
    again: dict[str, str]
    network_alone: bool


class InnerFunctions(nn.Module):
    """Network, objective and constraints: what is measured, in two halves.

    The network's outputs are of this process's samples (:meth:`outputs`); the inner functions are of those of all
    processes together (:meth:`forward`).

    Args:
        network: called as ``network(batch["x"])``, or with the whole batch if it is a
            :class:`~fcco_lightning.models.BatchNetwork`.
        objective: the objective.
        constraints: the constraints to measure; empty where the algorithm does not use them.
        micro_batch: largest number of samples that pass through the network at once; None for all.
    """

    def __init__(
        self,
        network: nn.Module,
        objective: Objective,
        constraints: Sequence[Constraint],
        micro_batch: int | None = None,
    ) -> None:
        super().__init__()
        self.network, self.objective, self.constraints = network, objective, list(constraints)
        self.micro_batch = None if micro_batch is None else at_least("micro_batch", micro_batch, 1)
        self._names: Names | None = None
        self._split: dict[tuple[int, str], bool] = {}

    def outputs(self, batch: Batch, call: Callable[..., Any] | None = None) -> dict[str, Any]:
        """The network's outputs by part; ``call`` takes the place of the network."""
        if self.micro_batch is None:
            return outputs_of(self.network, batch, call)
        run = partial(outputs_of, self.network, call=call)
        return recomputed(run, batch, self.micro_batch, self.network)

    def measurable(self, terms: Sequence[int] | None = None) -> list[Objective | Constraint]:
        """What is measured for each term: the objective if it has inner functions, then the constraints."""
        every: list[Objective | Constraint] = [] if self.objective.outer is None else [self.objective]
        every += self.constraints
        return every if terms is None else [every[i] for i in terms]

    def forward(
        self,
        samples: Samples,
        terms: Sequence[int] | None = None,
        *,
        direct: bool = True,
        known: Arrangements | None = None,
    ) -> Estimated:
        """Estimates from the network's outputs.

        The objective is measured on the first part of the batch and every constraint on its own, unless they name the
        parts they read.  Reduced precision ends with the network: its outputs are taken at least to float32, autocast
        is off, and new tensors are float32, because rows and outer functions would magnify whatever is rounded away
        here.

        Args:
            samples: outputs and columns.
            terms: which terms are measured, in increasing order: the objective's is 0 if it has inner functions, the
                constraints follow; None for all.
            direct: whether g_0 is measured.
            known: what the columns say, where an earlier pass has asked them.
        """
        chosen = self.measurable(terms)
        device = next(c for c in next(iter(samples.batch.values())).values() if isinstance(c, Tensor)).device.type
        with _in_full(device):
            read = [_read(samples, part.part) for part in chosen]
            arranged = (
                [
                    self.arranged(part, columns, first_tensor(outputs))
                    for part, (outputs, columns) in zip(chosen, read, strict=True)
                ]
                if known is None
                else known.terms
            )
            inner = [
                part.inner(outputs, columns) if arrangement is None else part.arranged(outputs, arrangement)
                for part, (outputs, columns), arrangement in zip(chosen, read, arranged, strict=True)
            ]
            g0, given = None, None
            if direct:
                outputs, columns = _read(samples, self.objective.part)
                given = self.arranged_direct(columns, first_tensor(outputs)) if known is None else known.direct
                g0 = (
                    self.objective.direct(outputs, columns)
                    if given is None
                    else self.objective.direct_value(outputs, given)
                )
            return Estimated(g0, inner, Arrangements(arranged, given))

    def arranged(self, part: Objective | Constraint, columns: Columns, like: Tensor) -> Arrangement | None:
        """The first step of measuring a part, or None where it has no two."""
        return part.arrange(columns, like) if self._in_two_steps(part, "arrange", "inner") else None

    def arranged_direct(self, columns: Columns, like: Tensor) -> Any:
        """The first step of measuring g_0, or None where it has no two."""
        return self.objective.arrange_direct(columns, like) if self.direct_in_two_steps else None

    @property
    def direct_in_two_steps(self) -> bool:
        """Whether g_0 is measured in two steps, or there is none."""
        return self._in_two_steps(self.objective, "arrange_direct", "direct")

    def arranges_usual(self, part: Objective | Constraint, name: str) -> bool:
        """Whether a part has, beside ``arrange`` or ``arrange_direct``, its form for usual batches."""
        measured = self.direct_in_two_steps if name == "arrange_direct" else self._in_two_steps(part, name, "inner")
        return measured and in_two_steps(part, f"{name}_usual", name)

    def _in_two_steps(self, part: Objective | Constraint, first: str, whole: str) -> bool:
        key = id(part), first
        if key not in self._split:
            self._split[key] = in_two_steps(part, first, whole) and not isinstance(part.part, tuple)
        return self._split[key]

    def check(self, samples: Samples) -> None:
        """Let the objective and the constraints look at a batch and refuse data that they would misread.

        Raises:
            DataError: naming the value and the remedy.
        """
        measurable: list[Objective | Constraint] = [self.objective, *self.constraints]
        for part in measurable:
            part.check(*_read(samples, part.part))

    def trainable(self) -> dict[str, nn.Parameter]:
        """Parameters that are trained, by name."""
        return {name: p for name, p in self.named_parameters() if p.requires_grad}

    def names(self) -> "Names":
        """Names of what a second pass replaces, looked up once: walking the modules costs a step dear."""
        if self._names is None:
            trained, buffers = list(self.trainable()), [name for name, _ in self.named_buffers()]
            replaced = {id(self.get_parameter(name)): name for name in trained}
            replaced |= {id(self.get_buffer(name)): name for name in buffers}
            again: dict[str, str] = {}
            for prefix, module in self.named_modules():
                own = (*module.named_parameters(prefix, recurse=False), *module.named_buffers(prefix, recurse=False))
                again |= {place: replaced[id(t)] for place, t in own if replaced.get(id(t), place) != place}
            alone = all(name.startswith("network.") for name in (*trained, *again))
            self._names = Names(trained, buffers, again, alone)
        return self._names

    def forget_names(self) -> None:
        """What is trained has changed."""
        self._names = None


@contextmanager
def _in_full(device: str) -> Iterator[None]:
    """Without autocast, and with no narrower type than float32 for new tensors."""
    default = torch.get_default_dtype()
    if default in _HALF:
        torch.set_default_dtype(torch.float32)
    try:
        with torch.autocast(device, enabled=False) if torch.is_autocast_enabled(device) else nullcontext():
            yield
    finally:
        if default in _HALF:
            torch.set_default_dtype(default)


def _read(samples: Samples, part: str | tuple[str, ...] | None) -> tuple[Any, Any]:
    """Outputs, at least in float32, and columns of a part, or by name of several."""
    if isinstance(part, tuple):
        names = [part_name(samples.batch, name) for name in part]
        return {n: wide(samples.outputs[n]) for n in names}, {n: samples.batch[n] for n in names}
    name = part_name(samples.batch, part)
    return wide(samples.outputs[name]), samples.batch[name]


def wide(outputs: Any) -> Any:
    """The outputs at least in float32."""
    if isinstance(outputs, Tensor):  # as most networks have it, at less cost
        return _at_least_float32(outputs)
    return pytree.tree_map_only(Tensor, _at_least_float32, outputs)


def _at_least_float32(leaf: Tensor) -> Tensor:
    return leaf.float() if leaf.dtype in _HALF else leaf


class RandomState:
    """The random state of the CPU and of the parameters' device, so that both forwards draw the same dropout masks."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._cpu = torch.get_rng_state()
        self._cuda = torch.cuda.get_rng_state(device) if device.type == "cuda" else None

    def replayed(self) -> "RandomState":
        """Set the random state back to when this object was made; the one that was left."""
        left = RandomState(self._device)
        self.restore()
        return left

    def restore(self) -> None:
        """Set the random state back to when this object was made."""
        torch.set_rng_state(self._cpu)
        if self._cuda is not None:
            torch.cuda.set_rng_state(self._cuda, self._device)


class Elsewhere:
    """The inner functions at other weights than the module's own, without touching the module.

    The same dropout masks (``random`` is from before the first forward), the same autocast mode, and cloned buffers, so
    that BatchNorm's running statistics move once per step.

    Args:
        functions: the module.
        weights: values for its trainable parameters, in their order.
        random: random state from before the first forward; None draws new masks.
    """

    def __init__(self, functions: InnerFunctions, weights: Sequence[Tensor], random: RandomState | None = None) -> None:
        self.functions, self.random = functions, random
        names = functions.names()
        self.values: dict[str, Tensor] = dict(zip(names.trained, weights, strict=True))
        self.values.update({name: functions.get_buffer(name).clone() for name in names.buffers})
        self.values.update({place: self.values[name] for place, name in names.again.items()})
        self._of_network = self._below("network.")

    def outputs(self, batch: Batch) -> dict[str, Any]:
        """The network's outputs by part."""
        after = None if self.random is None else self.random.replayed()
        network = self.functions.network
        outputs = self.functions.outputs(
            batch, lambda *a: functional_call(network, self._of_network, a, tie_weights=False)
        )
        if after is not None:
            after.restore()
        return outputs

    def measure(
        self,
        samples: Samples,
        terms: Sequence[int] | None = None,
        known: Arrangements | None = None,
        *,
        direct: bool,
    ) -> Estimated:
        """Estimates from the network's outputs, see :meth:`InnerFunctions.forward`."""
        options = {"direct": direct, "known": known}
        if len(self._of_network) == len(self.values):  # nothing else to replace: a direct call is faster
            return self.functions(samples, terms, **options)  # type: ignore[no-any-return]
        measured: Estimated = functional_call(self.functions, self.values, (samples, terms), options, tie_weights=False)
        return measured

    def _below(self, prefix: str) -> dict[str, Tensor]:
        return {name.removeprefix(prefix): v for name, v in self.values.items() if name.startswith(prefix)}
