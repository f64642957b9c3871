"""What a fit derives from its data before it begins: the network's width, the number of samples, the problem's rows."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from lightning.fabric.utilities.data import sized_len
from lightning.pytorch import Trainer
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.utils import _pytree as pytree
from torch.utils.data import DataLoader

from fcco_lightning.constraints import (
    AdaptivePenalty,
    Constraint,
    Decisions,
    Multipliers,
    require_columns,
    require_compatible,
)
from fcco_lightning.constraints.multipliers import Enforcement
from fcco_lightning.data.batches import Drawn, UniformBatches
from fcco_lightning.data.fingerprint import contents_of_samples
from fcco_lightning.data.indexed import IndexedDataset, drawn_by, require_own_index
from fcco_lightning.engine import Problem
from fcco_lightning.errors import CheckpointError, ConfigError, DataError
from fcco_lightning.models import BatchNetwork
from fcco_lightning.models.batch import SAMPLE_WEIGHT, TARGET
from fcco_lightning.objectives import BinaryObjective, CostedLoss, CrossEntropy, Objective
from fcco_lightning.training.resuming.random_streams import (
    loader_streams,
    random_streams,
    set_loader_streams,
    set_random_streams,
)

_RARE = 1 / 5  # share of positives below which decisions that nobody has thought of are few
_LOOKED_AT = 16  # samples whose contents stand for a data set


def datamodule_of(trainer: Trainer | None) -> Any:
    """The data of a run; None with loaders of the user's own."""
    return getattr(trainer, "datamodule", None)


def class_changes(objective: Objective, sampling: Drawn | None) -> list[float]:
    r"""How much batches count the classes in comparison with the data, ``P_batch(c) / P_data(c)`` of class c.

    Where half of a batch is positive and means over it are those of such data (``prevalence: batch``), the log-odds
    that a network learns are those of the data plus ``log(changes[1] / changes[0])``, as if mistakes cost so much.

    Args:
        objective: the mean cross-entropy; others, such as the worst group's, weigh samples themselves.
        sampling: the training split and how batches are drawn of it; None where only batches are known.

    Returns: one number for each class; empty where batches stand for the data, where samples of one class do not count
        alike in them, and where the classes are not known.
    """
    if sampling is None or not isinstance(objective, CrossEntropy):
        return []
    population, y = sampling.plan.population(), sampling.columns.get("y")
    if population is None or y is None or y.dim() != 1 or y.is_floating_point() or int(y.min()) < 0:
        return []
    weight = sampling.columns.get(SAMPLE_WEIGHT, torch.ones_like(population)).double()
    population = population * (weight.sum() / population.sum())
    changes = torch.bincount(y, population) / torch.bincount(y, weight)
    alike = torch.isclose(population, weight * changes[y], rtol=1e-6, atol=0.0)
    changed = bool(alike.all()) and bool((changes > 0).all()) and not torch.allclose(changes, torch.ones_like(changes))
    return changes.tolist() if changed else []


def cost_classes(
    objective: Objective, decisions: Decisions, columns: Mapping[str, Tensor] | None, changes: Sequence[float] = ()
) -> list[float]:
    """Let losses count what mistakes on their class cost.

    Args:
        objective: whose loss is costed, if it classifies; others are left as they are.
        decisions: what they are for.
        columns: of the training split; None where only batches are known.
        changes: how much batches count the classes already, :func:`class_changes`: costs are those of the data.

    Returns: how much the classes count in training: their costs, or without any the changes; empty where all count 1.

    Raises:
        ConfigError: if the classes of the training samples are not known.
    """
    owner: Any = objective  # of a loss of its own, or none
    if isinstance(getattr(owner, "loss", None), CostedLoss):  # of an earlier fit
        owner.loss = owner.loss.loss
    if not (objective.classifies and decisions.mistakes and decisions.asked):
        return list(changes)
    y = None if columns is None else columns.get("y")
    if y is None or y.dim() != 1 or y.is_floating_point():
        raise ConfigError(
            f"decisions are for {decisions.describe()}, which takes the classes of all training samples, and these are "
            "not known. Use a datamodule, or a loader of IndexedDataset(dataset, columns={'y': labels})."
        )
    assert columns is not None  # noqa: S101 - y is one of them
    costs = decisions.class_costs(torch.bincount(y, columns.get(SAMPLE_WEIGHT), minlength=2))
    owner.loss = CostedLoss(owner.loss, costs / costs.new_tensor(changes) if changes else costs)
    return [float(cost) for cost in costs]


