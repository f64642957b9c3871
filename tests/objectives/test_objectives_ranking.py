"""Objectives that rank positives above negatives: identities, bad input, and training with every algorithm."""

import math
import warnings
from itertools import combinations, product

import pytest
import torch
from torch import nn

from fcco_lightning import (
    ALEXR,
    ALEXR2,
    AUC,
    BSGD,
    MOAP,
    MSVR,
    SGD,
    SOAP,
    SONEX,
    SONX,
    SOX,
    AUCMargin,
    AveragePrecision,
    CrossEntropy,
    CVaRPartialAUC,
    Drawn,
    Engine,
    HeavyBall,
    KLPartialAUC,
    MeanAveragePrecision,
    PNormPush,
    SingleLoop,
    UniformBatches,
)
from fcco_lightning.errors import ConfigError, DataError, NonFiniteError
from fcco_lightning.objectives import ExponentialPair, Objective, RecallAtK, SquaredHingePair, SquaredPair
from fcco_lightning.objectives.ratios import warn_of_ratios
from tests.contracts.registry_objectives_ranking import CASES, as_recommended, average_precision, logistic
from tests.contracts.sampled import STRATUM, WAYS, Bench, Case
from tests.plans import BalancedBatches, LabelBatches

N, POSITIVES = 60, 12
Y = (torch.arange(N) % (N // POSITIVES) == 0).long()


def features(seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(N, 3, generator=generator, dtype=torch.float64)
    return x + 0.8 * Y.unsqueeze(1)


def posed(objective, y=Y, algorithm=None, plan=None):
    columns = {"y": y, "index": torch.arange(len(y))}
    plan = plan or BalancedBatches(y, 16)
    return (algorithm or (SGD() if objective.outer is None else SOX(0.5))).pose(
        objective.double(), num_samples=len(y), sampling={"target": Drawn(columns, plan)}, dtype=torch.float64
    )


def exact(objective, scores, y=Y):
    """F on all samples."""
    problem = posed(objective, y)
    columns = {"y": y, "index": torch.arange(len(y)), "x": torch.arange(len(y))}
    network = nn.Embedding(len(y), 1).double()
    network.weight.data.copy_(scores.unsqueeze(1))
    engine = Engine(nn.Sequential(network, nn.Flatten(0)), problem, SOX(0.5))
    seen = engine.measure(engine.evaluate({"target": columns}))
    value = 0.0 if seen[0] is None else seen[0].item()
    # the plan's weights are those of balanced batches: all rows weigh the same here
    return value + sum(r.f(r.g.detach())[r.present].mean().item() for r in seen[1])


def scores(seed=1):
    return torch.randn(N, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# ---------------------------------------------------------------------------------------------------------- identities


def test_margin_loss_is_the_maximum_over_its_dual_variable():
    s = scores()
    positives, negatives = s[Y == 1], s[Y == 0]
    for margin in (0.5, 3.0):
        objective = AUCMargin(margin).double()
        with torch.no_grad():
            objective.a.copy_(positives.mean())
            objective.b.copy_(negatives.mean())
        spread = positives.var(correction=0) + negatives.var(correction=0)
        gap = margin + negatives.mean() - positives.mean()
        alpha = torch.linspace(0, 10, 100_001, dtype=torch.float64)
        best = float((2 * alpha * gap - alpha**2).max())
        assert exact(objective, s) == pytest.approx(float(spread) + best, abs=1e-7)
        if gap > 0:  # then alpha >= 0 does not bind, and the value is the mean squared loss of all pairs
            assert exact(objective, s) == pytest.approx(exact(AUC(SquaredPair(margin)), s), rel=1e-9)


@pytest.mark.parametrize(("max_fpr", "min_tpr"), [(0.25, 0.0), (1.0, 0.5), (0.25, 0.5)])
def test_partial_auc_is_the_mean_over_the_lowest_positives_and_the_highest_negatives(max_fpr, min_tpr):
    """At the best thresholds, found on the grid of all losses."""
    s, loss = scores(), SquaredHingePair(2.0)
    positives, negatives = s[Y == 1].sort().values, s[Y == 0].sort(descending=True).values
    count_p, count_n = round((1 - min_tpr) * len(positives)), round(max_fpr * len(negatives))
    expected = float(loss(positives[:count_p].unsqueeze(1) - negatives[:count_n]).mean())
    losses = loss(s[Y == 1].unsqueeze(1) - s[Y == 0])
    thresholds = losses.sort(1, descending=True).values[:, count_n - 1] * (max_fpr < 1)
    each = (
        thresholds + (losses - thresholds.unsqueeze(1)).clamp(min=0).mean(1) / max_fpr
        if max_fpr < 1
        else losses.mean(1)
    )
    c = float(each.sort(descending=True).values[count_p - 1]) if min_tpr else 0.0
    objective = CVaRPartialAUC(max_fpr, min_tpr, loss, threshold=c, sigmoid=False)
    if max_fpr == 1:
        assert exact(objective, s) == pytest.approx(expected, rel=1e-6)
        return
    columns = {"y": Y, "index": torch.arange(N), "threshold": torch.zeros(N, 1, dtype=torch.float64)}
    columns["threshold"][Y == 1] = thresholds.unsqueeze(1)
    direct, rows = objective.measure(s, columns)
    value = direct.item()
    if min_tpr:
        values = (rows.outer or objective.outer)(rows.values)
        assert torch.equal(rows.weight != 0, Y == 1)
        value += values[Y == 1].mean().item()
    assert value == pytest.approx(expected, rel=1e-6)


def test_soft_partial_auc_goes_from_the_mean_to_the_worst_negative():
    s, loss = scores(), SquaredHingePair()
    losses = loss(s[Y == 1].unsqueeze(1) - s[Y == 0])
    assert exact(KLPartialAUC(1e4, sigmoid=False), s) == pytest.approx(float(losses.mean()), rel=1e-3)
    assert exact(KLPartialAUC(0.05, sigmoid=False), s) == pytest.approx(float(losses.max(1).values.mean()), rel=0.1)
    each = torch.log(torch.exp(losses).mean(1))
    best = 0.7 * float(torch.log(torch.exp(each / 0.7).mean()))
    assert exact(KLPartialAUC(1.0, tau=0.7, threshold=best, sigmoid=False), s) == pytest.approx(best, rel=1e-6)
    assert exact(KLPartialAUC(1.0, tau=0.7, threshold=best + 0.1, sigmoid=False), s) > best


def test_average_precision_tends_to_that_of_sklearn_for_scores_far_apart():
    """With a sharp sigmoid-like loss the surrogate is minus a smooth average precision of the same order."""
    from sklearn.metrics import average_precision_score

    from fcco_lightning.objectives import SigmoidPair

    s = 100 * scores()
    found = -exact(AveragePrecision(SigmoidPair(0.1), sigmoid=False), s)
    # an anchor has the loss 1/2 of itself in place of 1
    positives, every = s[Y == 1], s
    ranks = [((positives > a).sum() + 0.5) / ((every > a).sum() + 0.5) for a in positives]
    assert found == pytest.approx(float(torch.stack(ranks).mean()), rel=1e-2)
    assert found == pytest.approx(average_precision_score(Y, s), abs=0.1)


def test_exponential_pairs_stay_finite():
    loss = ExponentialPair(0.5)
    d = torch.tensor([2.0, 0.0, -3.0, -1e6], dtype=torch.float64, requires_grad=True)
    values = loss(d)
    assert values[:3].tolist() == pytest.approx(torch.exp(-2 * d[:3]).tolist())
    assert values.isfinite().all()
    (slope,) = torch.autograd.grad(values.sum(), d)
    assert slope.isfinite().all()
    assert (slope < 0).all()


# --------------------------------------------------------------------------------------------------- batches of labels

TASK = torch.tensor([0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2])  # of pairs of a sample and a label
VALUE = torch.tensor([1, 1, 1, 0, 1, 0, 1, 0, 0, 1, 1])
POSITIVES_OF, NEGATIVES_OF = ([(0, 1, 2), (4, 6), (9, 10)], [(3,), (5, 7), (8,)])


def drawn_batches(labels):
    """All batches of two positives and one negative of each of some labels."""
    for chosen in combinations(range(3), labels):
        parts = [product(combinations(POSITIVES_OF[t], 2), NEGATIVES_OF[t]) for t in chosen]
        one = [[(*pair, negative) for pair, negative in part] for part in parts]
        batches = [sum(rows, ()) for rows in product(*one)]
        for batch in batches:
            yield 1 / len(batches) / math.comb(3, labels), list(batch)


def by_label(formula):
    """The mean over the labels of a formula of their scores and values."""

    def of_all(s, columns):
        every = []
        for t in range(3):
            rows = [i for i in range(len(s)) if columns["task"][i] == t]
            every.append(formula([s[i][t] for i in rows], [columns["y"][i] for i in rows]))
        return sum(every) / 3

    return of_all


def recommended_formula(s, values):
    return 0.1 * average_precision([one.sigmoid() for one in s], values) + logistic(s, values)


@pytest.mark.parametrize("labels", [1, 2, 3])
@pytest.mark.parametrize(
    ("make", "formula"),
    [
        (lambda: MeanAveragePrecision(sigmoid=False), average_precision),
        (as_recommended(MeanAveragePrecision), recommended_formula),
    ],
    ids=["alone", "as recommended"],
)
def test_mean_average_precision_is_right_on_average_over_batches_of_labels(labels, make, formula):
    """With exact rows; labels have different numbers of pairs, as where some are not known."""
    outputs = torch.randn(len(TASK), 3, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    bench = Bench(Case(make, outputs, {"task": TASK, "y": VALUE}, by_label(formula)))
    plan = LabelBatches(TASK, VALUE, labels, 2, 1)
    weights = torch.ones(len(TASK)) if plan.weights() is None else plan.weights()

    def gradient(rows):
        batch = bench.batch(rows)
        batch["target"]["weight"] = weights[rows].double()
        return bench.gradient(batch)

    found = sum(chance * gradient(rows) for chance, rows in drawn_batches(labels))
    torch.testing.assert_close(found, bench.brute()[1], rtol=1e-6, atol=1e-7)  # weights are float32


@pytest.mark.parametrize("missing", [-1, 2])
def test_labels_that_are_not_known_take_no_part_in_batches_of_labels(missing):
    """Whatever number stands for them, and whatever a batch says of them."""
    objective, known = MeanAveragePrecision(missing=missing, cross_entropy=1), torch.arange(len(TASK))
    task, y = torch.cat([TASK, torch.tensor([0, 1])]), torch.cat([VALUE, torch.tensor([missing, missing])])
    columns = {"task": task, "y": y, "index": torch.arange(len(y))}
    objective.row_domain(len(y), columns)
    outputs = torch.randn(len(y), 3, generator=torch.Generator().manual_seed(0))
    values = objective.measure(outputs, columns)[1].values[known]
    alone = objective.measure(outputs[known], {name: column[known] for name, column in columns.items()})[1].values
    torch.testing.assert_close(values, alone)


def test_the_cross_entropy_of_labels_is_that_of_the_known_ones():
    """Whether a split has rows of labels that are not known, or not."""
    objective = MeanAveragePrecision(missing=-1, cross_entropy=1)
    task, y = torch.cat([TASK, torch.tensor([0, 0, 1])]), torch.cat([VALUE, torch.full((3,), -1)])
    columns = {"task": task, "y": y, "index": torch.arange(len(y))}
    objective.row_domain(len(y), columns)
    outputs = torch.randn(len(y), 3, generator=torch.Generator().manual_seed(0))
    found = objective.entropy(outputs, columns)
    known = len(TASK)
    expected = [logistic(outputs[:known][t == TASK][:, t], VALUE[t == TASK]) for t in range(3)]
    torch.testing.assert_close(found, sum(expected) / 3)


def test_objectives_of_users_may_have_parts_of_any_name():
    class Mine(Objective):
        def __init__(self):
            super().__init__()
            self.cross_entropy, self.mixture, self.entropy = nn.CrossEntropyLoss(), 0.5, nn.Identity()

        def measure(self, outputs, batch):
            return self.entropy(self.cross_entropy(outputs, batch["y"])), None

    assert Mine().measure(torch.zeros(2, 3), {"y": torch.tensor([0, 1])})[0] == pytest.approx(math.log(3))
    assert not Mine().always_measured
    assert Mine().in_words == "Mine"


def test_labels_of_another_shape_are_refused():
    objective, outputs = MeanAveragePrecision(), torch.zeros(4, 2)
    y = torch.tensor([[1, 0], [0, 1], [0, 0], [1, 1]])
    columns = {"y": y, "index": torch.arange(4)}
    objective.row_domain(4, columns)
    with pytest.raises(DataError, match=r"y of shape \(B, 2\), got \(4, 2\) and \(4, 3\)"):
        objective.measure(outputs, columns | {"y": torch.cat([y, y[:, :1]], dim=1)})


def test_a_lonely_positive_of_a_label_is_refused():
    objective = MeanAveragePrecision()
    columns = {"y": VALUE, "task": TASK, "index": torch.arange(len(TASK))}
    SOX(0.5).pose(
        objective, num_samples=len(TASK), sampling={"target": Drawn(columns, LabelBatches(TASK, VALUE, 1, 1, 1))}
    )
    positives, negatives = ((TASK == 0) & (v == VALUE) for v in (1, 0))
    alone = [int(positives.nonzero()[0]), int(negatives.nonzero()[0])]
    two = positives.nonzero().flatten()[:2].tolist()
    for rows, held in ((alone, "1 of 3 positives and 1 negatives"), (two, "2 of 3 positives and 0 negatives")):
        batch = {name: column[rows] for name, column in columns.items()}
        with pytest.raises(DataError, match=f"a batch holds {held} of label 0"):
            objective.check(torch.zeros(2, 3), batch)
        assert objective.measure(torch.zeros(2, 3), batch)[1].values.isnan().any()  # so that the engine asks


@pytest.mark.parametrize("make", [AveragePrecision, lambda: RecallAtK(5)])
@pytest.mark.parametrize("share", [1 / 4, POSITIVES / N])  # with weights, and with strata where all weights are 1
def test_batches_with_one_positive_say_nothing_of_the_others(make, share):
    for positives in (1, 2):
        plan = BalancedBatches(Y, round(positives / share), positive_fraction=share)
        objective = make().double()
        posed(objective, plan=plan)
        index = next(plan.batches(0))
        batch = {name: column[index] for name, column in ({"y": Y, "index": torch.arange(N)} | plan.columns()).items()}
        _, rows = objective.measure(torch.zeros(len(index)), batch)
        assert bool(rows.values[rows.weight != 0].isnan().any()) == (positives == 1)  # so that the engine asks
        if positives == 2:
            objective.check(torch.zeros(len(index)), batch)
            continue
        with pytest.raises(DataError, match=r"a batch holds one sample of stratum .* which has 12, .* two or more"):
            objective.check(torch.zeros(len(index)), batch)


@pytest.mark.parametrize("make", [AUC, AUCMargin, PNormPush, KLPartialAUC, AveragePrecision])
def test_ratios_of_means_are_warned_of(make):
    """Where samples of one class have different weights, and the objective takes a mean over that class."""
    objective = make()
    batch = {"y": torch.tensor([1, 0, 0, 1]), "weight": torch.tensor([1.0, 2.0, 2.0, 1.0]), "index": torch.arange(4)}
    objective.num_samples = 4
    objective.check(torch.zeros(4), batch)
    batch["weight"][1] = 1.5
    if make is AveragePrecision:  # it compares with single samples, each of which must be known
        batch["weight"] = batch["weight"][[0, 1, 1, 0]]
        objective.check(torch.zeros(4), batch)
        return
    with pytest.warns(UserWarning, match=f"{make.__name__} takes a mean over 2 samples of a batch, .* ratio of two"):
        objective.check(torch.zeros(4), batch)


@pytest.mark.parametrize("known", [False, True])
def test_the_mean_of_all_samples_is_a_ratio_unless_their_strata_are_known(known):
    batch = {"weight": torch.tensor([1.0, 2.0, 2.0, 1.0])} | ({"stratum": torch.tensor([0, 1, 1, 0])} if known else {})
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warn_of_ratios(torch.ones(1, 4, dtype=torch.bool), batch, "a mean")
    assert len(caught) == (not known)


# ----------------------------------------------------------------------------------------------------------- bad input

MAKES = {
    "auc": AUC,
    "ap": AveragePrecision,
    "push": PNormPush,
    "recall": lambda: RecallAtK(5),
    "margin": AUCMargin,
    "low fpr": lambda: CVaRPartialAUC(max_fpr=0.3, sigmoid=False),
    "high tpr": lambda: CVaRPartialAUC(min_tpr=0.5, sigmoid=False),
    "two-way": lambda: CVaRPartialAUC(0.3, 0.5, sigmoid=False),
    "soft": lambda: KLPartialAUC(sigmoid=False),
    "soft two-way": lambda: KLPartialAUC(tau=2.0, threshold=4.0, sigmoid=False),
}
every = pytest.mark.parametrize("name", MAKES)


@every
@pytest.mark.parametrize(
    ("y", "message"),
    [
        (2 * Y - 1, r"needs the labels 0 and 1 in `y`, got -1 at position 1"),
        (0 * Y, "compares positives with negatives, but the training split has 0 samples with y = 1"),
        (0 * Y + 1, f"compares positives with negatives, but the training split has {N} samples with y = 1"),
        (torch.stack([Y, Y], 1), r"needs one label per sample, shape \(n,\), the training split has y of shape"),
    ],
    ids=["-1 and 1", "all 0", "all 1", "two labels"],
)
def test_splits_from_which_no_order_can_be_learnt_are_refused(name, y, message):
    with pytest.raises(DataError, match=message):
        posed(MAKES[name](), y, plan=UniformBatches(N, 16))


@every
def test_unknown_labels_are_refused(name):
    if name in ("auc", "margin", "low fpr"):
        return
    with pytest.raises(ConfigError, match=r"the labels of the whole training split, .*shuffle=True"):
        SOX(0.5).pose(MAKES[name](), num_samples=N)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: AveragePrecision(prevalence=1.5), r"prevalence must be 'data' or lie in \(0, 1\), got 1.5"),
        (lambda: AveragePrecision(cross_entropy=-1.0), r"cross_entropy must .*, got -1.0"),
        (lambda: AveragePrecision(SquaredHingePair(1e-300)), r"l\(0\) > 0"),
        (lambda: PNormPush(1.0), "p must be a finite number > 1, got 1.0"),
        (lambda: PNormPush(push_over="all"), "push_over must be one of 'negatives', 'positives', got 'all'"),
        (lambda: posed(RecallAtK(N)), f"k={N} is not less than the number of training samples, {N}"),
        (CVaRPartialAUC, "leave nothing out"),
        (lambda: CVaRPartialAUC(0.5, thresholds=-1.0), "thresholds must be >= 0"),
    ],
)
def test_arguments_out_of_range_are_refused(make, message):
    with pytest.raises(ConfigError, match=message):
        make()


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (Y, r"needs y of shape \(n, T\)"),
        (torch.stack([Y, torch.ones(N, dtype=torch.int64)], 1), f"label 1 has {N} positives among {N} known"),
        (torch.stack([Y, torch.full((N,), 2)], 1), r"needs the labels 0 and 1 in `y`, got 2 at position 0"),
    ],
)
def test_label_tables_that_do_not_fit_are_refused(y, message):
    with pytest.raises(DataError, match=message):
        posed(MeanAveragePrecision(), y, plan=UniformBatches(N, 16))


