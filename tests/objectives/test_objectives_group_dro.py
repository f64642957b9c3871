"""Objectives of group DRO against the worst cases that they stand for."""

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar
from scipy.special import logsumexp

from fcco_lightning import (
    ChiSquareGroupDRO,
    ConfigError,
    CVaRGroupDRO,
    DataError,
    KLGroupDRO,
    MoreauSmoothing,
    MultiLabelLoss,
    MultiTaskGroupDRO,
    NoSmoothing,
    Quantity,
    RandomizedSmoothing,
    SampleDRO,
    WorstGroupDRO,
)

RISKS = np.array([0.3, 1.1, 0.7, 0.2, 2.0, 0.9, 0.4])
N = len(RISKS)


class Given(Quantity):
    """The output is the loss."""

    def __call__(self, outputs, batch):
        return outputs


def batch(groups):
    return {"group": torch.as_tensor(groups)}


def value(objective, risks=RISKS):
    """F at the objective's threshold."""
    outputs, groups = torch.from_numpy(risks), batch(range(len(risks)))
    direct, rows = objective.measure(outputs, groups)
    assert rows.index is None or rows.index.tolist() == list(range(len(risks)))
    assert rows.weight.tolist() == [True] * len(risks)
    torch.testing.assert_close(rows.values.squeeze(1), outputs)  # rows are risks, whatever the threshold
    return (direct + (rows.outer or objective.outer)(rows.values).mean()).item()


def least(objective):
    """min over the threshold, by scipy."""

    def at(threshold):
        with torch.no_grad():
            objective.threshold.fill_(threshold)
        return value(objective)

    objective.double()
    return minimize_scalar(at, bounds=(-20, 20), method="bounded", options={"xatol": 1e-10}).fun


def mean_of_worst(risks, alpha):
    count = alpha * len(risks)
    weights = np.clip(count - np.arange(len(risks)), 0, 1)
    return (weights * np.sort(risks)[::-1]).sum() / count


def worst_over_q(penalty):
    """max_q <q, R> - penalty(q) over the simplex, by exponentiated gradient from many starts: here by SLSQP."""
    from scipy.optimize import minimize

    found = minimize(
        lambda q: penalty(q) - q @ RISKS,
        np.full(N, 1 / N),
        bounds=[(1e-12, 1)] * N,
        constraints={"type": "eq", "fun": lambda q: q.sum() - 1},
        options={"ftol": 1e-14, "maxiter": 1000},
    )
    return -found.fun


@pytest.mark.parametrize("alpha", [1 / N, 0.3, 0.5, 1.0])
def test_least_cvar_over_the_threshold_is_the_mean_of_the_worst(alpha):
    objective = CVaRGroupDRO(alpha, Given(), N)
    assert least(objective) == pytest.approx(mean_of_worst(RISKS, alpha), abs=1e-6)
    q = objective.ambiguity.worst_case(torch.from_numpy(RISKS)).numpy()
    assert q @ RISKS == pytest.approx(mean_of_worst(RISKS, alpha))


def test_worst_group_is_the_maximum():
    assert least(WorstGroupDRO(Given(), N)) == pytest.approx(RISKS.max(), abs=1e-6)


@pytest.mark.parametrize("lam0", [0.3, 1.0, 10.0])
@pytest.mark.parametrize("half", [True, False])
def test_chi_square_is_the_penalised_worst_case(lam0, half):
    def penalty(q):
        return lam0 * ((N * q - 1) ** 2).mean() / (2 if half else 1)

    assert least(ChiSquareGroupDRO(lam0, half, Given(), N)) == pytest.approx(worst_over_q(penalty), abs=1e-5)


@pytest.mark.parametrize("lam0", [0.3, 1.0, 10.0])
def test_kl_is_the_penalised_worst_case_and_a_soft_maximum(lam0):
    found = least(KLGroupDRO(lam0, Given(), N))
    assert found == pytest.approx(lam0 * (logsumexp(RISKS / lam0) - np.log(N)), abs=1e-6)
    assert found == pytest.approx(worst_over_q(lambda q: lam0 * (q * np.log(N * q)).sum()), abs=1e-5)


@pytest.mark.parametrize("make", [lambda: CVaRGroupDRO(0.2), WorstGroupDRO, ChiSquareGroupDRO, KLGroupDRO])
def test_number_of_groups_comes_from_the_data(make):
    class Data:
        num_groups = 5

    objective = make()
    with pytest.raises(ConfigError, match="does not know the number of groups"):
        objective.row_domain(100, None)
    objective.adapt(Data())
    assert objective.row_domain(100, None).num_rows == 5
    Data.num_groups = 6
    with pytest.raises(ConfigError, match=r"num_groups=5 .* but the data has 6"):
        objective.adapt(Data())


