"""A classifier under constraints with scikit-learn's interface."""

import copy
import tempfile
import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, Self

import numpy as np
import pandas as pd
import torch
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import TQDMProgressBar
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_random_state
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data
from torch import Tensor
from torch.optim import AdamW
from torch.optim.lr_scheduler import PolynomialLR

from fcco_lightning import recipes
from fcco_lightning.algorithms import Algorithm
from fcco_lightning.checks import at_least, below_one, non_negative, positive
from fcco_lightning.constraints import AdaptivePenalty, Constraint, Decisions, SidesOfGroups, as_decisions
from fcco_lightning.constraints.multipliers import Enforcement
from fcco_lightning.data.batches import CellSampling, UniformSampling
from fcco_lightning.data.datamodules.arrays import NamedArrays, counts_of_no_group, groups_of_samples
from fcco_lightning.data.features import PiecewiseFeatures
from fcco_lightning.data.pieces import Pieces
from fcco_lightning.data.roles import of_mean_one
from fcco_lightning.errors import ConfigError, DataError
from fcco_lightning.evaluation import ClassEvaluation
from fcco_lightning.models import TabularMLP
from fcco_lightning.models.batch import SAMPLE_WEIGHT
from fcco_lightning.objectives import CrossEntropy, GroupObjective, Objective
from fcco_lightning.reports.importances import Features
from fcco_lightning.reports.later import report_of
from fcco_lightning.reports.left_out import LeftOut
from fcco_lightning.reports.report import Report
from fcco_lightning.reports.run import SplitReport
from fcco_lightning.training import FCCOModule, Schedule
from fcco_lightning.training.execution import require_parts
from fcco_lightning.training.trainers import quiet

_EVALUATED = {SAMPLE_WEIGHT: "weight"}  # name in batches that are evaluated
_ALONE = threading.Lock()  # one thread trains at a time, since all share torch's random numbers
_AT_ONCE = 4096  # batch size of inference


def _has_probabilities(model: "ConstrainedClassifier") -> bool:
    if model.objective is None or model.objective.proper:
        return True
    raise AttributeError(
        f"the scores of {type(model.objective).__name__} are not log-odds, so there are no probabilities. Calibrate "
        "them on held-out samples by sklearn.calibration.CalibratedClassifierCV, or train with CrossEntropy."
    )


class ConstrainedClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    r"""A perceptron that minimises an objective under constraints: ``min_w F(w)  subject to  h_j(w) <= 0``.

    Numeric columns are standardised and, if there are enough samples, get piecewise linear features
    (:class:`~fcco_lightning.data.features.PiecewiseFeatures`).  The network is trained by AdamW on mini-batches, with a
    learning rate that decreases linearly to 0, so that weights and multipliers converge.  Constraints are enforced by
    multipliers on the rates of decisions (:class:`~fcco_lightning.AdaptivePenalty`), those on differences more strictly
    than asked for by a ``margin``.  For anything else (other networks, several processes, checkpoints) use
    :class:`~fcco_lightning.FCCOModule`.

    The purpose of decisions is defined by ``decisions`` (or ``class_weight``, scikit-learn's name for costs); it is
    used by the training, the constraints and :meth:`predict`.  With several classes the class with the largest score is
    decided.

    Args:
        objective: the objective, which is minimised; :class:`~fcco_lightning.CrossEntropy` by default.
        constraints: constraints, any number; those on groups need ``sensitive_features`` in :meth:`fit`.
        penalty: how constraints are enforced; by default ``AdaptivePenalty(0.014, decisions=True)``, that is, by
            multipliers that follow the constraints on decisions.
        algorithm: the default is SONEX if running estimates are needed, else SGD.
        hidden: widths of the hidden layers; empty for a linear model.
        max_epochs: passes over the data; None for 12, or for more if these have fewer than 500 updates.
        batch_size: number of samples in a batch.  Under constraints on groups, batches hold equally many samples of
            every class and group, with weights (:class:`~fcco_lightning.CellSampling`), if otherwise they would hold
            few samples of one of these.
        learning_rate: initial learning rate of AdamW; None for .001, or .03 for a linear model.
        weight_decay: share of the weights that the first update subtracts, that is, AdamW's weight decay times the
            initial learning rate; it decreases with the learning rate.  None for 10 / n, at most .01, where n is the
            effective number of samples, given their weights and the costs of their classes; with costs and constraints
            for 25 / n, at most .02, and reduced by the spread of the scores (:class:`~fcco_lightning.Schedule`).
        pieces: number of pieces of the range of a numeric column; 1 for none; "auto" for one piece per 500 samples, at
            most 48, and for none if the model is linear or the matrix sparse.
        verbose: whether a progress bar is shown.
        random_state: seed of the initial weights and of the batches.
        decisions: "balanced", or :class:`~fcco_lightning.Decisions`: costs of the two mistakes, a budget, a smallest
            true positive rate, or a threshold of the probability; by default the more probable class is decided.
        class_weight: costs of mistakes in scikit-learn's notation, "balanced" or {label: cost}, with cost 1 for absent
            labels; instead of ``decisions``.
        margin: by how much constraints are enforced more strictly than asked for, in units of h; "auto" for the
            standard error of h if h compares two means (:meth:`Constraint.standard_error`), at most half of kappa.

    Attributes:
        classes_: the labels, in increasing order.
        rule_: the decision rule, :class:`~fcco_lightning.DecisionRule`.
        network_: the trained network in float64, for the features of ``features_``.
        features_: computes the network's features from X.
        report_: figures, tables and pictures of the training, see :class:`SplitReport`.

    Example:
        >>> from sklearn.datasets import make_classification
        >>> from fcco_lightning import ConstrainedClassifier, DemographicParity
        >>> X, y = make_classification(400, random_state=0)
        >>> group = np.where(np.arange(400) % 3 > 0, "a", "b")
        >>> model = ConstrainedClassifier(constraints=[DemographicParity(kappa=0.05)], max_epochs=60, random_state=0)
        >>> bool(model.fit(X, y, sensitive_features=group).score(X, y) > 0.7)
        True
    """

    def __init__(
        self,
        objective: Objective | None = None,
        constraints: Sequence[Constraint] = (),
        penalty: Enforcement | None = None,
        algorithm: Algorithm | None = None,
        hidden: Sequence[int] = (64, 64),
        max_epochs: int | None = None,
        batch_size: int = recipes.BATCH_SIZE,
        learning_rate: float | None = None,
        weight_decay: float | None = None,
        pieces: Pieces = "auto",
        verbose: bool = False,
        random_state: Any = None,
        margin: float | Literal["auto"] = "auto",
        decisions: Literal["balanced"] | Decisions | None = None,
        class_weight: Literal["balanced"] | Mapping[Any, float] | None = None,
    ) -> None:
        self.objective, self.constraints, self.penalty, self.algorithm = objective, constraints, penalty, algorithm
        self.hidden, self.max_epochs, self.batch_size = hidden, max_epochs, batch_size
        self.learning_rate, self.weight_decay, self.pieces = learning_rate, weight_decay, pieces
        self.verbose, self.random_state, self.margin = verbose, random_state, margin
        self.decisions, self.class_weight = decisions, class_weight

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    def fit(self, X: Any, y: Any, sensitive_features: Any = None, sample_weight: Any = None) -> Self:
        """Train the network.

        Args:
            X: features, shape (n, d): an array, a table of numbers, or a sparse matrix.
            y: labels of two or more classes, shape (n,).
            sensitive_features: the group of every sample, shape (n,), numbers or texts, which is the column ``group``
                of constraints; or a table, or a dict, of several such columns.  Then ``group`` is their combination,
                such as "sex=f, race=b", unless a column has this name, and constraints refer to single columns by
                ``by`` or ``where``.  There, as for the column ``y``, values are those that are given here:
                ``where={"age": "<25", "sex": "f"}``.
            sample_weight: weights of the samples, shape (n,), numbers >= 0: a sample of weight 2 counts as two in every
                mean, constraint and figure.

        Raises:
            DataError: if there is only one class, or a column of groups has only one group or missing cells.
            ConfigError: if an argument is out of range, or no weights can satisfy a constraint.
        """
        require_parts(self.objective, self.constraints, self.penalty, self.algorithm, AdamW)
        X, y = validate_data(self, X, y, accept_sparse="csr", dtype=np.float64, order="C")
        missing = np.flatnonzero(pd.isna(y))
        if len(missing):
            raise DataError(
                f"y holds {len(missing)} missing label(s) (None or NaN), first at position {missing[0]}. Leave these "
                "samples out."
            )
        check_classification_targets(y)
        self.classes_, labels = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise DataError(
                f"y holds the class {str(self.classes_[0])!r} only: this classifier can't train when only one class is "
                "present. Give samples of two classes or more."
            )
        groups = groups_of_samples(sensitive_features, len(y))
        self._require_groups(groups)
        self.features_ = PiecewiseFeatures(1 if self.pieces == "auto" and self._linear() else self.pieces).fit(X)
        columns = {"x": torch.from_numpy(self.features_.transform(X)).float(), "y": torch.from_numpy(labels)}
        if sample_weight is not None:
            weight = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
            columns[SAMPLE_WEIGHT] = torch.from_numpy(weight)
            counted = np.unique(labels[weight > 0])
            if len(counted) < 2:
                raise DataError(
                    f"all samples but those of the class {str(self.classes_[counted[0]])!r} have sample_weight 0: this "
                    "classifier can't train when only one class is present. Give samples of two classes a weight > 0."
                )
        size = min(at_least("batch_size", self.batch_size, 1), len(y))
        cells = pd.DataFrame({"y": labels} | ({"group": groups["group"].astype(str)} if "group" in groups else {}))
        is_rare = recipes.rare(float(cells.value_counts(normalize=True).min()), size)
        batches = CellSampling(size) if is_rare and self.constraints and "group" in groups else UniformSampling(size)
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        data = NamedArrays(columns, groups.assign(y=y), batches, seed)
        with _ALONE, quiet(), torch.random.fork_rng():
            torch.manual_seed(data.seed)
            self._train(data)
        return self

    def decision_function(self, X: Any) -> Any:
        """The scores: (n,) for two classes, > 0 if the second one is decided, except under a budget; else (n, C)."""
        check_is_fitted(self)
        X = validate_data(self, X, accept_sparse="csr", dtype=np.float64, order="C", reset=False)
        parts = (X[first : first + _AT_ONCE] for first in range(0, X.shape[0], _AT_ONCE))
        return self._scores(torch.from_numpy(self.features_.transform(part)) for part in parts).numpy()

    @torch.no_grad()
    def _scores(self, parts: Iterable[Tensor]) -> Tensor:
        return torch.cat([self.network_(part) for part in parts])

    @available_if(_has_probabilities)  # type: ignore[untyped-decorator]
    def predict_proba(self, X: Any) -> Any:
        """Probabilities of the classes, shape (n, C).

        Raises:
            AttributeError: if the objective's scores are not log-odds, such as those of ranking objectives.
        """
        scores = torch.from_numpy(self.decision_function(X))  # raises if the model is not fitted
        p = self.rule_.probabilities(scores)
        assert p is not None  # noqa: S101 - _has_probabilities
        return (torch.stack([1 - p, p], dim=1) if p.dim() == 1 else p).numpy()

    def predict(self, X: Any) -> Any:
        """The decided classes, shape (n,).

        Decisions on samples are independent, as scikit-learn requires: under a budget, a score is compared with the
        threshold from the training samples, so that about the given share of similar samples is chosen.
        :meth:`report`, and ``fcco predict`` on a table, choose exactly this share of the given samples, as does
        ``rule_.decided(torch.as_tensor(model.decision_function(X)), among_themselves=True)``.
        """
        scores = torch.from_numpy(self.decision_function(X))
        decided = self.rule_.decided(scores) if scores.dim() == 1 else scores.argmax(1)
        return self.classes_[decided.long().numpy()]

    def report(
        self,
        X: Any,
        y: Any,
        sensitive_features: Any = None,
        sample_weight: Any = None,
        *,
        importances: bool = False,
    ) -> SplitReport:
        """Evaluate the network on labelled samples: figures, constraints with intervals, tables and pictures.

        Groups are those of the training.  Samples of another group, or without one (missing), are counted in a table
        and left out of figures and constraints on groups; a constraint without samples is left out, with the reason.

        Args:
            X: features, as for :meth:`fit`.
            y: labels, shape (n,).
            sensitive_features: groups, as for :meth:`fit`; needed for constraints on groups.
            sample_weight: weights, as for :meth:`fit`.
            importances: whether to measure permutation importances of the columns of X, see
                :func:`~fcco_lightning.reports.importances.importances_of`.

        Raises:
            DataError: if a class does not occur in training.
        """
        check_is_fitted(self)
        outputs = torch.from_numpy(self.decision_function(X)).float()
        X, y = validate_data(self, X, y, accept_sparse="csr", dtype=np.float64, order="C", reset=False)
        unknown = sorted(set(y.tolist()) - set(self.classes_.tolist()))
        if unknown:
            raise DataError(
                f"y has the classes {unknown}, which are not among the classes of training, {self.classes_.tolist()}. "
                "Leave these samples out."
            )
        groups = groups_of_samples(sensitive_features, len(y), later=True)
        columns = {"y": torch.from_numpy(np.searchsorted(self.classes_, y))}
        if sample_weight is not None:
            weight = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
            columns["weight"] = of_mean_one(torch.from_numpy(weight), "the samples")
        data = NamedArrays(columns, groups.assign(y=y), groups=self._groups, classes=self.classes_)
        module = FCCOModule(self.network_, constraints=copy.deepcopy(list(self.constraints)), **self._parts())
        module.rule = self.rule_
        features = self._features(X) if importances else None
        return report_of(module, data, outputs, counts_of_no_group(groups, self._groups), LeftOut(), {}, features)

    def _features(self, X: Any) -> Features:
        names = getattr(self, "feature_names_in_", [f"x{j}" for j in range(self.n_features_in_)])
        columns = [str(names[j]) for j in self.features_.columns]
        x = torch.from_numpy(self.features_.transform(X))
        return Features(x, columns, lambda x, _: self._scores(torch.split(x, _AT_ONCE)).float())

    def _parts(self) -> dict[str, Any]:
        """Objective, constraints, penalty and so on as arguments of :class:`FCCOModule`."""
        return {
            "objective": copy.deepcopy(self.objective) or CrossEntropy(),
            "penalty": copy.deepcopy(self.penalty) or AdaptivePenalty(recipes.MULTIPLIER_RATE, decisions=True),
            "evaluation": ClassEvaluation() if len(self.classes_) > 2 else None,
        }

    def _train(self, data: NamedArrays) -> None:
        data.setup("fit")
        epochs = recipes.epochs(data.updates)
        if self.max_epochs is not None:
            epochs = at_least("max_epochs", self.max_epochs, 1)
        updates, decisions = epochs * data.updates, self._decisions()
        costed = bool(self.constraints) and decisions.asked and decisions.mistakes
        rate = recipes.LINEAR_LEARNING_RATE if self._linear() else recipes.LEARNING_RATE
        if self.learning_rate is not None:
            rate = positive("learning_rate", self.learning_rate)
        counted = _counted(data, decisions)
        decay = recipes.weight_decay(recipes.effective_size(*counted), costed=costed)
        if self.weight_decay is not None:
            decay = below_one("weight_decay", self.weight_decay)
        two = len(self.classes_) == 2
        as_counted = two and not self.constraints and not isinstance(self.objective, GroupObjective)
        offset = recipes.log_odds(*counted) if as_counted else 0.0
        module = FCCOModule(
            TabularMLP(self.hidden, out_features=1 if two else len(self.classes_), offset=offset),
            constraints=copy.deepcopy(list(self.constraints)),
            algorithm=copy.deepcopy(self.algorithm),
            optimizer=lambda params: AdamW(params, lr=rate, weight_decay=decay / rate),
            schedule=Schedule(
                lambda optimizer: PolynomialLR(optimizer, updates),
                interval="step",
                decay_spread=recipes.DECAY_SPREAD if costed else None,
            ),
            decisions=decisions,
            margin=self.margin if self.margin == "auto" else non_negative("margin, unless 'auto',", self.margin),
            **self._parts(),
        )
        with tempfile.TemporaryDirectory() as folder:
            report = Report(pictures=False, table=False, folder=folder)
            Trainer(
                max_epochs=epochs,
                devices=1,
                logger=False,
                enable_checkpointing=False,
                enable_model_summary=False,
                enable_progress_bar=self.verbose,
                check_val_every_n_epoch=-(-epochs // 10),
                default_root_dir=folder,
                callbacks=[report, *([TQDMProgressBar()] if self.verbose else [])],
            ).fit(module, data)
        self.network_ = module.network.cpu().double().eval()  # in float32 a score depends on the batch
        self.rule_, self._groups = module.rule, data.groups
        table = data.tables["train"].columns
        final = {
            "train": (
                self._scores(part.double() for part in torch.split(table["x"], _AT_ONCE)).float(),
                {_EVALUATED.get(name, name): column for name, column in table.items() if name != "x"},
            )
        }
        self.report_ = SplitReport(report.report, report.history, module.evaluation, final)

    def _linear(self) -> bool:
        """Whether scores are linear in the features."""
        return np.size(self.hidden) == 0

    def _decisions(self) -> Decisions:
        """The purpose of decisions from ``decisions`` or ``class_weight``."""
        if self.class_weight is None:
            return as_decisions(self.decisions)
        if self.decisions is not None:
            raise ConfigError(
                f"class_weight={self.class_weight!r} and decisions={self.decisions!r} both define the costs of "
                "mistakes. Leave one of them out."
            )
        if self.class_weight == "balanced":
            return Decisions(costs="balanced")
        costs, labels = self.class_weight, self.classes_.tolist()
        if not isinstance(costs, Mapping) or not set(costs) <= set(labels):
            raise ConfigError(
                f"class_weight must be 'balanced', or a mapping from some of the classes {labels} to costs (1 for the "
                f"others), got {costs!r}."
            )
        return Decisions(costs=[float(costs.get(label, 1)) for label in labels])

    def _require_groups(self, groups: pd.DataFrame) -> None:
        """Refuse an objective or constraints on groups if there are no such groups."""
        if isinstance(self.objective, GroupObjective) and "group" not in groups:
            raise DataError(
                f"{type(self.objective).__name__} needs groups, and sensitive_features has not been given. Call "
                "fit(X, y, sensitive_features=...) with one group for every sample, or with a table of columns."
            )
        for constraint in self.constraints:
            comparison = getattr(constraint, "over", None)
            column = comparison.by if isinstance(comparison, SidesOfGroups) else None
            if column is not None and column not in groups:
                raise DataError(
                    f"{type(constraint).__name__} compares the groups of {column!r}, and sensitive_features has "
                    f"{sorted(map(str, groups)) or 'not been given'}. Call fit(X, y, sensitive_features=...) with one "
                    "group for every sample, or with a table that has this column."
                )


def _counted(data: NamedArrays, decisions: Decisions) -> tuple[list[float], list[float]]:
    """For every class the sum of its samples' weights, and the cost of a mistake on one of them."""
    table = data.tables["train"].columns
    counts = torch.bincount(table["y"], table.get(SAMPLE_WEIGHT))
    costs = decisions.class_costs(counts) if decisions.mistakes else torch.ones(len(counts))
    return counts.tolist(), costs.tolist()
