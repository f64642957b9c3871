"""What other modules know of an engine."""

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from torch import Tensor, nn

from fcco_lightning.engine.backend import Backend
from fcco_lightning.engine.estimates import Evaluated, Measured
from fcco_lightning.engine.functions import InnerFunctions
from fcco_lightning.engine.problem import Problem
from fcco_lightning.engine.terms import Term
from fcco_lightning.models.batch import Batch


class Method(Protocol):
    """What an engine asks of an algorithm."""

    needs_previous: bool

    def start(self, engine: Any) -> None: ...
    def iteration(self, engine: Any, batch: Batch) -> None: ...
    def check(self, seen: Evaluated) -> None: ...
    def measured_apart(self, seen: Evaluated) -> Sequence[Evaluated]: ...
    def close(self, engine: Any) -> None: ...
    def finish(self, engine: Any, batches: Iterator[Batch]) -> bool: ...
    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class Running(Protocol):
    """An engine; see there."""

    problem: Problem
    functions: InnerFunctions
    algorithm: Method
    backend: Backend
    given: Batch
    seen: Evaluated | None
    checked: bool
    network_alone: bool
    stop_asked: bool
    stop_agreed: bool

    @property
    def params(self) -> list[nn.Parameter]: ...
    @property
    def alone(self) -> bool: ...
    def evaluate(self, batch: Batch, before: Sequence[Tensor] | None = None) -> Evaluated: ...
    def measure(self, seen: Evaluated, terms: Sequence[Term] | None = None, *, direct: bool = True) -> Measured: ...