def test_classes_that_never_meet_are_refused():
    with pytest.raises(DataError, match="are never in a batch with one of the other kind"):
        posed(PNormPush(), plan=UniformBatches(N, 1))


# ------------------------------------------------------------------------------------------------------------ training

ALGORITHMS = {
    "SOX": lambda: SOX(0.5),
    "SOAP": lambda: SOAP(0.5),
    "MOAP": lambda: MOAP(0.2),
    "BSGD": BSGD,
    "MSVR": lambda: MSVR(0.5, 0.2, b=0.3),
    "SONX": lambda: SONX(0.5, 0.1),
    "SONEX": lambda: SONEX(0.5, 0.1, lam=0.01),
    "ALEXR": lambda: ALEXR(1.0, 0.0, mirror=True),
    "ALEXR2": lambda: ALEXR2(K=3, eta=0.05, nu=0.5, lam=0.01, gamma=0.5, gamma_prime=0.0),
}
CONVEX = ("push", "recall", "margin", "high tpr", "two-way")


def train(objective, algorithm, steps=20, lr=0.005):
    problem = posed(objective, algorithm=algorithm)
    network = nn.Sequential(nn.Linear(3, 1), nn.Flatten(0)).double()
    nn.init.zeros_(network[0].weight)
    engine = Engine(network, problem, algorithm)
    optimizer = HeavyBall([*network.parameters(), *objective.parameters()], lr=lr, beta=0.5)
    x, plan = features(), BalancedBatches(Y, 16)
    weights = plan.weights().double()

    def value():
        with torch.no_grad():
            return exact(objective, network(x))

    before, step = value(), 0
    for epoch in range(100):
        for index in plan.batches(epoch):
            batch = {"x": x[index], "y": Y[index], "index": index, "weight": weights[index]}
            engine.train_batch(batch, optimizer, last_batch=False)
            step += 1
            if step == steps:
                return before, value()
    raise AssertionError


