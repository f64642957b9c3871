"""The registry of algorithms: how each is made, and its capabilities."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from fcco_lightning import (
    ALEXR,
    ALEXR2,
    BSGD,
    MOAP,
    MSVR,
    OOA,
    PDSCA,
    PGSMD,
    PGSVRG,
    SCENT,
    SGD,
    SMD,
    SOAP,
    SONEX,
    SONX,
    SOX,
    AdamType,
    AugmentedLagrangian,
    CappedSimplex,
    CrossEntropy,
    EqualStages,
    GroupMaxForm,
    HeavyBall,
    HingePenalty,
    KLPenalty,
    NuPI,
    Objective,
    SampleDRO,
)
from fcco_lightning.algorithms import ICPPAC, Algorithm, DoubleLoop, SingleLoop, SOXBoost, Switching
from fcco_lightning.estimators import Average
from fcco_lightning.outer import MoreauSmoothing

PENALTY = 3.0


class Member(NamedTuple):
    """An algorithm and its capabilities.

    Attributes:
        make: makes the algorithm.
        optimizer: makes the user's optimizer from params, lr and beta.
        convex: whether f must be convex.
        max_form: whether it works on the max form of an objective.
        shards: whether its rows may be divided among processes.
        compositional: whether it uses the compositional terms in training.
        rows: whether it keeps rows.
        exact_rows: whether the mean of G over batches is the gradient of F if rows are exact and gamma is 1; otherwise
            this requires exact inner values, too.
        jacobian: the part of the batch that gives the Jacobian, for algorithms with two draws.
        logarithm: whether the outer function of the objective has to be a logarithm.
        objective: the objective for its trainings, if its other capabilities do not determine one.
        restarts: whether q is reset at every stage, so that the first step does not use the rows.
        gradients: whether every step computes a gradient.
        inner: whether it accepts objectives with inner functions.
        gamma_one: the same algorithm with gamma = 1 and no correction, for the test of its expectation.
        penalty: how constraints are enforced; None for an algorithm without constraints.
    """

    make: Callable[[], Algorithm]
    gamma_one: Callable[[], Algorithm]
    optimizer: Callable[..., Any] = HeavyBall
    convex: bool = False
    max_form: bool = False
    shards: bool = True
    compositional: bool = True
    rows: bool = True
    exact_rows: bool = True
    jacobian: str | None = None
    logarithm: bool = False
    penalty: Callable[[], Any] = lambda: HingePenalty(PENALTY)
    objective: Callable[[], Objective] | None = None
    restarts: bool = False
    gradients: bool = True
    inner: bool = True


def alexr(jacobian: Any) -> Member:
    return Member(
        lambda: ALEXR(1.5, 0.5, jacobian=jacobian),
        lambda: ALEXR(1.5, 0.0, jacobian=jacobian),
        convex=True,
        jacobian=jacobian,
    )


def alexr2(jacobian: Any) -> Member:
    return Member(
        lambda: ALEXR2(K=3, eta=0.2, nu=0.4, lam=0.1, gamma=0.4, gamma_prime=0.2, jacobian=jacobian),
        lambda: ALEXR2(K=3, eta=0.2, nu=0.4, lam=0.1, gamma=1.0, gamma_prime=0.0, jacobian=jacobian),
        convex=True,
        jacobian=jacobian,
    )


def penalised() -> Objective:
    return GroupMaxForm(None, None, 3, KLPenalty(0.5))


guided = partial(Member, max_form=True, restarts=True)
PGSMD_OF_GROUPS = guided(
    lambda: PGSMD(0.4, EqualStages(3, 0.2, 0.3)),
    lambda: PGSMD(0.4, EqualStages(2, 0.2, 0.3)),
)


ALGORITHMS: dict[str, Member] = {
    "SGD": Member(SGD, SGD, compositional=False, rows=False),
    "BSGD": Member(BSGD, BSGD, rows=False, exact_rows=False),
    "SOX": Member(lambda: SOX(0.4), lambda: SOX(1.0)),
    "SOX, Adam": Member(lambda: SOX(0.4), lambda: SOX(1.0), AdamType),
    "SOAP": Member(lambda: SOAP(0.4), lambda: SOAP(1.0), exact_rows=False),
    "MOAP": Member(lambda: MOAP(0.4), lambda: MOAP(1.0), exact_rows=False),
    "MSVR": Member(lambda: MSVR(0.4, 0.2, b=0.3), lambda: SingleLoop(Average(1.0, 0.0, fresh=True)), exact_rows=False),
    "MSVR, theory and Adam": Member(
        lambda: MSVR(0.4, b=0.3),
        lambda: SingleLoop(Average(1.0, 0.0, fresh=True)),
        AdamType,
        exact_rows=False,
    ),
    "SONX": Member(lambda: SONX(0.4, 0.2), lambda: SONX(1.0, 0.0)),
    "SONEX": Member(lambda: SONEX(0.4, 0.2, lam=0.1), lambda: SONEX(1.0, 0.0, lam=0.1)),
    "SONEX, Adam": Member(lambda: SONEX(0.4, 0.2, lam=0.1), lambda: SONEX(1.0, 0.0, lam=0.1), AdamType),
    "SONEX, rates of its own": Member(
        lambda: SONEX(0.4, 0.0, lam=0.1, objective_gamma=0.7, objective_gamma_prime=0.3),
        lambda: SONEX(1.0, 0.0, lam=0.1, objective_gamma=0.7),
    ),
    "SONEX, multipliers": Member(
        lambda: SONEX(0.4, "theory", lam=0.1),
        lambda: SONEX(1.0, 0.0, lam=0.1),
        penalty=lambda: AugmentedLagrangian(5.0, 0.3),
    ),
    "SONEX, decisions": Member(
        lambda: SONEX(0.4, 0.2, lam=0.1),
        lambda: SONEX(1.0, 0.0, lam=0.1, fresh=True),
        exact_rows=False,
        penalty=lambda: AugmentedLagrangian(5.0, 0.3, decisions=True),
    ),
    "ALEXR2, multipliers": alexr2("old")._replace(penalty=lambda: NuPI(0.3, 2.0, 0.5)),
    "SOXBoost": Member(lambda: SOXBoost(0.4, first_stage=3), lambda: SOXBoost(1.0, first_stage=3), shards=False),
    "ALEXR": alexr("halves"),
    "ALEXR, part": alexr("part"),
    "ALEXR, old": alexr("old"),
    "ALEXR, reuse": alexr("reuse"),
    "ALEXR, mirror": Member(
        lambda: ALEXR(1.5, 0.5, mirror=True),
        lambda: ALEXR(1e-9, 0.0, mirror=True),
        convex=True,
        jacobian="halves",
    ),
    "ALEXR2": alexr2("halves"),
    "ALEXR2, part": alexr2("part"),
    "ALEXR2, old": alexr2("old"),
    "ALEXR2, reuse": alexr2("reuse"),
    "OOA": Member(lambda: OOA(0.3), lambda: OOA(1e-12), max_form=True),
    "OOA, Euclidean": Member(lambda: OOA(0.02, "euclidean"), lambda: OOA(1e-12, "euclidean"), max_form=True),
    "SMD": Member(lambda: SMD(0.3), lambda: SMD(1e-12), max_form=True),
    "PGSMD": PGSMD_OF_GROUPS,
    "PGSMD, Euclidean, in a ball": guided(
        lambda: PGSMD(0.4, EqualStages(3, 0.2, 0.02), "euclidean", radius=1.5),
        lambda: PGSMD(0.4, EqualStages(2, 0.2, 0.3), "euclidean"),
    ),
    "PGSMD, samples": PGSMD_OF_GROUPS._replace(objective=lambda: SampleDRO(CappedSimplex(0.5))),
    "PGSMD, best start": guided(
        lambda: PGSMD(0.4, EqualStages(3, 0.2, 0.3, best_start=True)),
        lambda: PGSMD(0.4, EqualStages(2, 0.2, 0.3, best_start=True)),
        objective=penalised,
        gradients=False,
    ),
    "PGSMD, linearised": guided(
        lambda: PGSMD(0.4, EqualStages(3, 0.2, 0.3), linearised=True),
        lambda: PGSMD(0.4, EqualStages(2, 0.2, 0.3), linearised=True),
    ),
    "PGSVRG": guided(
        lambda: PGSVRG(0.4, 0.2, 0.3, J=3, K=2),
        lambda: PGSVRG(0.4, 0.2, 0.3, J=2, K=2),
    ),
    "PGSVRG, linearised": guided(
        lambda: PGSVRG(0.4, 0.2, 0.3, J=2, K=3, linearised=True),
        lambda: PGSVRG(0.4, 0.2, 0.3, J=2, K=2, linearised=True),
    ),
    "PGSVRG, penalty": guided(
        lambda: PGSVRG(0.4, 0.2, 0.3, J=2, K=3),
        lambda: PGSVRG(0.4, 0.2, 0.3, J=2, K=2),
        objective=penalised,
    ),
    "SCENT": Member(lambda: SCENT(0.4, 0.4), lambda: SCENT(1e12, 1.0), exact_rows=False, logarithm=True),
    "PDSCA": Member(lambda: PDSCA(0.3, 0.4, row_gamma=0.4), lambda: PDSCA(1e-12, 1.0, row_gamma=1.0)),
    "PDSCA, first order": Member(
        lambda: PDSCA(0.3, 0.4, hessian=False, row_gamma=0.4),
        lambda: PDSCA(1e-12, 1.0, hessian=False, row_gamma=1.0),
        AdamType,
    ),
    "Switching": Member(
        lambda: Switching(0.4, 0.2, tolerance=0.01),
        lambda: Switching(1.0, 0.0),
        exact_rows=False,
        penalty=lambda: None,
    ),
    "ICPPAC": Member(
        lambda: ICPPAC(0.3, 0.2, 2.0, 0.4, K=3),
        lambda: ICPPAC(0.3, 0.2, 2.0, 0.0, K=3),
        compositional=False,
        rows=False,
        exact_rows=False,
        penalty=lambda: None,
        objective=CrossEntropy,
        gradients=False,
        inner=False,
    ),
    "SingleLoop": Member(
        lambda: SingleLoop(Average(0.4, 0.2, fresh=True), MoreauSmoothing(0.1)),
        lambda: SingleLoop(Average(1.0, 0.0, fresh=True)),
        exact_rows=False,
    ),
    "DoubleLoop": Member(
        lambda: DoubleLoop(Average(0.4, 0.2, fresh=True, convex_only=True), K=3, eta=0.2, nu=0.4, jacobian="old"),
        lambda: DoubleLoop(Average(1.0, 0.0, fresh=True, convex_only=True), K=3, eta=0.2, nu=0.4, jacobian="old"),
        convex=True,
        jacobian="old",
    ),
}
