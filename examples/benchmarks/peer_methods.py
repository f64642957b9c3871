"""Training under fairness constraints by this project and by other libraries, for peers.py; none is a dependency.

All methods get the same network, batches, number of epochs and objective.  Cooper and humancompatible-train take any
constraint: they get the values h of this project's constraints on the mini-batch, two of them where ``|s| <= kappa``.
Fairret penalises statistics of its own, of the same smoothed decisions, and knows no tolerance.  Fairlearn chooses
thresholds for both groups, on the training split, after training without constraints.
"""

import importlib.util
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from sklearn.base import BaseEstimator
from timing import Step, descent, engine_step
from torch import Tensor, nn
from torch.nn.functional import one_hot
from torch.optim import Adam, Optimizer

from fcco_lightning import (
    AUC,
    AdamType,
    Constraint,
    CrossEntropy,
    DemographicParity,
    Engine,
    EqualizedOdds,
    EqualOpportunity,
    Objective,
    PredictiveParity,
    QuantileScores,
    Quantity,
    ROCFairness,
    SoftRate,
    TabularDataModule,
)
from fcco_lightning.algorithms import default_algorithm
from fcco_lightning.evaluation.metrics import auc, roc_gap
from fcco_lightning.outer import excess

INSTALL = "uv pip install cooper-optim fairret fairlearn humancompatible-train"
Columns = dict[str, Tensor]
ROC_LEVELS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95)
TEMPERATURE = 0.2  # of a smoothed decision


class Given(Quantity):
    """Decisions, or their probabilities, that are known already."""

    def __call__(self, outputs: Tensor, batch: Columns) -> Tensor:  # noqa: ARG002
        return outputs


class Predicted(NamedTuple):
    """What a model says of n samples.

    Attributes:
        scores: (n,), raw.
        smoothed: probabilities of a positive decision as the constraints see them, (n,) in [0, 1].
        decisions: (n,), 0 or 1, or the probability of 1 where decisions are drawn.
    """

    scores: Tensor
    smoothed: Tensor
    decisions: Tensor


Model = Callable[[Columns], Predicted]


class Fairness:
    """An objective under a constraint on the rates of decisions: accuracy, trained by cross-entropy.

    Args:
        constraint: class of the constraint, which keeps its default tolerance.
        statistics: names of fairret's statistics.
        thresholds: fairlearn's name of the constraint, if its ThresholdOptimizer knows it.
    """

    def __init__(
        self, constraint: Callable[..., Constraint], statistics: list[str], thresholds: str | None = None
    ) -> None:
        self.make, self.statistics, self.thresholds = constraint, statistics, thresholds
        self.rate = SoftRate(temperature=TEMPERATURE)

    def objective(self) -> Objective:
        """What is minimised."""
        return CrossEntropy()

    def constraint(self) -> Constraint:
        """What is to hold."""
        return self.make(rate=self.rate)

    def smoothed(self, scores: Tensor) -> Tensor:
        """Decisions (n, T) of which fairret's statistics are taken, for T thresholds."""
        return self.rate(scores, {}).unsqueeze(1)

    def figures(self, predicted: Predicted, columns: Columns) -> dict[str, float]:
        """The objective, and the largest h of smoothed and of hard decisions, on a split."""
        right = torch.where(columns["y"] == 1, predicted.decisions, 1 - predicted.decisions)
        of_rates = self.make(rate=Given())
        smoothed, hard = (largest(of_rates, q, columns) for q in (predicted.smoothed, predicted.decisions))
        return {"objective": float(right.mean()), "violation": smoothed, "hard": hard}


class EqualROC(Fairness):
    """The area under the ROC curve under equal ROC curves, in the form that cannot be gamed."""

    def __init__(self) -> None:
        super().__init__(ROCFairness, ["TruePositiveRate", "FalsePositiveRate"])

    def objective(self) -> Objective:
        return AUC(cross_entropy=0)

    def constraint(self) -> ROCFairness:
        return ROCFairness(ROC_LEVELS, kappa=0.01, temperature=0.1, scale=QuantileScores())

    def smoothed(self, scores: Tensor) -> Tensor:
        constraint = self.constraint()
        levels = constraint.quantity.scale(scores).unsqueeze(1) - torch.tensor(ROC_LEVELS)
        return torch.sigmoid(levels / constraint.quantity.temperature)

    def figures(self, predicted: Predicted, columns: Columns) -> dict[str, float]:
        constraint, scores = self.constraint(), predicted.scores
        return {
            "objective": float(auc(scores, columns["y"])),
            "violation": largest(constraint, scores, columns),
            "hard": float(roc_gap(scores, columns["y"], columns["group"])) - constraint.kappa,
        }