def of_rare_positives(objective: Objective, decisions: Decisions, columns: Mapping[str, Tensor] | None) -> str | None:
    """What the usual decisions mean where one of two classes is rare, and what to ask for; None elsewhere."""
    y = None if columns is None or "task" in columns else columns.get("y")  # a task is one of several labels
    decides = objective.classifies or isinstance(objective, BinaryObjective)
    if y is None or y.dim() != 1 or y.is_floating_point() or decisions.asked or not decides or int(y.max()) > 1:
        return None
    positives, n = int((y == 1).sum()), len(y)
    if not 0 < positives < _RARE * n:
        return None
    return (
        f"{positives:,} of {n:,} training samples ({positives / n:.1%}) are positive, and nothing says what decisions "
        "are for: a sample is decided positive where it is more probable than not, which may be true of few or none. "
        "Type --decisions balanced (both classes count alike), --decisions.costs [1,10] (a positive that is missed "
        f"costs ten false alarms), --decisions.share {positives / n:.2g} (so many of all can be chosen; as many as are "
        "positive for a high F1 score) or --decisions.tpr 0.8 (so many of the positives are to be found); in Python "
        "decisions='balanced' or Decisions(...)."
    )


def of_changed_classes(decisions: Decisions, changes: Sequence[float]) -> str | None:
    """What decisions are for where batches count the classes otherwise than the data, if nobody says; else None.

    Args:
        decisions: what they are for.
        changes: how much batches count the classes, :func:`class_changes`.
    """
    if decisions.asked or not changes:
        return None
    otherwise = "--decisions.threshold 0.5" if len(changes) == 2 else "uniform batches (--data.batches UniformSampling)"
    return (
        f"batches count the classes {', '.join(f'{change:.2g}' for change in changes)} times as much as the data, and "
        "nothing says what decisions are for: they are those of such batches, so that a rare class is decided on more "
        f"often. Probabilities are those of the data, and {otherwise} decides by these."
    )


def fit_to_data(network: nn.Module, constraints: Sequence[Constraint], datamodule: Any, *, predict: bool) -> None:
    """Size the network from the data and let constraints know them.

    Refuses, before anything is trained, constraints that no weights meet or that a split cannot be judged by.

    Where samples are only to be predicted, constraints do not look at the data, which may lack labels.

    Raises:
        ConfigError: if the input width is not known.
        DataError: if a split lacks a column that a constraint needs.
    """
    if isinstance(network, BatchNetwork):
        network.adapt(datamodule)
    if any(is_lazy(p) for p in network.parameters()):
        _size(network, getattr(datamodule, "num_features", None))
    for constraint in () if predict else constraints:
        constraint.adapt(datamodule)
    require_compatible(constraints)
    tables = getattr(datamodule, "tables", {})
    splits = {name: table.columns for name, table in tables.items() if name in ("val", "test")}
    if "train" in tables:
        require_columns(constraints, tables["train"].columns, splits)


def tighten(constraints: Sequence[Constraint], margin: float | Literal["auto"], datamodule: Any) -> None:
    """Enforce constraints tighter than asked for, see ``margin`` of :class:`FCCOModule`; not those that are already."""
    tables = getattr(datamodule, "tables", {})
    for constraint in constraints:
        if constraint.kappa != constraint.tolerance or margin == 0:
            continue
        if margin != "auto":
            constraint.tighten(margin)
        elif "train" in tables:
            constraint.tighten(min(constraint.standard_error(tables["train"].columns), abs(constraint.kappa) / 2))


def _size(network: nn.Module, num_features: int | None) -> None:
    if num_features is None:
        raise ConfigError("the network's input width is not known: set in_features, or use a datamodule.")
    training, x = network.training, torch.zeros(1, num_features)
    with torch.no_grad():
        network.eval()({TARGET: {"x": x}} if isinstance(network, BatchNetwork) else x)
    network.train(training)


def training_split(
    trainer: Trainer, loader: DataLoader[Any] | None, num_samples: int | None
) -> tuple[int, Mapping[str, Drawn] | None]:
    """Number of training samples of a fit, and how batches are drawn, where that is known.

    ``num_samples`` counts where no datamodule says it; None for the size of the data set of the ``loader``.

    Raises:
        ConfigError: if the number is not known, or the data have another one.
    """
    datamodule = datamodule_of(trainer)
    size = getattr(datamodule, "num_train", None)
    if size is None and loader is not None:
        size = sized_len(loader.dataset)
    n = num_samples or size
    _require_one_number(num_samples, size, loader)
    if n is None:
        raise ConfigError(
            "num_samples is not known: pass execution=Execution(num_samples=len(train_split)), or use a datamodule."
        )
    if hasattr(datamodule, "sampling"):
        return int(n), datamodule.sampling()
    return int(n), None if loader is None else drawn_by(loader, trainer.world_size)


def ends_with_one(trainer: Trainer) -> bool:
    """Whether the last batch of an epoch holds a single sample, where others hold more; False where it is not known."""
    datamodule = datamodule_of(trainer)
    if hasattr(datamodule, "sampling"):
        plans = [sampling.plan for sampling in datamodule.sampling().values()]
        return any(plan.smallest == 1 < plan.batch_size for plan in plans if isinstance(plan, UniformBatches))
    loader = own_loader(trainer)
    size = None if loader is None or loader.drop_last else loader.batch_size
    return loader is not None and size is not None and (sized_len(loader.sampler) or 0) % size == 1 < size