FEW = ("SOX", "SONEX", "ALEXR", "ALEXR2")
RUNS = [(n, a) for n in MAKES for a in ALGORITHMS if a in FEW or n in ("ap", "high tpr", "soft")]


@pytest.mark.parametrize(("name", "algorithm"), RUNS)
def test_every_algorithm_descends_or_refuses_by_name(name, algorithm):
    objective, used = MAKES[name](), ALGORITHMS[algorithm]()
    if algorithm.startswith("ALEXR") and objective.outer is not None and name not in CONVEX:
        with pytest.raises(ConfigError, match=f"{algorithm} needs a convex outer function"):
            train(objective, used)
        return
    if objective.outer is None and isinstance(used, SingleLoop):
        with pytest.raises(ConfigError, match=f"{algorithm} would do the same as SGD here"):
            train(objective, used)
        return
    before, after = train(objective, used)
    assert after < before


@pytest.mark.parametrize("way", ["uniform", "balanced"])
@pytest.mark.parametrize(
    ("name", "beta", "weight"), [("partial auc, low fpr", 0.4, 1.0), ("partial auc, two-way", 0.5, 1 / 0.7)]
)
def test_a_threshold_steps_by_the_slope_of_its_own_term(name, beta, weight, way):
    """``-lr y_i (1 - share of the l_ij above s_i / max_fpr)``, averaged over all batches that hold i."""
    bench = Bench(CASES[name], WAYS[way]())
    parameters, (steps, chances) = bench.engine.problem.row_parameters, torch.zeros(2, 9, 1, dtype=torch.float64)
    for batch, chance in bench.way.sampler.batches():
        value = bench.estimate(bench.batch(list(batch))).value
        slope = torch.autograd.grad(value, parameters.leaf, allow_unused=True, materialize_grads=True)
        (moved,) = parameters.step(*slope)
        steps[moved.rows] += chance * (moved.values - 0.7)
        chances[moved.rows] += chance
    scores, y = CASES[name].outputs, torch.tensor(STRATUM) == 1
    losses = (1 - scores[y].unsqueeze(1) + scores[~y]).clamp(min=0) ** 2
    slopes = 1 - (losses > 0.7).double().mean(1) / beta
    if bench.objective.min_tpr:
        excess = 0.7 + (losses - 0.7).clamp(min=0).mean(1) / beta
        slopes = slopes * weight * (excess > bench.objective.threshold)
    assert (slopes != 0).any()
    torch.testing.assert_close((steps / chances)[y, 0], -0.1 * slopes)
    assert not steps[~y].any()