PROBLEMS = {
    "ROC fairness": EqualROC(),
    "demographic parity": Fairness(DemographicParity, ["PositiveRate"], "demographic_parity"),
    "equal opportunity": Fairness(EqualOpportunity, ["TruePositiveRate"], "true_positive_rate_parity"),
    "equalized odds": Fairness(EqualizedOdds, ["TruePositiveRate", "FalsePositiveRate"], "equalized_odds"),
    "predictive parity": Fairness(PredictiveParity, ["PositivePredictiveValue"]),
}


def largest(constraint: Constraint, outputs: Tensor, columns: Columns) -> float:
    """The largest h_i on a split."""
    return float(constraint.violation(constraint.measure(outputs, columns)[1].values).max())


def excesses(constraint: Constraint, outputs: Tensor, batch: Columns) -> Tensor:
    """Every side's h on a mini-batch, shape (rows * sides,); 0 for rows that the batch does not measure."""
    _, rows = constraint.measure(outputs, batch)
    h = excess(constraint.number(rows.values).unsqueeze(1), constraint.kappa, constraint.sides)
    return torch.where(rows.weight.unsqueeze(1), h, 0.0).flatten()


def of_network(network: nn.Module, problem: Fairness) -> Model:
    """Decisions by the sign of the score."""

    def model(columns: Columns) -> Predicted:
        scores = network(columns["x"]).squeeze(-1)
        return Predicted(scores, problem.rate(scores, columns), (scores > 0).to(scores.dtype))

    return model


def batches(module: TabularDataModule, epochs: int) -> Iterator[Columns]:
    """Training batches, epoch after epoch."""
    loader = module.train_dataloader()
    for epoch in range(epochs):
        loader.sampler.set_epoch(epoch)
        yield from loader


def ours(network: nn.Module, problem: Fairness, module: TabularDataModule) -> Step:
    """This project as it comes: nothing is chosen but the objective and the constraint."""
    objective = problem.objective()
    algorithm = default_algorithm(objective, constrained=True)
    posed = algorithm.pose(objective, [problem.constraint()], num_samples=module.num_train, sampling=module.sampling())
    engine = Engine(network, posed, algorithm)
    return engine_step(engine, AdamType(engine.params))


def cooper(
    network: nn.Module,
    problem: Fairness,
    lr: float,
    dual: float,
    optimizer: Callable[..., Optimizer] = Adam,
    *,
    strict: bool = False,
) -> Step:
    """The Lagrangian with simultaneous descent and ascent; if ``strict`` its multipliers follow the decisions."""
    import cooper as library

    objective, constraint, hard = problem.objective(), problem.constraint(), problem.make(rate=Given())
    multiplier = library.multipliers.DenseMultiplier(num_constraints=constraint.num_rows * constraint.sides)

    class Constrained(library.ConstrainedMinimizationProblem):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.fair = library.Constraint(library.ConstraintType.INEQUALITY, multiplier=multiplier)

        def compute_cmp_state(self, batch: Columns) -> Any:
            outputs = network(batch["x"])
            violation = excesses(constraint, outputs, batch)
            decided = excesses(hard, (outputs > 0).to(outputs.dtype), batch) if strict else None
            state = library.ConstraintState(violation=violation, strict_violation=decided)
            loss, _ = objective.measure(outputs, batch)
            return library.CMPState(loss=loss, observed_constraints={self.fair: state})

    constrained = Constrained()
    both = library.optim.SimultaneousOptimizer(
        cmp=constrained,
        primal_optimizers=optimizer(network.parameters(), lr=lr),
        dual_optimizers=torch.optim.SGD(constrained.dual_parameters(), lr=dual, maximize=True),
    )
    return lambda batch: both.roll({"batch": batch})


def humancompatible(
    network: nn.Module, problem: Fairness, lr: float, dual: float, optimizer: Callable[..., Optimizer] = Adam
) -> Step:
    """The augmented Lagrangian with penalty 1."""
    from humancompatible.train.dual_optim import ALM

    objective, constraint = problem.objective(), problem.constraint()
    duals = ALM(m=constraint.num_rows * constraint.sides, lr=dual, penalty=1.0, is_ineq=True)

    def loss(batch: Columns) -> Tensor:
        outputs = network(batch["x"])
        value, _ = objective.measure(outputs, batch)
        return duals.forward_update(value, excesses(constraint, outputs, batch))

    return descent(loss, optimizer(network.parameters(), lr=lr))


