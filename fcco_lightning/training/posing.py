"""Preparations of a fit from its data: the network's input width, the number of samples, and how they are drawn."""

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
    Constraint,
    Decisions,
    require_columns,
    require_compatible,
)
from fcco_lightning.data.batches import Drawn, UniformBatches
from fcco_lightning.data.fingerprint import contents_of_samples
from fcco_lightning.data.indexed import IndexedDataset, drawn_by, require_own_index
from fcco_lightning.engine import Problem
from fcco_lightning.errors import ConfigError, DataError
from fcco_lightning.models import BatchNetwork
from fcco_lightning.models.batch import SAMPLE_WEIGHT, TARGET
from fcco_lightning.objectives import BinaryObjective, CostedLoss, CrossEntropy, Objective
from fcco_lightning.training.resuming.random_streams import (
    loader_streams,
    random_streams,
    set_loader_streams,
    set_random_streams,
)

_RARE = 1 / 5  # share of positives below which the default threshold may decide few or no samples positive
_LOOKED_AT = 16  # samples whose digest identifies a data set


def datamodule_of(trainer: Trainer | None) -> Any:
    """The Trainer's data module; None if the user has given loaders."""
    return getattr(trainer, "datamodule", None)


def class_changes(objective: Objective, sampling: Drawn | None) -> list[float]:
    r"""Weight of every class c in the batches relative to the data, ``P_batch(c) / P_data(c)``.

    If, for example, half of every batch is positive and its means are not reweighted (``prevalence: batch``), the
    log-odds that a network learns are those of the data plus ``log(changes[1] / changes[0])``, as under costs of
    mistakes in this ratio.

    Args:
        objective: the mean cross-entropy; others, such as the worst group's, weigh samples themselves.
        sampling: the training split and how batches are drawn from it; None where only batches are known.

    Returns: one number for each class; empty if all are 1, if samples of one class have different weights, or if the
        classes are not known.
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
    """Weight the loss of every sample by the cost of a mistake on its class.

    Args:
        objective: the objective whose loss is weighted; it is left unchanged unless it classifies.
        decisions: the user's decisions, which may define the costs.
        columns: columns of the training split; None where only batches are known.
        changes: weights that the batches give to the classes already, :func:`class_changes`; the costs are divided by
            them, since they refer to the data.

    Returns: weights of the classes in training: their costs, or ``changes`` if there are none; empty if all are 1.

    Raises:
        ConfigError: if the classes of the training samples are not known.
    """
    owner: Any = objective  # may have an attribute `loss`
    if isinstance(getattr(owner, "loss", None), CostedLoss):  # from an earlier fit
        owner.loss = owner.loss.loss
    if not (objective.classifies and decisions.mistakes and decisions.asked):
        return list(changes)
    y = None if columns is None else columns.get("y")
    if y is None or y.dim() != 1 or y.is_floating_point():
        raise ConfigError(
            f"decisions for {decisions.describe()} need the classes of all training samples, which are not known. "
            "Use a datamodule, or a loader of IndexedDataset(dataset, columns={'y': labels})."
        )
    assert columns is not None  # noqa: S101 - y is one of them
    costs = decisions.class_costs(torch.bincount(y, columns.get(SAMPLE_WEIGHT), minlength=2))
    owner.loss = CostedLoss(owner.loss, costs / costs.new_tensor(changes) if changes else costs)
    return [float(cost) for cost in costs]


def of_rare_positives(objective: Objective, decisions: Decisions, columns: Mapping[str, Tensor] | None) -> str | None:
    """Advice on decisions where positives are rare and the user has not asked for any; None elsewhere."""
    y = None if columns is None or "task" in columns else columns.get("y")  # a task is one of several labels
    decides = objective.classifies or isinstance(objective, BinaryObjective)
    if y is None or y.dim() != 1 or y.is_floating_point() or decisions.asked or not decides or int(y.max()) > 1:
        return None
    positives, n = int((y == 1).sum()), len(y)
    if not 0 < positives < _RARE * n:
        return None
    return (
        f"{positives:,} of {n:,} training samples ({positives / n:.1%}) are positive, and `decisions` is not set: a "
        "sample is classified as positive if its probability is above 1/2, which may hold for few or none. Set "
        "--decisions balanced (both classes have the same weight), --decisions.costs [1,10] (a false negative costs "
        f"as much as ten false positives), --decisions.share {positives / n:.2g} (this share of all samples is "
        "classified as positive; the share of positives gives a high F1 score) or --decisions.tpr 0.8 (a true positive "
        "rate of 0.8); in Python decisions='balanced' or Decisions(...)."
    )


def of_changed_classes(decisions: Decisions, changes: Sequence[float]) -> str | None:
    """Advice on decisions where batches reweight the classes and the user has not asked for any; None elsewhere.

    Args:
        decisions: the user's decisions.
        changes: weights of the classes in the batches, :func:`class_changes`.
    """
    if decisions.asked or not changes:
        return None
    otherwise = "--decisions.threshold 0.5" if len(changes) == 2 else "uniform batches (--data.batches UniformSampling)"
    return (
        f"batches weight the classes {', '.join(f'{change:.2g}' for change in changes)} times as much as the data, and "
        "`decisions` is not set: samples are classified as for data with the class frequencies of the batches, so a "
        f"rare class is predicted more often. To classify by the probabilities in the data, set {otherwise}."
    )


def fit_to_data(network: nn.Module, constraints: Sequence[Constraint], datamodule: Any, *, predict: bool) -> None:
    """Set the network's input width and adapt the constraints to the data.

    Constraints that no weights satisfy, or that cannot be evaluated on a split, are refused before training.  With
    ``predict`` constraints are not adapted, since the data may lack labels.

    Raises:
        ConfigError: if the input width is not known, or constraints contradict each other.
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
    """Tighten the constraints by the margin of :class:`FCCOModule`, except those that are tightened already."""
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
    """Number n of training samples of a fit, and how each part of a batch is drawn, or None if that is not known.

    n is taken from ``num_samples``, from the data module, or from the data set of the ``loader``.

    Raises:
        ConfigError: if n is not known, or ``num_samples`` contradicts the data.
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
    """Whether the last batch of an epoch holds one sample and the others more; False if that is not known."""
    datamodule = datamodule_of(trainer)
    if hasattr(datamodule, "sampling"):
        plans = [sampling.plan for sampling in datamodule.sampling().values()]
        return any(plan.smallest == 1 < plan.batch_size for plan in plans if isinstance(plan, UniformBatches))
    loader = own_loader(trainer)
    size = None if loader is None or loader.drop_last else loader.batch_size
    return loader is not None and size is not None and (sized_len(loader.sampler) or 0) % size == 1 < size


def _require_one_number(num_samples: int | None, size: int | None, loader: DataLoader[Any] | None) -> None:
    """Refuse a ``num_samples`` that differs from the size of the data.

    The length of a user's data set may differ rightly: it may return a sample several times, or whole batches.
    """
    if num_samples is None or size is None or num_samples == size:
        return
    if loader is None or isinstance(loader.dataset, IndexedDataset) or (num_samples > size and loader.batch_sampler):
        raise ConfigError(
            f"execution.num_samples={num_samples}, and the training split has {size} samples: the objective is a mean "
            "over them, and each has a row. Leave num_samples out."
        )


def own_loader(trainer: Trainer) -> DataLoader[Any] | None:
    """The user's own training loader, if there is exactly one; None otherwise.

    Raises:
        DataError: if it has no batch, with which Lightning would train nothing; or if samples of a loader do not carry
            their position in its data set.
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
    """A digest of some samples at fixed positions of a loader's data set, as description -> digest.

    It is empty where the digest could change from run to run: if loading a sample draws random numbers, depends on the
    epoch, or is done in worker processes.
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
    """Properties that must agree on all processes, by name."""
    penalty, identity = problem.penalty, getattr(datamodule, "identity", None)
    properties = {
        "num_samples": str(num_samples),
        "penalty": f"{type(penalty).__name__} {plain_values(penalty)}",
        "constraints": str([(type(c).__name__, c.names, c.kappa) for c in constraints]),
        "network": str([(name, tuple(p.shape)) for name, p in network.named_parameters()]),
    }
    return properties | {"data": str(problem.data if identity is None else identity())}


def plain_values(part: object) -> dict[str, Any]:
    """The attributes of an object that are numbers or strings, which can be compared between processes."""
    return {k: v for k, v in vars(part).items() if isinstance(v, int | float | str)}