@pytest.mark.parametrize(
    ("objective", "advice"),
    [
        (lambda: KLPartialAUC(tau=1e-3, sigmoid=False), r"Raise tau \(it is 0\.001\) or lam \(1\)"),
        (lambda: PNormPush(200), r"Lower p \(it is 200\)"),
        (lambda: PNormPush(1000), r"Lower p \(it is 1000\)"),
    ],
    ids=["KLPartialAUC", "PNormPush", "PNormPush, rows too"],
)
def test_an_overflow_is_named_with_what_to_change(objective, advice):
    network = nn.Sequential(nn.Linear(3, 1), nn.Flatten(0))
    nn.init.constant_(network[0].weight, -1.0)
    drawn = Drawn({"y": Y, "index": torch.arange(N)}, BalancedBatches(Y, 16))
    engine = Engine(network, SOX(0.5).pose(objective(), num_samples=N, sampling={"target": drawn}), SOX(0.5))
    batch = {"x": features().float(), "y": Y, "index": torch.arange(N)}
    with pytest.raises(NonFiniteError, match=f"no weight was changed.* overflows?: .*{advice}"):
        engine.train_batch(batch, HeavyBall(engine.params, lr=0.1))


def test_auc_of_single_samples_is_refused():
    drawn = Drawn({"y": Y, "index": torch.arange(N)}, UniformBatches(N, 1))
    with pytest.raises(DataError, match=r"AUC compares samples of two kinds.*BalancedSampling, or larger"):
        SOX().pose(AUC(), num_samples=N, sampling={"target": drawn})