def _require_one_number(num_samples: int | None, size: int | None, loader: DataLoader[Any] | None) -> None:
    """Refuse a number of samples that is not that of the data.

    A user's data set may give a sample several times, or whole batches, and have another length for that reason.
    """
    if num_samples is None or size is None or num_samples == size:
        return
    if loader is None or isinstance(loader.dataset, IndexedDataset) or (num_samples > size and loader.batch_sampler):
        raise ConfigError(
            f"execution.num_samples={num_samples}, and the training split has {size} samples: the objective is a mean "
            "over them, and each has a row. Leave num_samples out."
        )


def own_loader(trainer: Trainer) -> DataLoader[Any] | None:
    """The user's own loader that a fit is going to draw from, where it is a single one; None otherwise.

    Raises:
        DataError: if it has no batch, with which Lightning would train nothing; of one or several, if samples do not
            carry their position in its data set.
    """
    if hasattr(datamodule_of(trainer), "num_train"):
        return None
    source = trainer.fit_loop._data_source
    loader = source.dataloader() if source.is_defined() else None
    for part in pytree.tree_leaves(getattr(loader, "iterables", loader)):
        require_own_index(getattr(part, "dataset", None))
    if not isinstance(loader, DataLoader):
        return None
    if sized_len(loader) == 0:
        raise DataError(
            f"the training loader gives no batch: its data set holds {sized_len(loader.dataset)} samples, batch_size "
            f"is {loader.batch_size} and drop_last={loader.drop_last}. Use more samples, smaller batches or "
            "drop_last=False."
        )
    return loader


def contents_of_some(loader: DataLoader[Any], num_samples: int) -> dict[str, str]:
    """A digest of some samples at fixed places of a loader's data set, by what it is of; nothing where that is unsure.

    It is where loading a sample draws random numbers, depends on the epoch, or is left to worker processes.
    """
    data = loader.dataset
    if loader.num_workers or sized_len(data) != num_samples or hasattr(data, "set_epoch"):
        return {}
    places = sorted({i * (num_samples - 1) // (_LOOKED_AT - 1) for i in range(_LOOKED_AT)})
    global_states, loader_states = random_streams(), loader_streams([loader])
    try:
        samples = data.__getitems__(places) if hasattr(data, "__getitems__") else [data[i] for i in places]
        contents = contents_of_samples(samples)
    except Exception:  # a user's data set need not support this
        return {}
    finally:
        is_random = not _same_states((random_streams(), loader_streams([loader])), (global_states, loader_states))
        set_random_streams(global_states)
        set_loader_streams([loader], loader_states)
    return {} if is_random else {f"{len(places)} samples that were looked at": contents}


def _same_states(streams: Any, others: Any) -> bool:
    pairs = zip(pytree.tree_leaves(streams), pytree.tree_leaves(others), strict=True)
    return all(torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b for a, b in pairs)


def description(
    problem: Problem, num_samples: int | None, network: nn.Module, constraints: Sequence[Constraint], datamodule: Any
) -> dict[str, str]:
    """What must be the same on all processes, by name."""
    penalty, identity = problem.penalty, getattr(datamodule, "identity", None)
    properties = {
        "num_samples": str(num_samples),
        "penalty": f"{type(penalty).__name__} {plain_values(penalty)}",
        "constraints": str([(type(c).__name__, c.names, c.kappa) for c in constraints]),
        "network": str([(name, tuple(p.shape)) for name, p in network.named_parameters()]),
    }
    return properties | {"data": str(problem.data if identity is None else identity())}


def plain_values(part: object) -> dict[str, Any]:
    """The attributes of a part that are numbers or words: they look the same on every process."""
    return {k: v for k, v in vars(part).items() if isinstance(v, int | float | str)}


def what_is_solved(
    objective: Objective, constraints: Sequence[Constraint], penalty: Enforcement | None
) -> dict[str, Any]:
    """What the rows of a checkpoint belong to, by name; kappas and other numbers may change from fit to fit."""
    rule = penalty or AdaptivePenalty()
    enforcement = (
        f"{type(rule).__name__}(decisions={rule.decisions})" if isinstance(rule, Multipliers) else "a fixed penalty"
    )
    return {
        "objective": type(objective).__name__,
        "constraints": [[type(c).__name__, list(c.names)] for c in constraints],
        "enforcement": enforcement if constraints else "",
    }


def require_same_problem(stored: Mapping[str, Any], present: Mapping[str, Any]) -> None:
    """Refuse a checkpoint whose rows belong to another objective or other constraints, though they have their shape.

    Raises:
        CheckpointError: naming what differs.
    """
    for name, value in present.items():
        if stored[name] != value:
            raise CheckpointError(
                f"the checkpoint was written with the {name} {_description(stored[name])}, this run has "
                f"{_description(value)}. Use the same, or start without --ckpt_path."
            )


def _description(part: Any) -> str:
    if isinstance(part, str):
        return part
    rows = [f"{kind} ({', '.join(names[:3])}{', ...' if len(names) > 3 else ''})" for kind, names in part]
    return ", ".join(rows) or "none"