def test_worst_group_and_the_cap_follow_the_number_of_groups():
    class Data:
        num_groups = 5

    objective = WorstGroupDRO()
    objective.adapt(Data())
    assert objective.outer.phi.rho == 5
    with pytest.raises(ConfigError, match=r"alpha=0\.1 of 5 groups"):
        CVaRGroupDRO(0.1).adapt(Data())


def test_objectives_without_a_max_form_say_so():
    with pytest.raises(ConfigError, match="ChiSquareGroupDRO is not a maximum over weights"):
        ChiSquareGroupDRO(1.0).max_form()


def test_the_max_form_of_kl_is_its_value():
    """``max_q <q, R> - lam0 KL(q, 1/n) = lam0 log mean exp(R / lam0)``."""
    form = KLGroupDRO(0.7, num_groups=3).max_form()
    risks = torch.tensor([0.2, 1.5, 0.9], dtype=torch.float64)
    best = form.outer.ambiguity.best_response(risks, form.penalty).value
    torch.testing.assert_close(best, 0.7 * (risks / 0.7).exp().mean().log())


# ---- tasks x groups


def tasks_batch(tasks=3, groups=2, count=40):
    generator = torch.Generator().manual_seed(0)
    outputs = torch.randn(count, tasks, generator=generator, dtype=torch.float64, requires_grad=True)
    labels = torch.randint(2, (count, tasks), generator=generator)
    return outputs, {"group": torch.arange(count) % groups, "y": labels}


def test_tasks_by_groups_is_the_loop():
    outputs, data = tasks_batch()
    losses = torch.log1p(torch.exp(outputs * (1 - 2 * data["y"])))
    expected = [[losses[data["group"] == j, i].mean().item() for j in range(2)] for i in range(3)]
    objective = MultiTaskGroupDRO(3, MultiLabelLoss(), num_groups=2)
    values, weight, _, index = objective.measure(outputs, data)[1]
    assert index is None
    assert (objective.row_domain(40, None).num_rows, objective.width) == (3, 2)
    assert weight.tolist() == [True] * 3
    assert values.tolist() == [pytest.approx(row) for row in expected]
    assert objective.outer(values).tolist() == pytest.approx([max(row) for row in expected])


def test_a_column_says_nothing_of_the_losses_of_all_tasks():
    outputs, data = tasks_batch()
    objective, named = (
        MultiTaskGroupDRO(3, MultiLabelLoss(), num_groups=2),
        data | {"task": torch.arange(len(outputs)) % 3},
    )
    for known, other in zip(objective.subsets(data), objective.subsets(named), strict=True):
        assert all(torch.equal(a, b) for a, b in zip(known, other, strict=True))
    assert torch.equal(objective.measure(outputs, named)[1].values, objective.measure(outputs, data)[1].values)
    with pytest.raises(ConfigError, match="Given gave the losses of all 3 tasks"):
        MultiTaskGroupDRO(3, Given(), num_groups=2).measure(outputs, named)


def test_subsets_of_tasks_hold_the_samples_of_the_task_only():
    data = {"task": torch.tensor([0, 0, 1, 1, 1]), "group": torch.tensor([0, 1, 0, 1, 1])}
    found = MultiTaskGroupDRO(2, Given(), num_groups=2).subsets(data)
    assert [[mask.nonzero().flatten().tolist() for mask in row] for row in found] == [[[0], [1]], [[2], [3, 4]]]


def test_one_task_per_sample_and_incomplete_rows():
    losses = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0])
    data = {"task": torch.tensor([0, 0, 1, 2, 2]), "group": torch.tensor([0, 1, 0, 1, 0])}
    objective = MultiTaskGroupDRO(3, Given(), "logsumexp", num_groups=2)
    values, weight, *_ = objective.measure(losses, data)[1]
    assert weight.tolist() == [True, False, True]  # task 1 lacks group 1
    assert values[weight].tolist() == [[1, 2], [5, 4]]
    assert values.isfinite().all()
    assert objective.outer(values[weight]).tolist() == pytest.approx(logsumexp([[1, 2], [5, 4]], axis=1).tolist())


@pytest.mark.parametrize(
    ("change", "message"),
    [({"task": torch.tensor([0, 3])}, r"tasks must lie in 0..2"), ({}, "needs the column `task`")],
)
def test_bad_tasks_are_refused(change, message):
    with pytest.raises(DataError, match=message):
        train_on(MultiTaskGroupDRO(3, Given(), num_groups=2), {"group": torch.tensor([0, 1])} | change)


def train_on(objective, batch):
    """What the engine does with the first batch."""
    outputs = torch.ones(2)
    objective.check(outputs, batch)
    objective.measure(outputs, batch)


def test_a_task_that_does_not_exist_is_not_left_out_in_silence():
    data = {"group": torch.tensor([0, 1, 0]), "task": torch.tensor([0, 0, 3])}
    values, weight, *_ = MultiTaskGroupDRO(3, Given(), num_groups=2).measure(torch.ones(3), data)[1]
    assert values[weight != 0].isnan().any()