@pytest.mark.parametrize(
    "objective", [AveragePrecision(), PNormPush(), KLPartialAUC(sigmoid=False)], ids=lambda o: type(o).__name__
)
def test_the_way_out_of_labels_of_another_shape(objective):
    y, index = torch.tensor([0, 1, 0, 1]), torch.arange(4)
    owners = objective.row_domain(4, {"y": y, "index": index}).owners
    assert torch.equal(objective.row_domain(4, {"y": y.unsqueeze(1), "index": index}).owners, owners)
    with pytest.raises(DataError, match="MeanAveragePrecision for several"):
        objective.row_domain(4, {"y": y.reshape(2, 2), "index": index})


def test_labels_of_cross_entropy_of_another_shape():
    for outputs, y in ((torch.rand(4, 1), torch.ones(4)), (torch.rand(4, 3), torch.tensor([0, 2, 1, 2]))):
        expected, _ = CrossEntropy().measure(outputs, {"y": y})
        for other in (y.unsqueeze(1), y.double(), y.double().unsqueeze(1)):
            CrossEntropy().check(outputs, {"y": other})
            assert torch.equal(CrossEntropy().measure(outputs, {"y": other})[0], expected)
        with pytest.raises(DataError, match=r"needs one number `y` per sample.*\(4, 2\)"):
            CrossEntropy().check(outputs, {"y": torch.stack([y, y], 1)})
    CrossEntropy().check(torch.zeros(4, 3), {"y": torch.full((4, 3), 1 / 3)})  # probabilities of classes
    for wrong, got in (
        ([0, 1, 1], "got 2 at position 1"),
        ([0, 0, 0], "got 0 at"),
        ([-1, 1, 1], "got 1 at position 1"),
    ):
        with pytest.raises(DataError, match=f"probabilities of classes >= 0, of sum 1, {got}.*MeanAveragePrecision"):
            CrossEntropy().check(torch.zeros(2, 3), {"y": torch.tensor([[0, 1, 0], wrong])})