def fairret(network: nn.Module, problem: Fairness, lr: float, dual: float) -> Step:
    """The norm of the groups' relative distances from the overall statistics, with weight ``dual``."""
    from fairret import statistic
    from fairret.loss import NormLoss

    objective = problem.objective()
    norms = [NormLoss(getattr(statistic, name)()) for name in problem.statistics]

    def penalty(outputs: Tensor, batch: Columns) -> Tensor:
        q = problem.smoothed(outputs.squeeze(-1))  # every threshold makes samples, and groups, of its own
        levels = q.shape[1]
        label = batch["y"].to(q.dtype).repeat(levels).unsqueeze(1)
        known = () if problem.statistics == ["PositiveRate"] else (label,)
        q, level = q.T.reshape(-1, 1), one_hot(torch.arange(levels).repeat_interleave(len(outputs)), levels)
        group = one_hot(batch["group"], 2).repeat(levels, 1)
        both = (level.unsqueeze(2) * group.unsqueeze(1)).flatten(1).to(q.dtype)

        def distance(norm: Any) -> Tensor:
            overall = norm.statistic(q, level.to(q.dtype), *known).repeat_interleave(2)
            return norm(q, both, *known, pred_as_logit=False, target_statistic=overall)

        return torch.stack([distance(norm) for norm in norms]).sum() / levels

    def loss(batch: Columns) -> Tensor:
        outputs = network(batch["x"])
        value, _ = objective.measure(outputs, batch)
        cells = torch.bincount(2 * batch["group"] + batch["y"], minlength=4)
        return value + dual * penalty(outputs, batch) if bool(cells.all()) else value  # else they are undefined

    return descent(loss, Adam(network.parameters(), lr=lr))


def plain(network: nn.Module, problem: Fairness, lr: float) -> Step:
    """The objective alone."""
    objective = problem.objective()
    return descent(lambda batch: objective.measure(network(batch["x"]), batch)[0], Adam(network.parameters(), lr=lr))


class Scorer(BaseEstimator):  # type: ignore[misc]
    """A trained network as fairlearn wants to see it."""

    def __init__(self, network: nn.Module) -> None:
        self.network = network

    def fit(self, x: Any, y: Any) -> "Scorer":  # noqa: ARG002
        """Nothing is left to do."""
        return self

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def decision_function(self, x: Any) -> Any:
        """Scores (n,), in the type in which fairlearn computes probabilities."""
        with torch.no_grad():
            return self.network(torch.as_tensor(x, dtype=torch.float32)).squeeze(-1).double().numpy()


def thresholds(network: nn.Module, problem: Fairness, train: Columns) -> Model:
    """Thresholds of both groups, drawn at random where need be, with which the constraint holds on the training split.

    The tolerance is the constraint's where fairlearn knows one, which is not so for equalized odds.
    """
    from fairlearn.postprocessing import ThresholdOptimizer

    tolerance = None if problem.thresholds == "equalized_odds" else problem.constraint().kappa
    chosen = ThresholdOptimizer(
        estimator=Scorer(network),
        constraints=problem.thresholds,
        prefit=True,
        predict_method="decision_function",
        tol=tolerance,
    )
    chosen.fit(train["x"].numpy(), train["y"].numpy(), sensitive_features=train["group"].numpy())

    def model(columns: Columns) -> Predicted:
        drawn = chosen._pmf_predict(columns["x"].numpy(), sensitive_features=columns["group"].numpy())
        probability = torch.as_tensor(drawn[:, 1], dtype=torch.float32)
        return Predicted(network(columns["x"]).squeeze(-1), probability, probability)

    return model


OURS, FAIRLEARN = "fcco_lightning", "fairlearn"
LIBRARIES = {"cooper": cooper, "humancompatible": humancompatible, "fairret": fairret}


def available() -> list[str]:
    """The peers that are installed; says which are not."""
    peers = [*LIBRARIES, FAIRLEARN]
    missing = [name for name in peers if importlib.util.find_spec(name) is None]
    if missing:
        print(f"Not installed, so left out: {', '.join(missing)} ({INSTALL})")
    return [name for name in peers if name not in missing]


def applies(method: str, problem: Fairness) -> bool:
    """Whether a method knows a constraint of this kind."""
    return method != FAIRLEARN or problem.thresholds is not None


def fitted(
    method: str, problem: Fairness, network: nn.Module, module: TabularDataModule, epochs: int, rates: dict[str, float]
) -> Model:
    """A trained model; ``rates`` are the learning rate ``lr`` and the dual rate ``dual`` of peers."""
    if method == OURS:
        step = ours(network, problem, module)
    elif method == FAIRLEARN:
        step = plain(network, problem, **rates)
    else:
        step = LIBRARIES[method](network, problem, **rates)
    for batch in batches(module, epochs):
        step(batch)
    network.eval().requires_grad_(requires_grad=False)
    if method == FAIRLEARN:
        return thresholds(network, problem, module.tables["train"].columns)
    return of_network(network, problem)