ALL_KINDS = {
    "cvar": lambda **start: CVaRGroupDRO(0.3, Given(), N, **start),
    "worst": lambda **start: WorstGroupDRO(Given(), N, **start),
    "chi square": lambda **start: ChiSquareGroupDRO(0.5, True, Given(), N, **start),
    "kl": lambda **start: KLGroupDRO(0.7, Given(), N, **start),
}


SMOOTHINGS = [NoSmoothing(), MoreauSmoothing(0.02), MoreauSmoothing(3.0), RandomizedSmoothing(0.1)]


@pytest.mark.parametrize("smoothing", SMOOTHINGS)
@pytest.mark.parametrize("kind", ALL_KINDS)
def test_a_settled_threshold_is_the_minimiser_for_the_known_risks_from_any_other(kind, smoothing):
    objective = ALL_KINDS[kind]().double()
    known, f = torch.from_numpy(RISKS).unsqueeze(1), smoothing(objective.outer)
    rows = torch.cat([known, torch.full((4, 1), torch.nan, dtype=torch.float64)])

    def at(threshold):
        with torch.no_grad():
            objective.threshold.fill_(threshold)
            return threshold + f(known).mean().item()

    best = minimize_scalar(at, bounds=(-20, 20), method="bounded", options={"xatol": 1e-10}).fun
    for present in (-3.0, 0.8, 50.0):
        at(present)
        for _ in range(20):  # each with f at the threshold that was found
            objective.settle(rows, smoothing(objective.outer))
        assert at(objective.threshold.item()) == pytest.approx(best, abs=1e-5)


def test_a_threshold_stays_where_no_risk_is_known_and_meets_risks_that_are_equal():
    objective = CVaRGroupDRO(0.5, Given(), 2).double()
    objective.settle(torch.full((2, 1), torch.nan), objective.outer)
    assert objective.threshold == 0
    for smoothing, best in ((NoSmoothing(), 0.4), (MoreauSmoothing(0.1), 0.4 - 0.1)):  # where the slope is 1
        for _ in range(20):
            objective.settle(torch.full((2, 1), 0.4), smoothing(objective.outer))
        assert objective.threshold.item() == pytest.approx(best, abs=1e-4)


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_a_threshold_that_is_given_is_trained(kind):
    assert ALL_KINDS[kind]().settles
    assert not CVaRGroupDRO(0.3, Given(), 2001).settles  # a group for every sample, say
    objective = ALL_KINDS[kind](threshold=0.25)
    assert not objective.settles
    assert objective.threshold.item() == 0.25


@pytest.mark.parametrize("num_groups", [3, 100], ids=["few", "far more than samples"])
def test_the_start_counts_the_groups_of_a_batch_alike(num_groups):
    """However many samples of each there are, weighted among them; a NaN is not left out."""
    _, start = CVaRGroupDRO(0.5, Given(), num_groups).recommended_start
    losses, columns = torch.tensor([1.0, 2.0, 6.0, 5.0]), batch([0, 0, 0, 2])
    direct, rows = start.measure(losses, columns)
    assert rows is None
    assert direct.item() == pytest.approx((3 + 5) / 2)
    direct, _ = start.measure(losses, columns | {"weight": torch.tensor([2.0, 1.0, 0.0, 7.0])})
    assert direct.item() == pytest.approx((4 / 3 + 5) / 2)
    assert start.measure(losses[:0], batch(torch.zeros(0, dtype=torch.int64)))[0] == 0
    assert start.measure(losses.log().where(losses != 5, torch.nan), columns)[0].isnan()


@pytest.mark.parametrize(("task", "group"), [(1, -1), (0, 2), (2, -1)])
def test_a_group_that_is_none_is_not_that_of_the_next_task(task, group):
    objective = MultiTaskGroupDRO(3, Given(), num_groups=2)
    columns = {"group": torch.tensor([0, 1, group]), "task": torch.tensor([0, 0, task])}
    assert objective.measure(torch.tensor([0.1, 0.2, 5.0]), columns)[1].values.isnan().any()


def test_tasks_and_groups_may_be_columns_of_width_one():
    objective, columns = MultiTaskGroupDRO(2, Given(), num_groups=2), {"group": torch.tensor([0, 1, 1, 0])}
    columns["task"] = torch.tensor([1, 0, 1, 0])
    wide = {name: column.unsqueeze(1) for name, column in columns.items()}
    for narrow, of_wide in zip(objective.subsets(columns), objective.subsets(wide), strict=True):
        assert torch.equal(torch.stack(narrow), torch.stack(of_wide))


@pytest.mark.parametrize("objective", [SampleDRO(loss=MultiLabelLoss()), KLGroupDRO(1.0, MultiLabelLoss(), 2)])
def test_losses_of_several_tasks_are_refused_where_there_is_one_per_sample(objective):
    outputs, columns = tasks_batch()
    with pytest.raises(DataError, match=r"needs one number per sample, MultiLabelLoss gave \(\d+, 3\)"):
        objective.measure(outputs, columns)