def test_thresholds_of_samples_move_alike_beside_cross_entropy():
    """Their step size is not that of the objective's weight in F: the best threshold is the same."""
    found = []
    for recommended in (False, True):
        objective = CVaRPartialAUC(max_fpr=0.4, thresholds=0.7, sigmoid=False)
        objective.recommended = recommended
        torch.manual_seed(0)
        network, x, y = torch.nn.Linear(3, 1), torch.randn(12, 3), torch.arange(12) % 3 == 0
        problem = SGD().pose(objective, num_samples=12, sampling=None)
        engine = Engine(network, problem, SGD())
        batch = {"x": x, "y": y.long(), "index": torch.arange(12)}
        engine.train_batch(batch, torch.optim.SGD(network.parameters(), lr=0.0))
        found.append(problem.row_parameters.state.gather(None))
    assert not torch.equal(found[0], torch.full_like(found[0], 0.7))
    torch.testing.assert_close(found[1], found[0])


def test_a_positive_of_small_weight_may_have_smaller_inner_values():
    """The first one is ranked above all others, so that only its own loss is left."""
    weight, scores = torch.ones(N, dtype=torch.float64), features().sum(1)
    weight[0], scores[0] = 0.05, 50.0
    columns = {"y": Y, "index": torch.arange(N), "sample_weight": weight * N / weight.sum()}
    objective = AveragePrecision(sigmoid=False)
    objective.num_samples = N
    least = objective.row_domain(N, columns).range.least
    values = objective.measure(scores, columns | {"weight": columns["sample_weight"]})[1].values
    assert values[0].tolist() == pytest.approx([least, least])


def test_labels_of_samples_that_batches_prefer_may_have_smaller_inner_values():
    """Of both labels 12 samples are known, which stand for 36 of the 60 in the batches' population."""
    y = torch.stack([Y, Y.flip(0)], dim=1)
    y[12:] = -1
    y[:, 1] = y[:, 0]
    population = torch.where(torch.arange(N) < 12, 3.0, 0.5).double()
    columns = {"y": y, "index": torch.arange(N), "population": population}
    objective = MeanAveragePrecision(missing=-1, sigmoid=False)
    objective.num_samples = N
    least = objective.row_domain(N, columns).range.least
    scores = torch.where(torch.arange(N) == 0, 50.0, 0.0).double().unsqueeze(1).expand(N, 2)
    rows = objective.measure(scores, columns)[1]
    assert rows.values[rows.weight > 0].min().item() == pytest.approx(least)
